"""Groups of prompts decoded by several contenders, right after each other, while there is time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from outpace import SamplingParams
from outpace.errors import OutpaceError
from outpace.measure.bench.contenders import Contender
from outpace.measure.bench.groups import Group
from outpace.measure.bench.results import BenchRun

WARM_UP_TOKENS = 8

Lap = TypeVar("Lap")


class BenchProgress(Protocol):
    """Told what is being done, several times a second."""

    def describe(self, what: str) -> None: ...


def run_laps(
    laps: Sequence[Lap],
    repeats: int,
    deadline: float,
    run_lap: Callable[[Lap, int, int], None],
    clock: Callable[[], float] = time.perf_counter,
) -> None:
    """All laps, then all again, up to `repeats` times, while the next is expected to end before
    `deadline`, by the longest so far; the first always runs.

    run_lap gets a lap, the number of the round and that of the lap since the start.
    """
    longest = 0.0
    for number in range(repeats * len(laps)):
        round_index, lap_index = divmod(number, len(laps))
        started = clock()
        if number and started + longest > deadline:
            break
        run_lap(laps[lap_index], round_index, number)
        longest = max(longest, clock() - started)


@dataclass(frozen=True, slots=True)
class Rounds:
    """Contenders that are compared on the same groups of one size.

    temperatures: compared within each group. runs: where the results go. note: is told what readers
    must know.
    """

    label: str
    contenders: list[Contender]
    laps: Sequence[Sequence[Group]]
    batch: int
    temperatures: Sequence[float]
    max_tokens: int
    runs: list[BenchRun]
    progress: BenchProgress
    note: Callable[[str], None]

    def num_tokens(self, lap: Sequence[Group]) -> int:
        """Most output tokens of a lap."""
        pairs = sum(
            contender.takes(temperature, self.batch)
            for contender in self.contenders
            for temperature in self.temperatures
        )
        return len(lap) * self.batch * self.max_tokens * pairs

    def warm_up(self) -> None:
        """Let every contender generate a few tokens for the first group; leave out, with a note,
        those that cannot."""
        params = SamplingParams(temperature=0.0, max_tokens=min(WARM_UP_TOKENS, self.max_tokens))
        for contender in list(self.contenders):
            self.progress.describe(f"{self.label}: warming up {contender.name}")
            if not any(contender.takes(each, self.batch) for each in self.temperatures):
                self.contenders.remove(contender)
                continue
            try:
                contender.run(self.laps[0][0].token_ids, params)
                contender.check_rows(self.batch)
            except OutpaceError as error:
                self._leave_out(contender, error)
            except Exception as error:
                # Whatever stops another engine must not stop ours.
                if not contender.info.is_peer:
                    raise
                self._leave_out(contender, error)

    def run(self, repeats: int, deadline: float) -> None:
        """As `run_laps`."""
        run_laps(self.laps, repeats, deadline, self._run_lap)

    def _run_lap(self, lap: Sequence[Group], round_index: int, number: int) -> None:
        for place, group in enumerate(lap):
            self._compare(group, round_index, number + place)

    def _compare(self, group: Group, round_index: int, turn: int) -> None:
        for temperature in self.temperatures:
            params = SamplingParams(temperature=temperature, max_tokens=self.max_tokens)
            # Nobody always comes first.
            shift = turn % len(self.contenders)
            for contender in (*self.contenders[shift:], *self.contenders[:shift]):
                if contender.takes(temperature, self.batch):
                    self.progress.describe(f"{self.label}, {group.column}: {contender.name}")
                    self._run_one(group, round_index, contender, params)

    def _run_one(
        self, group: Group, round_index: int, contender: Contender, params: SamplingParams
    ) -> None:
        try:
            timing, steps = contender.run(group.token_ids, params)
        except Exception as error:
            if not contender.info.is_peer:
                raise
            self._leave_out(contender, error, "broke off")
            return
        if any(answer.stats.num_drafter_errors for answer in timing.answers):
            self.note(f"{self.label}: {contender.name} FAILED and went on plain; see the log")
        self.runs.append(
            BenchRun(
                temperature=params.temperature,
                batch=self.batch,
                round=round_index,
                group=group.label,
                column=group.column,
                method=contender.name,
                prompts=tuple(prompt.label for prompt in group.prompts),
                timing=timing,
                steps=steps,
            )
        )

    def _leave_out(
        self, contender: Contender, error: Exception, what: str = "was not measured"
    ) -> None:
        self.contenders.remove(contender)
        self.note(f"{self.label}: {contender.name} {what}: {error}")
