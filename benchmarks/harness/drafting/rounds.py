"""Prompts decoded by several methods, right after each other, while there is time."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.methods import OutpaceMethod
from harness.progress import BenchProgress
from harness.prompts import BenchPrompt
from harness.results import Run
from outpace import SamplingParams
from outpace.errors import OutpaceError

WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Part:
    """Methods that are compared on one path, on what, and where their runs go.

    decodings: sampling parameters by what they are called. laps: groups of prompts; the clock is
    looked at between them. before: by label of a prompt those that are answered before it.
    """

    path: str
    name: str
    methods: Sequence[OutpaceMethod]
    decodings: Mapping[str, SamplingParams]
    laps: Sequence[Sequence[BenchPrompt]]
    before: Mapping[str, Sequence[BenchPrompt]]
    runs: list[Run]

    def units(self, lap: Sequence[BenchPrompt]) -> int:
        """Work of a lap; a unit is about one token."""
        answers = sum(1 + len(self.before.get(prompt.label, ())) for prompt in lap)
        num_tokens = sum(params.max_tokens or 0 for params in self.decodings.values())
        return answers * num_tokens * len(self.methods)

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
        longest = 0.0
        for number in range(repeats * len(self.laps)):
            round_index, lap_index = divmod(number, len(self.laps))
            lap = self.laps[lap_index]
            started = time.perf_counter()
            if number:
                if started + longest > deadline:
                    break
                progress.expect(self.units(lap))
            for place, prompt in enumerate(lap):
                progress.describe(f"{self.path}: {self.name}, {prompt.category}")
                self._compare(prompt, round_index, number + place, progress, note)
            longest = max(longest, time.perf_counter() - started)

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
            for method in (*self.methods[shift:], *self.methods[:shift]):
                timing = method.generate(prompt.token_ids, params, before)
                run = Run.of(self.path, decoding, round_index, prompt, method.name, timing)
                self.runs.append(run)
                progress.tick((params.max_tokens or 0) * (1 + len(before)))
                if timing.stats.num_drafter_errors:
                    note(f"{self.path}: {method.name} FAILED and went on plain; see the log")


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
