"""The steps of a trace in milliseconds and counts: plain values to draw a chart from.

`bench` has them of runs that nothing traces (`measure/bench/steps.py`).
"""

from __future__ import annotations

from typing import TypedDict

from outpace.measure.trace.records import Step, Trace


class TimelineStep(TypedDict):
    """One step over all its sequences. draft_ms: in drafters. pass_ms: in the target pass.
    rest_ms: probabilities, verification, text and bookkeeping. num_drafted: draft tokens that were
    verified. num_tokens: output tokens."""

    draft_ms: float
    pass_ms: float
    rest_ms: float
    num_drafted: int
    num_tokens: int


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
