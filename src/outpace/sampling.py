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
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

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

    A row's result is the same bit for bit whatever rows stand beside it: every operation either
    is exact or reduces one row on its own.
    """
    assert len(params) == logits.shape[0], f"{logits.shape[0]} rows, {len(params)} parameters"
    logits = logits if logits.dtype == torch.float64 else logits.float()
    groups: dict[tuple[float, ...], list[int]] = {}
    for row, asked in enumerate(params):
        key = (asked.temperature, asked.top_k, asked.top_p, asked.min_p)
        groups.setdefault((0.0,) if asked.is_greedy else key, []).append(row)
    if len(groups) == 1:
        return _same_parameters(logits, params[0])
    result = torch.empty_like(logits)
    for rows in groups.values():
        index = torch.tensor(rows, device=logits.device)
        result[index] = _same_parameters(logits[index], params[rows[0]])
    return result


def _same_parameters(logits: Float[Tensor, "n V"], asked: SamplingParams) -> Float[Tensor, "n V"]:
    if asked.is_greedy:
        highest, first = logits.max(dim=-1, keepdim=True)
        _check_finite(highest)
        return torch.zeros_like(logits).scatter_(1, first, 1.0)
    highest = logits.amax(dim=-1, keepdim=True)
    _check_finite(highest)
    shifted = logits - highest
    for step in _STEPS:
        step(shifted, asked)
    return torch.softmax(shifted, dim=-1)


def _check_finite(highest: Float[Tensor, "n 1"]) -> None:
    if not torch.isfinite(highest).all():
        raise RuntimeError(
            "internal error: a row of logits holds NaN or +inf, or forbids every token"
        )


def _temperature(shifted: Float[Tensor, "n V"], asked: SamplingParams) -> None:
    """Divide by the temperature. The maximum is already 0, so nothing can overflow upwards."""
    if asked.temperature != 1.0:
        shifted /= max(asked.temperature, torch.finfo(shifted.dtype).tiny)


def _min_p(shifted: Float[Tensor, "n V"], asked: SamplingParams) -> None:
    """Forbid tokens less probable than min_p times the most probable one (whose logit is 0)."""
    if asked.min_p > 0.0:
        shifted.masked_fill_(shifted < math.log(asked.min_p), -torch.inf)


def _top_k(shifted: Float[Tensor, "n V"], asked: SamplingParams) -> None:
    """Keep exactly the k most probable tokens."""
    if 0 < asked.top_k < shifted.shape[-1]:
        highest = _highest(shifted, asked.top_k + 1)
        count = torch.full_like(shifted[:, :1], asked.top_k, dtype=torch.int64)
        shifted.masked_fill_(_outside(shifted, highest, count), -torch.inf)


def _top_p(shifted: Float[Tensor, "n V"], asked: SamplingParams) -> None:
    """Keep the smallest set of most probable tokens whose mass reaches top_p.

    A token stays if the mass before it, in descending order, is below top_p: the token that
    crosses the line stays, and so does always the first.
    """
    if asked.top_p == 1.0:
        return
    for row, p in zip(shifted, torch.softmax(shifted, dim=-1), strict=True):
        # All tokens below this line together weigh at most 1 - top_p, so the others reach top_p
        # without them, and only those need sorting. Rounding of the sum may leave them short.
        line = (1.0 - asked.top_p) / p.numel()
        for candidates in (p[p >= line], p):
            highest = _descending(candidates)
            mass = highest.cumsum(dim=0, dtype=torch.float64)
            if mass[-1] >= asked.top_p:
                break
        count = 1 + int((mass[:-1] < asked.top_p).sum())
        following = highest if count < len(highest) else torch.cat([highest, highest.new_zeros(1)])
        row.masked_fill_(
            _outside(p[None], following[None], torch.tensor([[count]], device=p.device))[0],
            -torch.inf,
        )


def _highest(values: Float[Tensor, "n V"], size: int) -> Float[Tensor, "n size"]:
    """Each row's `size` highest values, in descending order."""
    blocks = values.shape[-1] // _SEARCH_BLOCK
    if values.device.type != "cpu" or blocks <= size:
        return values.topk(size, dim=-1).values
    # Selecting from a whole row is dear on a CPU. At least `size` values are no lower than the
    # `size`-th highest of the block maxima, and not many more: only those are sorted.
    whole = values[:, : blocks * _SEARCH_BLOCK]
    maxima = whole.reshape(len(values), blocks, _SEARCH_BLOCK).amax(dim=-1)
    line = maxima.topk(size, dim=-1).values[:, -1:]
    return torch.stack(
        [_descending(row[keep])[:size] for row, keep in zip(values, values >= line, strict=True)]
    )


def _descending(values: Float[Tensor, " m"]) -> Float[Tensor, " m"]:
    """The values in descending order; on CPUs numpy sorts several times faster than torch."""
    if values.device.type != "cpu":
        return values.sort(descending=True).values
    return torch.from_numpy(-np.sort(-values.numpy()))


def _outside(
    values: Float[Tensor, "n V"], highest: Float[Tensor, "n m"], count: Int[Tensor, "n 1"]
) -> Bool[Tensor, "n V"]:
    """Mark everything but each row's `count` highest values; ties stay in order of token id.

    highest: the row's m highest values in descending order; m > count, or m = V.
    """
    edge = highest.gather(1, count - 1)
    outside = values < edge
    following = highest.gather(1, count.clamp(max=highest.shape[1] - 1))
    split = (count < highest.shape[1]) & (following == edge)
    tied = split.squeeze(1).nonzero().squeeze(1)
    if len(tied):
        equal = values[tied] == edge[tied]
        num_above = (values[tied] > edge[tied]).sum(dim=-1, keepdim=True)
        outside[tied] |= equal & (equal.cumsum(dim=-1) > count[tied] - num_above)
    return outside


# Each step changes logits [n, V], whose row maxima are 0, for rows that share their parameters.
# Processors that look at a row's own history (penalties, bias, bad words, a grammar) belong
# before the rows are grouped, in `probabilities`: there each row still has a history of its own,
# the committed tokens plus the draft tokens before it.
_STEPS: tuple[Callable[[Tensor, SamplingParams], None], ...] = (
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
    values = torch.log_softmax(logits if logits.dtype == torch.float64 else logits.float(), dim=-1)
    chosen = torch.as_tensor(chosen_ids, dtype=torch.int64, device=values.device).unsqueeze(1)
    chosen_values = values.gather(1, chosen)
    ids = torch.arange(values.shape[-1], device=values.device)
    before = (values > chosen_values) | ((values == chosen_values) & (ids < chosen))
    ranks = 1 + before.sum(dim=-1)
    report = [
        [entry]
        for entry in zip(chosen_ids, chosen_values.squeeze(1).tolist(), ranks.tolist(), strict=True)
    ]
    num_top = min(num_top, values.shape[-1])
    if num_top:
        highest = _highest(values, min(num_top + 1, values.shape[-1]))
        keep = ~_outside(values, highest, torch.full_like(chosen, num_top))
        top_ids = keep.nonzero()[:, 1].reshape(-1, num_top)
        top_values, order = values.gather(1, top_ids).sort(dim=-1, descending=True, stable=True)
        top_ids = top_ids.gather(1, order)
        for row, entries in enumerate(report):
            tops = zip(top_ids[row].tolist(), top_values[row].tolist(), strict=True)
            entries.extend(
                (token, value, rank)
                for rank, (token, value) in enumerate(tops, start=1)
                if token != entries[0][0]
            )
    return report
