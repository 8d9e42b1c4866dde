"""Prompts decoded by several methods, right after each other, while there is time."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from harness.progress import BenchProgress
from harness.results import Run
from outpace import SamplingParams
from outpace.errors import OutpaceError
from outpace.measure.prompts import BenchPrompt
from outpace.measure.timing import Timing

WARM_UP_TOKENS = 8

Lap = TypeVar("Lap")


class PromptMethod(Protocol):
    """One way to decode a prompt. name: how tables call it."""

    name: str

    def generate(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        before: Sequence[Sequence[int]] = (),
    ) -> Timing: ...


@dataclass(frozen=True, slots=True)
class Part:
    """Methods that are compared on one path, on what, and where their runs go.

    decodings: sampling parameters by what they are called. laps: groups of prompts; the clock is
    looked at between them. before: by label of a prompt those that are answered before it.
    greedy_only: names of methods that do not sample.
    """

    path: str
    name: str
    methods: Sequence[PromptMethod]
    decodings: Mapping[str, SamplingParams]
    laps: Sequence[Sequence[BenchPrompt]]
    before: Mapping[str, Sequence[BenchPrompt]]
    runs: list[Run]
    greedy_only: frozenset[str] = frozenset()

    def units(self, lap: Sequence[BenchPrompt]) -> int:
        """Work of a lap; a unit is about one token."""
        answers = sum(1 + len(self.before.get(prompt.label, ())) for prompt in lap)
        num_tokens = sum(
            (params.max_tokens or 0) * len(self._able(self.methods, params))
            for params in self.decodings.values()
        )
        return answers * num_tokens

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
            for place, prompt in enumerate(lap):
                progress.describe(f"{self.path}: {self.name}, {prompt.category}")
                self._compare(prompt, round_index, number + place, progress, note)

        run_laps(
            self.laps, repeats, deadline, lambda lap: progress.expect(self.units(lap)), run_lap
        )

    def _compare(
        self,
        prompt: BenchPrompt,
        round_index: int,
        turn: int,
        progress: BenchProgress,
        note: Callable[[str], None],
    ) -> None:
        before = [earlier.token_ids for earlier in self.before.get(prompt.label, ())]
        # Nobody always comes first.
        shift = turn % len(self.methods)
        for decoding, params in self.decodings.items():
            for method in self._able((*self.methods[shift:], *self.methods[:shift]), params):
                timing = method.generate(prompt.token_ids, params, before)
                run = Run.of(self.path, decoding, round_index, prompt, method.name, timing)
                self.runs.append(run)
                progress.tick((params.max_tokens or 0) * (1 + len(before)))
                if timing.stats.num_drafter_errors:
                    note(f"{self.path}: {method.name} FAILED and went on plain; see the log")

    def _able(self, methods: Sequence[PromptMethod], params: SamplingParams) -> list[PromptMethod]:
        return [m for m in methods if params.is_greedy or m.name not in self.greedy_only]


def run_laps(
    laps: Sequence[Lap],
    repeats: int,
    deadline: float,
    announce: Callable[[Lap], None],
    run_lap: Callable[[Lap, int, int], None],
) -> None:
    """All laps, then all again, up to `repeats` times, while the next is expected to end before
    `deadline`. run_lap gets a lap, the number of the round and that of the lap since the start;
    all laps but the first, which always runs, are announced."""
    longest = 0.0
    for number in range(repeats * len(laps)):
        round_index, lap_index = divmod(number, len(laps))
        started = time.perf_counter()
        if number:
            if started + longest > deadline:
                break
            announce(laps[lap_index])
        run_lap(laps[lap_index], round_index, number)
        longest = max(longest, time.perf_counter() - started)


def laps_by_category(
    conversations: Sequence[Sequence[BenchPrompt]],
) -> list[list[BenchPrompt]]:
    """Lap i: the i-th conversation of every category, with all its turns."""
    by_category: dict[str, list[Sequence[BenchPrompt]]] = {}
    for prompts in conversations:
        by_category.setdefault(prompts[0].category, []).append(prompts)
    longest = max(map(len, by_category.values()))
    return [
        [prompt for those in by_category.values() for turns in those[i : i + 1] for prompt in turns]
        for i in range(longest)
    ]


def prompts_before(
    conversations: Sequence[Sequence[BenchPrompt]], count: int, seed: int
) -> dict[str, list[BenchPrompt]]:
    """For each prompt, by label, `count` first turns of other conversations."""
    found = {}
    for prompts in conversations:
        others = [turns[0] for turns in conversations if turns is not prompts]
        for prompt in prompts:
            rng = random.Random(f"{seed}{prompt.label}")
            found[prompt.label] = rng.sample(others, min(count, len(others)))
    return found
