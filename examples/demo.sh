#!/usr/bin/env bash
# `make demo`: an answer, then the same comparison where prompt lookup helps and where it does not.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
outpace=.venv/bin/outpace

paragraph='The harbour of Lindvik lies at the end of a narrow fjord. Every morning at six the
ferry leaves for the islands with the mail, fresh bread and a handful of passengers. In winter
the water close to the quay freezes, and the crew breaks the ice with long wooden poles before
the engine is started. The ferry returns at noon, and the children of Lindvik run down to the
quay to see who has come home.'

say() { printf '\n== %s\n' "$*"; }

say '1. Fetch the default model (92.9 MB, only the first time)'
"$outpace" models pull smollm2-135m

say '2. Answer a question'
"$outpace" generate 'Explain in two sentences why the sky is blue.' --max-tokens 80

say '3. Plain against speculative decoding, where the answer repeats its prompt'
echo 'Task: repeat a paragraph. Lookup can copy most of the answer.'
"$outpace" generate --compare --method ngram --num-speculative-tokens 3 --max-tokens 120 \
  "Repeat the following text word for word.

$paragraph"

say '4. The same comparison, where the answer is new text'
echo 'Task: an open question. There is little to copy, so lookup has little to offer.'
"$outpace" generate --compare --method ngram --num-speculative-tokens 3 --max-tokens 120 \
  'What makes a good friend? Answer in a few sentences of your own.'

say 'What this shows'
cat <<TEXT
Each comparison above says whether the token ids were equal. They should be for greedy decoding, as
here, and for sampling with a seed; without a seed only the distribution is the same. Whether it is
faster depends on the text. Where the answer repeats its context many guesses are right and several
tokens come out of one pass; where it does not, guesses are few or wrong, and it can even be slower.
Measure with your own prompts:  $outpace generate --compare "your prompt"
TEXT
