"""Training prompts that a benchmark also asks: found by the words they have in a row."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as List
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from outpace.errors import OptionError
from outpace.files import read_text
from outpace.training.jsonl import read_rows
from outpace.training.prompts import JSON_SUFFIXES

NUM_WORDS = 13
"""Words in a row that two texts hardly share by chance (GPT-3, 2005.14165, appendix C)."""

# Scripts without spaces between words: each character counts as one.
_UNSPACED = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = re.compile(f"[{_UNSPACED}]|[^\\W_{_UNSPACED}]+")
_MOST_SHOWN = 3

Words = tuple[str, ...]


class Sourced(Protocol):
    """What is asked, and where it comes from: a Prompt or an Answer."""

    @property
    def text(self) -> str: ...

    @property
    def source(self) -> str: ...


P = TypeVar("P", bound=Sourced)


@dataclass(frozen=True, slots=True)
class Overlap:
    """A training prompt that holds a benchmark's words.

    index: of the prompt. benchmark: name of the file. words: the first of them, as normalised.
    """

    index: int
    benchmark: str
    words: str


class Benchmarks:
    """The runs of words of benchmark files.

    A benchmark prompt of fewer than `num_words` words is found where it is the whole of a training
    prompt: as a part it could be there by chance.
    """

    def __init__(self, paths: Iterable[Path], num_words: int = NUM_WORDS) -> None:
        """Raises OptionError for a file that cannot be read or holds no text."""
        self.num_words = num_words
        self._runs: dict[Words, str] = {}
        for path in map(Path, paths):
            texts = list(_texts(path))
            if not texts:
                raise OptionError(f"{path} holds no text to compare prompts with")
            for text in texts:
                for run in _runs(normalised_words(text), num_words):
                    self._runs.setdefault(run, path.name)

    def find(self, prompts: List[Sourced]) -> list[Overlap]:
        """The contaminated prompts among these, each with the first overlap in it."""
        found = (self._first(index, prompt) for index, prompt in enumerate(prompts))
        return [overlap for overlap in found if overlap is not None]

    def _first(self, index: int, prompt: Sourced) -> Overlap | None:
        for run in _runs(normalised_words(prompt.text), self.num_words):
            if run in self._runs:
                return Overlap(index, self._runs[run], " ".join(run))
        return None


def without_contaminated(
    prompts: List[P], benchmarks: Benchmarks, *, drop: bool = False
) -> tuple[list[P], str]:
    """(prompts, or answers, that share nothing with the benchmarks; a report of the others, or "").

    Raises OptionError with that report unless `drop`.
    """
    overlaps = benchmarks.find(prompts)
    if not overlaps:
        return list(prompts), ""
    report = describe(overlaps, prompts, benchmarks.num_words)
    if not drop:
        raise OptionError(
            f"{report}. A draft trained on them would look better on these benchmarks than it is: "
            "remove them, or ask for them to be dropped"
        )
    contaminated = {overlap.index for overlap in overlaps}
    return [p for i, p in enumerate(prompts) if i not in contaminated], report


def describe(overlaps: List[Overlap], prompts: List[Sourced], num_words: int) -> str:
    """How many prompts overlap with which benchmark, with examples."""
    by_benchmark: dict[str, list[Overlap]] = {}
    for overlap in overlaps:
        by_benchmark.setdefault(overlap.benchmark, []).append(overlap)
    parts = []
    for benchmark, found in by_benchmark.items():
        examples = "; ".join(
            f'"{overlap.words}" ({prompts[overlap.index].source})'
            for overlap in found[:_MOST_SHOWN]
        )
        verb = "prompt shares" if len(found) == 1 else "prompts share"
        parts.append(
            f"{len(found)} {verb} {num_words} words in a row (or all of its words) with "
            f"{benchmark}, for example {examples}"
        )
    return "; ".join(parts)


def normalised_words(text: str) -> list[str]:
    """Lower-case runs of letters and digits: spacing and punctuation make no difference."""
    return _WORD.findall(text.casefold())


def _runs(words: List[str], num_words: int) -> Iterator[Words]:
    """All runs of `num_words` words; of a shorter text all of it, marked as such by its length."""
    if words and len(words) < num_words:
        yield tuple(words)
    for start in range(len(words) - num_words + 1):
        yield tuple(words[start : start + num_words])


def _texts(path: Path) -> Iterator[str]:
    """Everything that a benchmark file asks: of JSON lines every string but names of things, of
    other files each line."""
    if path.suffix not in JSON_SUFFIXES:
        yield from (line for line in read_text(path).splitlines() if line.strip())
        return
    for where, row in read_rows(path):
        asked = [row[key] for key in ("prompt", "text", "turns", "messages") if key in row]
        if not asked:
            raise OptionError(
                f"{where}: expected a benchmark prompt: `prompt`, `text`, `turns` or `messages`"
            )
        yield from _strings(asked)


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for part in value:
            yield from _strings(part)
    elif isinstance(value, dict):
        yield from _strings(value.get("content"))
