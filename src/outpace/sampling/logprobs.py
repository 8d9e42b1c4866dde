"""Log-probabilities to report beside the tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from outpace.sampling.filters import descending


def raw_logprobs(
    logits: Float[np.ndarray, "n V"], chosen_ids: Sequence[int], num_top: int
) -> list[list[tuple[int, float, int]]]:
    """Log-probabilities to report, from the raw logits (no temperature, no filtering).

    Returns for each row (token id, log-probability, rank): the chosen token first, then the
    `num_top` most probable ones in order of rank, without naming the chosen token twice.
    Rank 1 is the most probable token; ties rank by smaller id.
    """
    ids = np.arange(logits.shape[-1])
    num_top = min(num_top, ids.size)
    report: list[list[tuple[int, float, int]]] = []
    for row, chosen in zip(logits, chosen_ids, strict=True):
        values = _log_softmax(row)
        value = values[chosen]
        before = (values > value) | ((values == value) & (ids < chosen))
        entries = [(int(chosen), float(value), 1 + int(before.sum()))]
        if num_top:
            entries.extend(
                (int(token), float(values[token]), rank)
                for rank, token in enumerate(descending(values, num_top)[:num_top], start=1)
                if token != chosen
            )
        report.append(entries)
    return report


def _log_softmax(row: Float[np.ndarray, " V"]) -> Float[np.ndarray, " V"]:
    """log(softmax(row)), in the row's precision but for the sum."""
    values: Float[np.ndarray, " V"] = row - row.max()
    values -= values.dtype.type(np.log(np.exp(values).sum(dtype=np.float64)))
    return values
