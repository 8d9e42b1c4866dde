"""What was decided, what was expected of it, and what came of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import NamedTuple

CAPACITY = 4096
"""How many of the newest steps are kept."""

WINDOW = 32
"""Steps over which tokens are added up before they are compared with what was expected."""


class RequestRecord(NamedTuple):
    """One request's part in a step. source: which drafter its draft came from, or "none"."""

    seq_id: int
    source: str
    drafted: int
    accepted: int


@dataclass(slots=True)
class StepRecord:
    """One step of the engine.

    num_rows: rows fed to the target, num_seqs and all draft tokens. context: cached tokens of the
    sequences together. predicted_tokens, predicted_s: what the plan expected; predicted_s is 0
    where there was no plan. num_tokens: output tokens of the step. draft_s, target_s: seconds in
    drafters and in the target pass; step_s: in the whole step. reading_s: of predicted_s, for the
    trained drafter's reading of text that it had not read, which serves later steps too.
    """

    step: int
    num_seqs: int
    num_rows: int
    context: int
    requests: list[RequestRecord]
    predicted_tokens: float
    predicted_s: float
    num_tokens: int
    draft_s: float
    target_s: float
    step_s: float
    reading_s: float = 0.0


@dataclass(slots=True)
class SourceTotals:
    """What one source of drafts has done. steps: how often a request used it in a step."""

    steps: int = 0
    drafted: int = 0
    accepted: int = 0


class PredictionErrors(NamedTuple):
    """How far predictions were off, relative to what was measured; 0 without any.

    time_error, median_time_error: mean and median over steps of |predicted - measured| seconds.
    token_error: the same of output tokens, mean over windows of 32 steps whose tokens are added up
        first: how many tokens one step yields is random, and a plan predicts the expectation.
    num_steps: how many steps had a prediction.
    """

    time_error: float
    median_time_error: float
    token_error: float
    num_steps: int


class Economy(NamedTuple):
    """What the steps of one sequence cost, as known when it was asked for.

    pass_s: seconds of a step without its drafting, by rows: the first is plain decoding's.
    trained: the trained drafter's method, None without one. draft_s: seconds it takes for drafts of
    0, 1, ... tokens.
    """

    pass_s: Sequence[float]
    trained: str | None = None
    draft_s: Sequence[float] = (0.0,)


class DecisionLog:
    """The newest steps, and totals over all of them.

    totals: what each source of drafts has done since the beginning.
    num_steps: steps recorded since the beginning.
    economy: says what steps cost by now, for those who explain the decisions; None: nobody does.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.economy: Callable[[], Economy] | None = None
        self.totals: dict[str, SourceTotals] = {}
        self.num_steps = 0
        self._records: deque[StepRecord] = deque(maxlen=capacity)

    def add(self, record: StepRecord) -> None:
        self.num_steps += 1
        self._records.append(record)
        for _, source, drafted, accepted in record.requests:
            totals = self.totals.get(source)
            if totals is None:
                totals = self.totals[source] = SourceTotals()
            totals.steps += 1
            totals.drafted += drafted
            totals.accepted += accepted

    def tail(self, n: int) -> list[StepRecord]:
        """The newest n records that are kept, oldest first."""
        records = list(self._records)
        return records[max(0, len(records) - n) :]

    def errors(self) -> PredictionErrors:
        """How far the predictions of the kept steps were off."""
        planned = [record for record in list(self._records) if record.predicted_s > 0]
        times = [abs(r.predicted_s - r.step_s) / r.step_s for r in planned if r.step_s > 0]
        tokens = _token_errors(planned)
        return PredictionErrors(
            fmean(times) if times else 0.0,
            median(times) if times else 0.0,
            fmean(tokens) if tokens else 0.0,
            len(planned),
        )


def _token_errors(records: list[StepRecord]) -> list[float]:
    """The relative error of each full window, or of all records where they do not fill one."""
    errors = []
    for start in range(0, max(len(records) - WINDOW, 0) + 1, WINDOW):
        window = records[start : start + WINDOW]
        measured = sum(record.num_tokens for record in window)
        predicted = sum(record.predicted_tokens for record in window)
        if measured:
            errors.append(abs(predicted - measured) / measured)
    return errors
