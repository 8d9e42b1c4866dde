"""Draws from a row of weights, by one coin."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from jaxtyping import Shaped

Number = float | int | Fraction

_DRAW_BLOCK = 512


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
