"""From logits to the distribution a request asked for, and draws from it.

One function makes probabilities. The target's p, a draft model's q, the residual and the bonus
token all come from `probabilities`, so no two of them can disagree about a parameter.

Order of the steps, as in vLLM: temperature, min_p, top_k, top_p. The order matters for top_p
only: its mass is counted after min_p and top_k have removed tokens and the rest was renormalised.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from outpace.errors import ModelError
from outpace.types import SamplingParams

Number = float | int | Fraction

_DRAW_BLOCK = 512
_SEARCH_BLOCK = 64


def probabilities(
    logits: Float[Tensor, "n V"], params: Sequence[SamplingParams]
) -> Float[Tensor, "n V"]:
    """The distribution each row's parameters ask for, [n, V]; float32, or float64 for float64.

    params: one per row. Greedy rows (temperature 0) become an exact one-hot of the most probable
    token. Ties, here and at the edge of top_k and top_p, go to the smaller token id. Logits of
    -inf are allowed, as long as one token of the row is left. `logits` is not changed.

    The result lies in host memory, where verification reads it: one copy for all rows if the
    logits are on another device. A row's result is the same bit for bit whatever rows stand
    beside it: every operation either is exact or reduces one row on its own.
    Raises ModelError for rows with NaN or +inf, or without any token.
    """
    assert len(params) == logits.shape[0], f"{logits.shape[0]} rows, {len(params)} parameters"
    logits = logits.cpu()
    logits = logits if logits.dtype == torch.float64 else logits.float()
    groups: dict[tuple[float, ...], list[int]] = {}
    for row, asked in enumerate(params):
        key = (asked.temperature, asked.top_k, asked.top_p, asked.min_p)
        groups.setdefault((0.0,) if asked.is_greedy else key, []).append(row)
    if len(groups) == 1:
        return _same_parameters(logits, params[0])
    result = torch.empty_like(logits)
    for rows in groups.values():
        index = torch.tensor(rows)
        result[index] = _same_parameters(logits[index], params[rows[0]])
    return result


def _same_parameters(logits: Float[Tensor, "n V"], asked: SamplingParams) -> Float[Tensor, "n V"]:
    if asked.is_greedy:
        highest, first = logits.max(dim=-1, keepdim=True)
        check_finite(highest)
        return torch.zeros_like(logits).scatter_(1, first, 1.0)
    highest = logits.amax(dim=-1, keepdim=True)
    check_finite(highest)
    shifted = logits - highest
    for step in _STEPS:
        step(shifted.numpy(), asked)
    return torch.softmax(shifted, dim=-1)


def check_finite(highest: Float[Tensor, "..."]) -> None:
    """Raise ModelError if a row's highest logit is NaN or infinite."""
    if not torch.isfinite(highest).all():
        raise ModelError(
            "the model computed logits that are NaN or infinite; its weights are damaged, or they "
            "overflow in this dtype (try float32)"
        )


# The filters below work on numpy views of host memory: on a row of a large vocabulary its
# comparisons, selections and sorts take a fraction of torch's time.


def _temperature(shifted: Float[np.ndarray, "n V"], asked: SamplingParams) -> None:
    """Divide by the temperature. The maximum is already 0, so nothing can overflow upwards."""
    if asked.temperature != 1.0:
        with np.errstate(over="ignore"):  # downwards it may: to a probability of 0
            np.divide(shifted, max(asked.temperature, np.finfo(shifted.dtype).tiny), out=shifted)


def _min_p(shifted: Float[np.ndarray, "n V"], asked: SamplingParams) -> None:
    """Forbid tokens less probable than min_p times the most probable one (whose logit is 0)."""
    if asked.min_p > 0.0:
        np.copyto(shifted, -np.inf, where=shifted < math.log(asked.min_p))


def _top_k(shifted: Float[np.ndarray, "n V"], asked: SamplingParams) -> None:
    """Keep exactly the k most probable tokens."""
    if 0 < asked.top_k < shifted.shape[-1]:
        for row in shifted:
            outside = _outside(row, _highest(row, asked.top_k + 1), asked.top_k)
            np.copyto(row, -np.inf, where=outside)


def _top_p(shifted: Float[np.ndarray, "n V"], asked: SamplingParams) -> None:
    """Keep the smallest set of most probable tokens whose mass reaches top_p.

    A token stays if the mass before it, in descending order, is below top_p: the token that
    crosses the line stays, and so does always the first.
    """
    if asked.top_p == 1.0:
        return
    for row, p in zip(shifted, torch.softmax(torch.from_numpy(shifted), -1).numpy(), strict=True):
        # All tokens below this line together weigh at most 1 - top_p, so the others reach top_p
        # without them, and only those need sorting. Rounding of the sum may leave them short.
        line = (1.0 - asked.top_p) / p.size
        for candidates in (p.compress(p >= line), p):
            highest = _descending(candidates)
            mass = np.cumsum(highest, dtype=np.float64)
            if mass[-1] >= asked.top_p:
                break
        count = 1 + int(np.searchsorted(mass[:-1], asked.top_p))
        np.copyto(row, -np.inf, where=_outside(p, highest, count))


def _highest(values: Float[np.ndarray, " V"], size: int) -> Float[np.ndarray, " size"]:
    """The `size` highest values, in descending order."""
    num_blocks = values.size // _SEARCH_BLOCK
    if num_blocks <= size:
        return _descending(values)[:size]
    # At least `size` values are no lower than the `size`-th highest of the block maxima, and not
    # many more: only those are sorted.
    maxima = values[: num_blocks * _SEARCH_BLOCK].reshape(num_blocks, -1).max(axis=1)
    line = _descending(maxima)[size - 1]
    return _descending(values.compress(values >= line))[:size]


def _descending(values: Float[np.ndarray, " m"]) -> Float[np.ndarray, " m"]:
    return -np.sort(-values)


def _outside(
    values: Float[np.ndarray, " V"], highest: Float[np.ndarray, " m"], count: int
) -> Bool[np.ndarray, " V"]:
    """Mark everything but the `count` highest values; ties stay in order of token id.

    highest: the m highest values in descending order. Values not among them must be lower than
    the count-th, unless m > count.
    """
    edge = highest[count - 1]
    outside = values < edge
    if count < highest.size and highest[count] == edge:
        equal = values == edge
        room = count - int((values > edge).sum())
        outside |= equal & (np.cumsum(equal) > room)
    return outside


# Each step changes logits [n, V], whose row maxima are 0, for rows that share their parameters.
# Processors that look at a row's own history (penalties, bias, bad words, a grammar) belong
# before the rows are grouped, in `probabilities`: there each row still has a history of its own,
# the committed tokens plus the draft tokens before it.
_STEPS: tuple[Callable[[np.ndarray, " SamplingParams"], None], ...] = (
    _temperature,
    _min_p,
    _top_k,
    _top_p,
)


def draw(weights: Shaped[np.ndarray, " V"], coin: Number) -> int:
    """Draw an index with probability proportional to its weight.

    Returns the smallest y with cumsum(weights)[y] > coin * sum(weights).
    weights: non-negative, not all zero, float32, float64 or object (Fraction, then all is exact);
        they need not sum to 1. Sums are float64 whatever the weights are.
    coin: in [0, 1). An index of zero weight is never returned.
    """
    exact = weights.dtype == object
    offset, dtype = 0, None if exact else np.float64
    target: Number | None = None
    if not exact and weights.size > _DRAW_BLOCK:
        # Two levels: sums of blocks, then one block; a full cumulative sum costs five times more.
        starts = np.arange(0, weights.size, _DRAW_BLOCK)
        sums = np.cumsum(np.add.reduceat(weights, starts, dtype=np.float64))
        block = _first_above(sums, float(coin) * float(sums[-1]))
        target = float(coin) * float(sums[-1]) - (float(sums[block - 1]) if block else 0.0)
        offset = block * _DRAW_BLOCK
        weights = weights[offset : offset + _DRAW_BLOCK]
    sums = np.cumsum(weights, dtype=dtype)
    if target is None:
        target = Fraction(coin) * sums[-1] if exact else float(coin) * float(sums[-1])
    return offset + _first_above(sums, target)


def _first_above(sums: Shaped[np.ndarray, " n"], target: Number) -> int:
    """The first index whose cumulative sum exceeds `target`; at the latest the last increase.

    Only rounding can leave `target` at the total; the last increase is the last positive weight.
    """
    assert sums[-1] > 0, "there is no mass to draw from"
    index = int(np.searchsorted(sums, target, side="right"))  # type: ignore[call-overload]
    return index if index < sums.size else int(np.searchsorted(sums, sums[-1], side="left"))


def raw_logprobs(
    logits: Float[Tensor, "n V"], chosen_ids: Sequence[int], num_top: int
) -> list[list[tuple[int, float, int]]]:
    """Log-probabilities to report, from the raw logits (no temperature, no filtering).

    Returns for each row (token id, log-probability, rank): the chosen token first, then the
    `num_top` most probable ones in order of rank, without naming the chosen token twice.
    Rank 1 is the most probable token; ties rank by smaller id.
    """
    logits = logits.cpu()
    logits = logits if logits.dtype == torch.float64 else logits.float()
    ids = np.arange(logits.shape[-1])
    num_top = min(num_top, ids.size)
    report: list[list[tuple[int, float, int]]] = []
    for values, chosen in zip(torch.log_softmax(logits, -1).numpy(), chosen_ids, strict=True):
        value = values[chosen]
        before = (values > value) | ((values == value) & (ids < chosen))
        entries = [(int(chosen), float(value), 1 + int(before.sum()))]
        if num_top:
            outside = _outside(values, _highest(values, min(num_top + 1, ids.size)), num_top)
            top_ids = np.flatnonzero(~outside)
            order = np.argsort(-values[top_ids], kind="stable")
            entries.extend(
                (int(token), float(values[token]), rank)
                for rank, token in enumerate(top_ids[order], start=1)
                if token != chosen
            )
        report.append(entries)
    return report
