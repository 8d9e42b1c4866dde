"""The prompts of a benchmark: read, put through the chat template, and picked fairly."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from outpace.errors import OptionError
from outpace.models.tokenizer import Tokenizer

BUILT_IN = Path(__file__).parent.parent / "prompts.jsonl"
PROMPTS_VARIABLE = "OUTPACE_PROMPTS"

# Spec-Bench files keep MT-Bench's eight categories; its papers report them as one task.
_CONVERSATION = frozenset(
    ["writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"]
)
_SPEC_BENCH_TASKS = frozenset(["translation", "summarization", "qa", "math_reasoning", "rag"])


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """A prompt ready to be decoded. label: its place in the file, which identifies it."""

    label: str
    category: str
    token_ids: tuple[int, ...]


def default_file() -> Path:
    """spec_bench_dev.jsonl in the directory OUTPACE_PROMPTS if that is set, else the built-in."""
    folder = os.environ.get(PROMPTS_VARIABLE)
    return Path(folder) / "spec_bench_dev.jsonl" if folder else BUILT_IN


def pick_prompts(
    path: Path, tokenizer: Tokenizer, *, count: int, max_tokens: int, seed: int
) -> list[BenchPrompt]:
    """`count` prompts of at most `max_tokens` tokens, one category after another in turn.

    A category with too few fitting prompts contributes what it has. The same seed picks the
    same prompts. Raises OptionError if nothing fits or a line is not a prompt.
    """
    by_category: dict[str, list[tuple[str, str]]] = {}
    for label, category, text in _read(path):
        by_category.setdefault(category, []).append((label, text))
    fitting = [
        _fitting(category, texts, tokenizer, count, max_tokens, random.Random(f"{seed}{category}"))
        for category, texts in by_category.items()
    ]
    in_turn = [p for row in zip_longest(*fitting) for p in row if p is not None][:count]
    if not in_turn:
        raise OptionError(f"{path} has no prompt of at most {max_tokens} tokens")
    return sorted(in_turn, key=lambda prompt: list(by_category).index(prompt.category))


def _fitting(
    category: str,
    texts: list[tuple[str, str]],
    tokenizer: Tokenizer,
    count: int,
    max_tokens: int,
    rng: random.Random,
) -> list[BenchPrompt]:
    found: list[BenchPrompt] = []
    for label, text in rng.sample(texts, len(texts)):
        token_ids = _encode(text, tokenizer)
        if len(token_ids) <= max_tokens:
            found.append(BenchPrompt(label, category, tuple(token_ids)))
        if len(found) == count:
            break
    return found


def _encode(text: str, tokenizer: Tokenizer) -> list[int]:
    """Ids of the text as one user message; of the bare text for a model without a template."""
    if tokenizer.chat_template is None:
        return tokenizer.encode(text)
    chat = tokenizer.apply_chat_template([{"role": "user", "content": text}])
    return tokenizer.encode(chat, add_special_tokens=False)


def _read(path: Path) -> Iterator[tuple[str, str, str]]:
    """(label, category, text) of each line; of a conversation only the first turn."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise OptionError(f"prompts cannot be read from {path} ({error.strerror})") from error
    rows = [_parsed(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    is_spec_bench = any(row.get("category") in _SPEC_BENCH_TASKS for _, row in rows)
    for number, row in rows:
        category = str(row.get("category", path.stem.removesuffix("_dev")))
        if is_spec_bench and category in _CONVERSATION:
            category = "conversation"
        text = row["turns"][0] if "turns" in row else row["prompt"]
        label = row.get("question_id", row.get("task_id", f"line {number}"))
        yield str(label), category, text


def _parsed(path: Path, number: int, line: str) -> tuple[int, dict[str, Any]]:
    try:
        row = json.loads(line)
        text = row["turns"][0] if "turns" in row else row["prompt"]
    except (ValueError, KeyError, IndexError, TypeError):
        text = None
    if not isinstance(text, str):
        raise OptionError(
            f"{path}, line {number}: expected a JSON object with a `prompt` (text) or `turns` "
            "(a list of texts), one per line"
        )
    return number, row
