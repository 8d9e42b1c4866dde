"""What a method decided while it was measured, and how well it foresaw what came of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Decided:
    """Sums over the steps of one generation, or one batch.

    steps, drafted, accepted: by source of drafts; a step counts once for each request in it, and
    "none" is a step without a draft. The rest is over steps for which there was a prediction:
    time_errors holds, for each, predicted over measured seconds, minus 1.
    """

    steps: dict[str, int] = field(default_factory=dict)
    drafted: dict[str, int] = field(default_factory=dict)
    accepted: dict[str, int] = field(default_factory=dict)
    num_planned: int = 0
    predicted_tokens: float = 0.0
    num_tokens: int = 0
    predicted_s: float = 0.0
    step_s: float = 0.0
    time_errors: list[float] = field(default_factory=list)

    @classmethod
    def of(cls, records: Iterable[Any]) -> Decided:
        """From records of `outpace.control.decisions.StepRecord`."""
        decided = cls()
        for record in records:
            for request in record.requests:
                _count(decided.steps, request.source, 1)
                _count(decided.drafted, request.source, request.drafted)
                _count(decided.accepted, request.source, request.accepted)
            if record.predicted_s > 0:
                decided.num_planned += 1
                decided.predicted_tokens += record.predicted_tokens
                decided.num_tokens += record.num_tokens
                decided.predicted_s += record.predicted_s
                decided.step_s += record.step_s
                decided.time_errors.append(record.predicted_s / record.step_s - 1)
        return decided

    @property
    def time_error(self) -> float | None:
        """Of the time of all planned steps together, relative to what was measured."""
        return self.predicted_s / self.step_s - 1 if self.step_s else None

    @property
    def token_error(self) -> float | None:
        """The same of their output tokens."""
        return self.predicted_tokens / self.num_tokens - 1 if self.num_tokens else None

    def add(self, other: Decided) -> None:
        for name in ("steps", "drafted", "accepted"):
            for source, count in getattr(other, name).items():
                _count(getattr(self, name), source, count)
        self.num_planned += other.num_planned
        self.predicted_tokens += other.predicted_tokens
        self.num_tokens += other.num_tokens
        self.predicted_s += other.predicted_s
        self.step_s += other.step_s
        self.time_errors.extend(other.time_errors)


class DecisionReader:
    """Reads an engine's decision log generation by generation; of methods that decide nothing there
    is none."""

    def __init__(self, llm: Any) -> None:
        self._log = llm.decisions
        self._num_read = 0

    def read(self) -> Decided | None:
        """What was decided since the last call."""
        if self._log is None:
            return None
        num_steps = self._log.num_steps
        records = self._log.tail(num_steps - self._num_read)
        self._num_read = num_steps
        return Decided.of(records)


def _count(counts: dict[str, int], source: str, more: int) -> None:
    counts[source] = counts.get(source, 0) + more
