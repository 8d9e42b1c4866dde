"""The prompts of a benchmark: read, put through the chat template, and picked fairly."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from outpace.errors import OptionError
from outpace.files import read_text
from outpace.models.tokenizer import Tokenizer
from outpace.training.jsonl import optional_text, read_rows
from outpace.training.prompts import messages_of_row

BUILT_IN = Path(__file__).with_name("prompts.jsonl")
PROMPTS_VARIABLE = "OUTPACE_PROMPTS"
TEXT_SUFFIXES = (".txt", ".md")
"""Of files that are one prompt each."""

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
    """One prompt of a file. turns: what the user says, one after another.

    before: (role, content) of what was said before the first of the turns.
    """

    label: str
    category: str
    turns: tuple[str, ...]
    before: tuple[tuple[str, str], ...] = ()

    def prompt(self, tokenizer: Tokenizer, answers: Sequence[str] = ()) -> BenchPrompt:
        """The turn after `answers`, in the model's chat template; the bare texts, one below the
        other, for a model without one."""
        num_turns = len(answers) + 1
        label = self.label if num_turns == 1 else f"{self.label} turn {num_turns}"
        messages = list(self.before)
        for text, answer in zip(self.turns, answers, strict=False):
            messages += [("user", text), ("assistant", answer)]
        messages.append(("user", self.turns[len(answers)]))
        return BenchPrompt(label, self.category, tuple(_encode(messages, tokenizer)))


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
    """`fitting` among the questions of `paths`."""
    return fitting(
        read_questions(paths),
        tokenizer,
        per_category=per_category,
        max_tokens=max_tokens,
        seed=seed,
    )


def read_questions(paths: Sequence[Path]) -> list[Question]:
    """All questions of files, in their order.

    A file of text (.txt, .md) is one prompt. Any other holds JSON lines, each an object with
    `turns` (of the user, as in Spec-Bench), `prompt` or `messages` (up to the last of the user),
    and perhaps a `category`, without which the file's name is one.
    Raises OptionError with the file and the line for what is no prompt, and for a file without any.
    """
    found: dict[str, Question] = {}
    for question in (question for path in paths for question in _read(Path(path))):
        label, number = question.label, 1
        while label in found:
            number += 1
            label = f"{question.label} ({number})"
        found[label] = replace(question, label=label)
    return list(found.values())


def fitting(
    questions: Sequence[Question],
    tokenizer: Tokenizer,
    *,
    per_category: int,
    max_tokens: int,
    seed: int,
) -> list[Question]:
    """At most `per_category` questions of each category whose first turn has no more than
    `max_tokens` tokens, category by category in order of appearance.

    The same seed picks the same questions. Raises OptionError if nothing fits.
    """
    by_category: dict[str, list[Question]] = {}
    for question in questions:
        by_category.setdefault(question.category, []).append(question)
    found: list[Question] = []
    for category, those in by_category.items():
        rng, num_found = random.Random(f"{seed}{category}"), 0
        for question in rng.sample(those, len(those)):
            if num_found == per_category:
                break
            if len(question.prompt(tokenizer).token_ids) <= max_tokens:
                found.append(question)
                num_found += 1
    if not found:
        raise OptionError(
            f"none of the {len(questions)} prompts has at most {max_tokens} tokens; give shorter "
            "ones, or allow longer ones"
        )
    return found


def _encode(messages: Sequence[tuple[str, str]], tokenizer: Tokenizer) -> list[int]:
    """Ids of a conversation that is to be continued."""
    if tokenizer.chat_template is None:
        return tokenizer.encode("\n".join(content for _, content in messages))
    turns = [{"role": role, "content": content} for role, content in messages]
    return tokenizer.encode(tokenizer.apply_chat_template(turns), add_special_tokens=False)


def _read(path: Path) -> Iterator[Question]:
    if path.suffix.lower() in TEXT_SUFFIXES:
        text = read_text(path).strip()
        if not text:
            raise OptionError(f"{path} is empty; a file of text is one prompt")
        yield Question(path.stem, path.stem, (text,))
        return
    rows = list(read_rows(path))
    if not rows:
        raise OptionError(f"{path} holds no prompt; expected a JSON object on each line")
    is_spec_bench = any(row.get("category") in _SPEC_BENCH_TASKS for _, row in rows)
    for number, (where, row) in enumerate(rows, 1):
        category = optional_text(row, "category", where) or path.stem.removesuffix("_dev")
        if is_spec_bench and category in _CONVERSATION:
            category = "conversation"
        label = row.get("question_id", row.get("task_id", f"{path.stem} {number}"))
        *before, (_, text) = messages_of_row(row, where)
        yield Question(str(label), category, (text, *_later_turns(row, where)), tuple(before))


def _later_turns(row: dict[str, Any], where: str) -> tuple[str, ...]:
    later = row["turns"][1:] if "turns" in row and "prompt" not in row else []
    if not all(isinstance(text, str) for text in later):
        raise OptionError(f"{where}: turns must be a list of strings, got {row['turns']!r:.60}")
    return tuple(later)
