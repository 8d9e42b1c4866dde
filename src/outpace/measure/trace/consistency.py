"""What the records of a trace say of each other, which their types alone do not ensure."""

from __future__ import annotations

from collections.abc import Mapping

from outpace.errors import OptionError
from outpace.measure.trace.records import Header, SequenceStep, Step, Summary
from outpace.params import SamplingParams

_ROUNDING = 0.01


def inconsistency(record: Header | Step | Summary) -> str | None:
    """What in a record that was read contradicts the rest of it; None where nothing does."""
    if isinstance(record, Step):
        return _of_decision(record) or next(filter(None, map(_of_part, record.sequences)), None)
    if isinstance(record, Header):
        return _of_sampling(record.sampling)
    if isinstance(record, Summary):
        for at in record.positions:
            if not 0 <= at.num_accepted <= at.num_reached or not at.num_reached:
                return f"position {at.position} has {at.num_accepted} of {at.num_reached} accepted"
    return None


def _of_sampling(sampling: Mapping[str, object]) -> str | None:
    n = sampling.get("n", 1)
    if isinstance(n, bool) or not isinstance(n, int):
        return f"n cannot be {n!r:.40}"
    try:
        SamplingParams(n=n)
    except OptionError as error:
        return str(error)
    return None


def _of_decision(step: Step) -> str | None:
    for name in ("predicted_s", "predicted_tokens"):
        value = (step.decision or {}).get(name)
        if isinstance(value, bool) or not isinstance(value, int | float | None):
            return f"{name} cannot be {value!r:.40}"
    return None


def _of_part(part: SequenceStep) -> str | None:
    for number, node in enumerate(part.nodes):
        if not -1 <= node.parent < number:
            return f"draft token {number} cannot follow {node.parent}"
    if len(part.output) > len(part.reached):
        return f"{len(part.output)} tokens came at {len(part.reached)} places"
    for token in part.output:
        if token.node is not None and not 0 <= token.node < len(part.nodes):
            return f"there is no draft token {token.node}"
    if any(token.node is None for token in part.output[:-1]):
        return "a token follows the target's own"
    candidates = [candidate for position in part.positions for candidate in position.top]
    for logprob in [each.logprob for each in part.nodes] + [each.logprob for each in candidates]:
        if logprob is not None and logprob > _ROUNDING:
            return f"logprob cannot be {logprob}"
    return None
