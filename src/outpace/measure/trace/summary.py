"""What the steps of a trace add up to."""

from __future__ import annotations

from collections.abc import Sequence

from outpace.measure.acceptance import Acceptances
from outpace.measure.trace.records import PositionSummary, Step, Summary, TracedAnswer


def summarise(
    steps: Sequence[Step], answers: list[TracedAnswer], *, complete: bool, wall_s: float
) -> Summary:
    """See `Summary`. steps: all of them, in order."""
    giving = [step for step in steps if step.num_tokens]
    parts = [part for step in steps for part in step.sequences if part.output]
    output = [token for part in parts for token in part.output]
    decode_s = sum(step.step_s for step in giving[1:])
    acceptances = acceptances_of(steps)
    return Summary(
        complete=complete,
        answers=answers,
        num_steps=len(giving),
        num_output_tokens=len(output),
        num_draft_tokens=sum(len(part.nodes) for part in parts),
        num_accepted_tokens=sum(token.node is not None for token in output),
        acceptance_length=len(output) / len(parts) if parts else 0.0,
        alpha=acceptances.alpha,
        positions=[
            PositionSummary(i, at.num_reached, at.num_accepted, at.alpha)
            for i, at in enumerate(acceptances.positions, start=1)
            if at.alpha is not None
        ],
        decode_tokens_per_s=(
            sum(step.num_tokens for step in giving[1:]) / decode_s if decode_s > 0 else None
        ),
        draft_s=sum(step.draft_s for step in steps),
        target_s=sum(step.target_s for step in steps),
        rest_s=sum(step.rest_s for step in steps),
        recorder_s=sum(step.recorder_s for step in steps),
        wall_s=wall_s,
    )


def acceptances_of(steps: Sequence[Step]) -> Acceptances:
    """The acceptance probabilities of all positions that the rule came to."""
    found = Acceptances()
    for step in steps:
        for part in step.sequences:
            taken = {node.parent for node in part.nodes if node.outcome in ("accepted", "cut")}
            for position in part.reached:
                if position.alpha is not None:
                    found.count(
                        position.depth - 1, position.alpha, is_accepted=position.after in taken
                    )
    return found
