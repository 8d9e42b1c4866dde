"""A step that is over but for the account of the time it took."""

from __future__ import annotations

from dataclasses import dataclass

from outpace.control.costs import PassShape
from outpace.control.decisions import RequestRecord, StepRecord
from outpace.control.goodput import Plan
from outpace.types import StepTimes

MUCH = 0.25
"""Share of a step's time from which on its reading makes it unlike other steps."""


@dataclass(slots=True)
class OpenStep:
    """What was decided of a step, and what came of it.

    plan: None where nothing was asked. feeds_prompts: the target was fed prompts. reading_s:
    seconds that the plan has for reading by the trained drafter. num_tokens: output tokens.
    """

    plan: Plan | None
    shape: PassShape
    regime: str
    feeds_prompts: bool
    reading_s: float
    num_tokens: int
    requests: list[RequestRecord]

    @property
    def reads_much(self) -> bool:
        """Whether much of it was for reading."""
        return self.plan is not None and self.reading_s > MUCH * self.plan.seconds

    @property
    def is_steady(self) -> bool:
        """Whether its time says something of other steps."""
        return not (self.feeds_prompts or self.reads_much)

    @property
    def is_planned(self) -> bool:
        """Whether it was planned for all its sequences: some may be decoded plainly, or have their
        next tokens forced by a grammar."""
        return self.plan is not None and len(self.plan.choices) == self.shape.num_seqs

    def record(self, number: int, times: StepTimes) -> StepRecord:
        """number: of the step. A plan for some of its sequences predicts nothing of the whole."""
        predicts = self.is_planned and not self.feeds_prompts
        return StepRecord(
            step=number,
            num_seqs=self.shape.num_seqs,
            num_rows=self.shape.num_rows,
            context=self.shape.context,
            requests=self.requests,
            predicted_tokens=self.plan.num_tokens if self.plan and predicts else 0.0,
            predicted_s=self.plan.seconds if self.plan and predicts else 0.0,
            num_tokens=self.num_tokens,
            draft_s=times.draft_s,
            target_s=times.target_s,
            step_s=times.step_s,
            reading_s=self.reading_s if predicts else 0.0,
        )
