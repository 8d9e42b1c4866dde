"""The prompts of a benchmark: read, put through the chat template, and picked fairly."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator, Sequence
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


@dataclass(frozen=True, slots=True)
class Question:
    """One line of a file of prompts. turns: what the user says, one after another."""

    label: str
    category: str
    turns: tuple[str, ...]

    def prompt(self, tokenizer: Tokenizer, answers: Sequence[str] = ()) -> BenchPrompt:
        """The turn after `answers`, in the model's chat template; the bare texts, one below the
        other, for a model without one."""
        num_turns = len(answers) + 1
        label = self.label if num_turns == 1 else f"{self.label} turn {num_turns}"
        said = [text for pair in zip(self.turns, answers, strict=False) for text in pair]
        said.append(self.turns[len(answers)])
        return BenchPrompt(label, self.category, tuple(_encode(said, tokenizer)))


def default_file() -> Path:
    """spec_bench_dev.jsonl in the directory OUTPACE_PROMPTS if that is set, else the built-in."""
    folder = os.environ.get(PROMPTS_VARIABLE)
    return Path(folder) / "spec_bench_dev.jsonl" if folder else BUILT_IN


def default_files() -> tuple[Path, ...]:
    """The same, and humaneval_dev.jsonl beside it if that is there."""
    first = default_file()
    second = first.with_name("humaneval_dev.jsonl")
    return (first, second) if second.is_file() else (first,)


def pick_prompts(
    path: Path, tokenizer: Tokenizer, *, count: int, max_tokens: int, seed: int
) -> list[BenchPrompt]:
    """The first turns of `count` questions, one category after another in turn.

    A category with too few fitting prompts contributes what it has. Otherwise as
    `pick_questions`.
    """
    questions = pick_questions(
        [path], tokenizer, per_category=count, max_tokens=max_tokens, seed=seed
    )
    categories = list(dict.fromkeys(question.category for question in questions))
    fitting = [[q for q in questions if q.category == category] for category in categories]
    in_turn = [q for row in zip_longest(*fitting) for q in row if q is not None][:count]
    in_order = sorted(in_turn, key=lambda question: categories.index(question.category))
    return [question.prompt(tokenizer) for question in in_order]


def pick_questions(
    paths: Sequence[Path], tokenizer: Tokenizer, *, per_category: int, max_tokens: int, seed: int
) -> list[Question]:
    """At most `per_category` questions of each category whose first turn has no more than
    `max_tokens` tokens, category by category in the order of the files.

    The same seed picks the same questions. Raises OptionError if nothing fits or a line is not a
    prompt.
    """
    by_category: dict[str, list[Question]] = {}
    for path in paths:
        for question in _read(path):
            by_category.setdefault(question.category, []).append(question)
    found: list[Question] = []
    for category, questions in by_category.items():
        rng, num_found = random.Random(f"{seed}{category}"), 0
        for question in rng.sample(questions, len(questions)):
            if num_found == per_category:
                break
            if len(question.prompt(tokenizer).token_ids) <= max_tokens:
                found.append(question)
                num_found += 1
    if not found:
        names = ", ".join(map(str, paths))
        raise OptionError(f"{names} has no prompt of at most {max_tokens} tokens")
    return found


def _encode(said: Sequence[str], tokenizer: Tokenizer) -> list[int]:
    """Ids of a conversation that the user begins and continues."""
    if tokenizer.chat_template is None:
        return tokenizer.encode("\n".join(said))
    messages = [
        {"role": "assistant" if index % 2 else "user", "content": text}
        for index, text in enumerate(said)
    ]
    return tokenizer.encode(tokenizer.apply_chat_template(messages), add_special_tokens=False)


def _read(path: Path) -> Iterator[Question]:
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
        label = row.get("question_id", row.get("task_id", f"{path.stem} line {number}"))
        yield Question(str(label), category, _turns(row))


def _turns(row: dict[str, Any]) -> tuple[str, ...]:
    turns = row["turns"] if "turns" in row else [row["prompt"]]
    return tuple(turns) if isinstance(turns, list) else ()


def _parsed(path: Path, number: int, line: str) -> tuple[int, dict[str, Any]]:
    try:
        row = json.loads(line)
        turns = _turns(row)
    except (ValueError, KeyError, TypeError):
        turns = ()
    if not turns or not all(isinstance(text, str) for text in turns):
        raise OptionError(
            f"{path}, line {number}: expected a JSON object with a `prompt` (text) or `turns` "
            "(a list of texts), one per line"
        )
    return number, row
