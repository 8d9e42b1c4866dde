"""The steps of a generation in milliseconds and counts: plain values to draw a chart from.

A `Timeline` collects them while an engine runs, for the price of looking at a verdict; `steps_of`
takes them from a trace.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypedDict

from outpace.engine.instruments import Instruments
from outpace.measure.trace.records import Step, Trace
from outpace.measure.trace.watch import SeenStep, Watcher


class TimelineStep(TypedDict):
    """One step over all its sequences. draft_ms: in drafters. pass_ms: in the target pass.
    rest_ms: probabilities, verification, text and bookkeeping. num_drafted: draft tokens that were
    verified. num_tokens: output tokens."""

    draft_ms: float
    pass_ms: float
    rest_ms: float
    num_drafted: int
    num_tokens: int


@dataclass(slots=True)
class Timeline:
    """The steps of an engine since it was made or since `clear`.

        timeline = Timeline()
        llm = LLM(model, speculative_config=..., instruments=timeline.instruments())

    Read `steps` while nothing runs. Steps that only fed prompts are left out.
    """

    steps: list[TimelineStep] = field(default_factory=list)

    def instruments(self) -> Instruments:
        """What to give to `LLM`."""
        return Watcher(self._add, rows="none").instruments

    def clear(self) -> None:
        self.steps.clear()

    def _add(self, step: SeenStep) -> None:
        if not step.sequences:
            return
        times = step.times
        self.steps.append(
            TimelineStep(
                draft_ms=1000 * times.draft_s,
                pass_ms=1000 * times.target_s,
                rest_ms=1000 * times.rest_s,
                num_drafted=sum(seen.draft.num_verified for seen in step.sequences),
                num_tokens=sum(len(seen.kept.token_ids) for seen in step.sequences),
            )
        )


def steps_of(trace: Trace) -> list[TimelineStep]:
    """The steps of a trace that gave output, what recording took left out."""
    return [_timeline_step(step) for step in trace.steps if step.sequences]


def _timeline_step(step: Step) -> TimelineStep:
    return TimelineStep(
        draft_ms=1000 * step.draft_s,
        pass_ms=1000 * step.target_s,
        rest_ms=1000 * step.rest_s,
        num_drafted=sum(len(part.nodes) for part in step.sequences),
        num_tokens=sum(len(part.output) for part in step.sequences),
    )
