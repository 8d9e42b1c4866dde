"""Special tokens, whose names are text where a grammar has them as text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_MARK = "\U0010ffff"  # Unicode has no such character and never will
# Texts, comments and expressions of Lark, in which nothing is a token's name; else a name.
_NAME = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n]*|#[^\n]*|/(?:\\.|[^/\\\n])+/|<[^<>\s]+>')


def special_tokens(tokenizer_json: str) -> dict[str, int]:
    """The ids of a tokenizer's special tokens by name."""
    tokens = json.loads(tokenizer_json).get("added_tokens") or ()
    return {token["content"]: token["id"] for token in tokens if token["special"]}


def with_texts_as_text(tokenizer_json: str) -> str:
    """The tokenizer without the habit of taking a special token's name in a text for that token.

    llguidance tokenises the text that a grammar forces. Where it holds such a name, the token would
    be forced in its stead, which is none of the text, and may end the answer. Ids stay as they are.
    """
    tokenizer: dict[str, Any] = json.loads(tokenizer_json)
    model = tokenizer["model"]
    # What merges make of other tokens is found without its name, and must keep it.
    made = {
        merge.replace(" ", "", 1) if isinstance(merge, str) else "".join(merge)
        for merge in model.get("merges") or ()
    }
    names = {name: _MARK + name for name in special_tokens(tokenizer_json) if name not in made}
    for token in tokenizer["added_tokens"] or ():
        if token["special"]:
            token["content"] = names.get(token["content"], token["content"])
    vocab = model.get("vocab")
    if isinstance(vocab, dict):
        model["vocab"] = {names.get(token, token): token_id for token, token_id in vocab.items()}
    elif isinstance(vocab, list):
        model["vocab"] = [[names.get(token, token), score] for token, score in vocab]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    return json.dumps(tokenizer, ensure_ascii=False)


def names_as_ids(grammar: str, special: Mapping[str, int]) -> str:
    """A grammar in Lark's syntax whose special tokens are numbers: `<|end|>` as `<[2]>`."""

    def replaced(found: re.Match[str]) -> str:
        token_id = special.get(found[0])
        return found[0] if token_id is None else f"<[{token_id}]>"

    return _NAME.sub(replaced, grammar)
