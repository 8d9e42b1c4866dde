"""Groups of requests decoded by several methods, right after each other, while there is time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from harness.auto.prompts import Group
from harness.auto.results import BatchRun
from harness.progress import BenchProgress
from outpace.errors import OutpaceError
from outpace.measure.bench.rounds import WARM_UP_TOKENS, run_laps
from outpace.measure.kept import KeptEngine


@dataclass(frozen=True, slots=True)
class BatchPart:
    """Methods that are compared on one path, on what, and where their runs go.

    laps: lists of groups; the clock is looked at between them.
    """

    path: str
    name: str
    methods: Sequence[KeptEngine]
    laps: Sequence[Sequence[Group]]
    runs: list[BatchRun]

    def units(self, lap: Sequence[Group]) -> int:
        """Work of a lap; a unit is about one token."""
        return len(self.methods) * sum(group.num_tokens for group in lap)

    def warmed_up(self, note: Callable[[str], None]) -> BatchPart:
        """The same with every method that can serve this path, after it generated a few tokens for
        the largest group of the first lap; `note` is told of the others."""
        largest = max(self.laps[0], key=lambda group: len(group.prompts))
        params = [replace(own, max_tokens=WARM_UP_TOKENS) for own in largest.params]
        usable = []
        for method in self.methods:
            try:
                method.generate_batch([p.token_ids for p in largest.prompts], params)
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
        """As `Part.run`."""

        def run_lap(lap: Sequence[Group], round_index: int, number: int) -> None:
            if number:
                progress.expect(self.units(lap))
            for place, group in enumerate(lap):
                progress.describe(f"{self.path}: {self.name}, {group.label}")
                # Nobody always comes first.
                shift = (number + place) % len(self.methods)
                for method in (*self.methods[shift:], *self.methods[:shift]):
                    self.runs.append(self._run_group(group, round_index, method, note))
                    progress.tick(group.num_tokens)

        run_laps(self.laps, repeats, deadline, run_lap)

    def _run_group(
        self,
        group: Group,
        round_index: int,
        method: KeptEngine,
        note: Callable[[str], None],
    ) -> BatchRun:
        timing = method.generate_batch([p.token_ids for p in group.prompts], group.params)
        if any(answer.stats.num_drafter_errors for answer in timing.answers):
            note(f"{self.path}: {method.name} FAILED and went on plain; see the log")
        return BatchRun(
            self.path,
            group.part,
            group.decoding,
            round_index,
            group.label,
            method.name,
            tuple(prompt.label for prompt in group.prompts),
            tuple(prompt.category for prompt in group.prompts),
            timing,
        )
