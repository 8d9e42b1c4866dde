"""Texts to measure on, from files of prose or sets of prompts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from outpace.errors import OptionError
from outpace.files import read_text

PROMPT_SUFFIXES = (".jsonl", ".ndjson")


def read_texts(paths: Sequence[Path]) -> list[str]:
    """One text a file; of JSON lines (prompts with `turns`, `prompt` or `text`) one a line.

    Raises OptionError for a file that holds no text, is not UTF-8, or has a line that is no prompt.
    """
    texts = []
    for path in paths:
        content = read_text(path)
        found = list(_prompts(path, content)) if path.suffix in PROMPT_SUFFIXES else [content]
        if not any(text.strip() for text in found):
            raise OptionError(f"{path} holds no text; give a file of prose or of prompts")
        texts += found
    return texts


def _prompts(path: Path, content: str) -> Iterator[str]:
    for number, line in enumerate(content.splitlines(), 1):
        if line.strip():
            try:
                yield _prompt(json.loads(line))
            except (ValueError, KeyError, TypeError) as error:
                raise OptionError(
                    f"{path}, line {number}: expected a JSON object with `turns` (a list of "
                    "strings), `prompt` or `text`"
                ) from error


def _prompt(row: dict[str, Any]) -> str:
    if "turns" in row:
        return "\n\n".join(row["turns"])
    text = row["prompt"] if "prompt" in row else row["text"]
    if not isinstance(text, str):
        raise TypeError
    return text
