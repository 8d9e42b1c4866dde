#!/usr/bin/env bash
# `make demo`: an answer with its account, then plain decoding beside `auto` on three kinds of text.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bin=.venv/bin

say() { printf '\n== %s\n' "$*"; }

say '1. Fetch the default model (92.9 MB, only the first time)'
"$bin/outpace" models pull smollm2-135m

say '2. Answer a question, and say what was decided on the way'
"$bin/outpace" generate --explain --max-tokens 80 'Explain in two sentences why the sky is blue.'

say '3. Plain decoding and auto in turn, on three kinds of text'
"$bin/python" examples/demo.py

cat <<TEXT

The token ids of both ways are compared in every run: "same ids" says whether they were equal. How
much faster it is depends on the text. Where the answer repeats its context, copying finds several
tokens for each pass; where it does not, a trained head guesses, if that is worth its time on this
machine, and else nothing is drafted. Measure your own:
  $bin/outpace generate --compare "your prompt"
TEXT
