"""The prompts of a benchmark: read, put through the chat template, and picked fairly."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

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
    """One prompt of a file. messages: (role, content) of what is said, last by the user."""

    label: str
    category: str
    messages: tuple[tuple[str, str], ...]

    @classmethod
    def from_user(cls, label: str, category: str, text: str) -> Question:
        return cls(label, category, (("user", text),))

    def prompt(self, tokenizer: Tokenizer) -> BenchPrompt:
        """In the model's chat template; the bare texts, one below the other, for a model without
        one."""
        return BenchPrompt(self.label, self.category, tuple(_encode(self.messages, tokenizer)))


def default_files() -> tuple[Path, ...]:
    """spec_bench_dev.jsonl in the directory OUTPACE_PROMPTS if that is set, and humaneval_dev.jsonl
    if that is there as well; else the built-in set."""
    folder = os.environ.get(PROMPTS_VARIABLE)
    if not folder:
        return (BUILT_IN,)
    first, second = (Path(folder) / f"{name}_dev.jsonl" for name in ("spec_bench", "humaneval"))
    return (first, second) if second.is_file() else (first,)


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
    `prompt`, `turns` (of the user, as in Spec-Bench; the first is asked) or `messages` (up to the
    last of the user), and perhaps a `category`, without which the file's name is one.
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
    """At most `per_category` questions of each category that have no more than `max_tokens` tokens,
    category by category in order of appearance.

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
        yield Question.from_user(path.stem, path.stem, text)
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
        yield Question(str(label), category, messages_of_row(row, where))
