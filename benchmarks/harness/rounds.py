"""Prompts decoded by several methods, right after each other, while there is time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Protocol

from harness.progress import BenchProgress
from harness.results import Run
from outpace import SamplingParams
from outpace.errors import OutpaceError
from outpace.measure.bench.rounds import WARM_UP_TOKENS, run_laps
from outpace.measure.prompts import BenchPrompt
from outpace.measure.timing import Timing


class PromptMethod(Protocol):
    """One way to decode a prompt. name: how tables call it."""

    name: str

    def generate(self, prompt: Sequence[int], params: SamplingParams) -> Timing: ...


@dataclass(frozen=True, slots=True)
class Part:
    """Methods that are compared on one path, on what, and where their runs go.

    decodings: sampling parameters by what they are called. laps: groups of prompts; the clock is
    looked at between them. greedy_only: names of methods that do not sample.
    """

    path: str
    name: str
    methods: Sequence[PromptMethod]
    decodings: Mapping[str, SamplingParams]
    laps: Sequence[Sequence[BenchPrompt]]
    runs: list[Run]
    greedy_only: frozenset[str] = frozenset()

    def units(self, lap: Sequence[BenchPrompt]) -> int:
        """Work of a lap; a unit is about one token."""
        num_tokens = sum(
            (params.max_tokens or 0) * len(self._able(self.methods, params))
            for params in self.decodings.values()
        )
        return len(lap) * num_tokens

    def warmed_up(self, note: Callable[[str], None]) -> Part:
        """The same with every method that can serve this path, after it generated a few tokens;
        `note` is told of the others."""
        usable = []
        warm_up = SamplingParams(temperature=0.0, max_tokens=WARM_UP_TOKENS)
        for method in self.methods:
            try:
                method.generate(self.laps[0][0].token_ids, warm_up)
            except OutpaceError as error:
                note(f"{self.path}: {method.name} was not measured: {error}")
            else:
                usable.append(method)
        return replace(self, methods=usable)

    def run(
        self,
        repeats: int,
        deadline: float,
        progress: BenchProgress,
        note: Callable[[str], None],
    ) -> None:
        """All laps, then all again, up to `repeats` times, while the next is expected to end before
        `deadline` (`time.perf_counter`). The first always runs, and must have been announced to
        `progress`; `note` is told what readers must know."""

        def run_lap(lap: Sequence[BenchPrompt], round_index: int, number: int) -> None:
            if number:
                progress.expect(self.units(lap))
            for place, prompt in enumerate(lap):
                progress.describe(f"{self.path}: {self.name}, {prompt.category}")
                self._compare(prompt, round_index, number + place, progress, note)

        run_laps(self.laps, repeats, deadline, run_lap)

    def _compare(
        self,
        prompt: BenchPrompt,
        round_index: int,
        turn: int,
        progress: BenchProgress,
        note: Callable[[str], None],
    ) -> None:
        # Nobody always comes first.
        shift = turn % len(self.methods)
        for decoding, params in self.decodings.items():
            for method in self._able((*self.methods[shift:], *self.methods[:shift]), params):
                timing = method.generate(prompt.token_ids, params)
                run = Run.of(self.path, decoding, round_index, prompt, method.name, timing)
                self.runs.append(run)
                progress.tick(params.max_tokens or 0)
                if timing.stats.num_drafter_errors:
                    note(f"{self.path}: {method.name} FAILED and went on plain; see the log")

    def _able(self, methods: Sequence[PromptMethod], params: SamplingParams) -> list[PromptMethod]:
        return [m for m in methods if params.is_greedy or m.name not in self.greedy_only]


def laps_by_category(prompts: Sequence[BenchPrompt]) -> list[list[BenchPrompt]]:
    """Lap i: the i-th prompt of every category."""
    by_category: dict[str, list[BenchPrompt]] = {}
    for prompt in prompts:
        by_category.setdefault(prompt.category, []).append(prompt)
    rows = zip_longest(*by_category.values())
    return [[prompt for prompt in row if prompt is not None] for row in rows]
