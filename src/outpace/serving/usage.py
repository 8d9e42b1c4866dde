"""What a request used, in OpenAI's shape, and how its answers were drafted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outpace.engine.offered import PLAIN
from outpace.engine.request import RequestGroup
from outpace.outputs import SpeculationStats


def usage_of(groups: Sequence[RequestGroup]) -> dict[str, Any]:
    """Usage of a request that has ended: summed over its prompts and their answers."""
    outputs = [group.output() for group in groups]
    stats = SpeculationStats()
    for output in outputs:
        stats.add(output.stats)
    num_prompt = sum(len(output.prompt_token_ids) for output in outputs)
    num_completion = sum(len(answer.token_ids) for output in outputs for answer in output.outputs)
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_completion,
        "total_tokens": num_prompt + num_completion,
        "prompt_tokens_details": {
            "cached_tokens": sum(output.metrics.num_cached_tokens for output in outputs)
        },
        "completion_tokens_details": {
            "accepted_prediction_tokens": stats.num_accepted_tokens,
            "rejected_prediction_tokens": stats.num_draft_tokens - stats.num_accepted_tokens,
        },
        "speculation": {
            "method": _method_of(groups[0]),
            "num_draft_tokens": stats.num_draft_tokens,
            "num_accepted_tokens": stats.num_accepted_tokens,
            "acceptance_length": stats.acceptance_length,
            "num_target_passes": stats.num_steps,
            "accepted_per_position": stats.accepted_per_position,
            "drafted_per_position": stats.drafted_per_position,
        },
    }


def _method_of(group: RequestGroup) -> str:
    first = group.requests[0]
    return first.seq.method if first.draft_limit else PLAIN
