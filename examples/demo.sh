#!/usr/bin/env bash
# `make demo`: an answer, then the same comparison where copying helps and where it does not.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
outpace=.venv/bin/outpace

instructions='1. Open the valve on the left side of the tank.
2. Wait until the gauge on the left side of the tank shows zero.
3. Close the valve on the left side of the tank.
4. Open the valve on the right side of the tank.
5. Wait until the gauge on the right side of the tank shows zero.
6. Close the valve on the right side of the tank.'

say() { printf '\n== %s\n' "$*"; }

say '1. Fetch the default model (92.9 MB, only the first time)'
"$outpace" models pull smollm2-135m

say '2. Answer a question'
"$outpace" generate 'Explain in two sentences why the sky is blue.' --max-tokens 80

say '3. Plain against speculative decoding, where the answer repeats its prompt'
echo 'Task: repeat instructions. What followed the last few words before can be copied.'
"$outpace" generate --compare --method suffix --num-speculative-tokens 3 --max-tokens 120 \
  "Repeat the following list exactly.

$instructions"

say '4. The same comparison, where the answer is new text'
echo 'Task: an open question. There is little to copy, so there is little to gain.'
"$outpace" generate --compare --method suffix --num-speculative-tokens 3 --max-tokens 120 \
  'What makes a good friend? Answer in a few sentences of your own.'

say 'What this shows'
cat <<TEXT
Each comparison above says whether the token ids were equal. They should be for greedy decoding, as
here, and for sampling with a seed; without a seed only the distribution is the same. Whether it is
faster depends on the text. Where the answer repeats its context many guesses are right and several
tokens come out of one pass; where it does not, guesses are few or wrong, and it can even be slower.
Measure with your own prompts:  $outpace generate --compare "your prompt"
TEXT
