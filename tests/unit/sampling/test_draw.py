"""Draws by one coin: exact in rationals, in float64 sums, never a token without weight."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from outpace.sampling import draw


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=12).filter(any),
    st.floats(0, 1, exclude_max=True),
)
def test_draw_is_the_smallest_index_whose_cumulative_sum_exceeds(
    counts: list[int], coin: float
) -> None:
    exact = np.empty(len(counts), dtype=object)
    exact[:] = [Fraction(count, 7) for count in counts]
    target = Fraction(coin) * sum(exact)
    expected = next(y for y in range(len(counts)) if sum(exact[: y + 1]) > target)
    assert draw(exact, coin) == expected
    # Integers below 2**24 and their sums are exact in floats, so those must agree as well.
    assert draw(np.array(counts, np.float64), coin) in (expected, _rounded(counts, coin))
    assert draw(np.array(counts, np.float32), coin) in (expected, _rounded(counts, coin))


def _rounded(counts: list[int], coin: float) -> int:
    return int(np.searchsorted(np.cumsum(counts), coin * sum(counts), side="right"))


@pytest.mark.parametrize("dtype", [object, np.float64, np.float32])
def test_draw_has_the_weights_as_its_law(dtype: type) -> None:
    """Exactly: the coins that give y are an interval as long as y's share."""
    weights = np.array([0, 3, 0, 2, 1, 2, 0], dtype)
    coins = [i / 64 for i in range(64)]
    counts = np.bincount([draw(weights, coin) for coin in coins], minlength=7)
    assert list(counts) == [0, 24, 0, 16, 8, 16, 0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [3, 511, 512, 513, 5000])
def test_draw_never_returns_a_token_without_weight(size: int, dtype: type) -> None:
    rng = np.random.default_rng(size)
    coins = [0.0, 5e-324, 0.5, 1 - 2**-24, 1 - 2**-53, *rng.random(200)]
    for _ in range(20):
        weights = rng.random(size).astype(dtype)
        weights[rng.random(size) < 0.7] = 0
        weights[size // 2] = rng.choice([1e-12, 1.0])
        assert all(weights[draw(weights, coin)] > 0 for coin in coins)
    alone = np.zeros(size, dtype)
    alone[size - 1] = 1e-30
    assert {draw(alone, coin) for coin in coins} == {size - 1}


def test_draw_from_wide_rows_agrees_with_one_cumulative_sum() -> None:
    rng = np.random.default_rng(2)
    weights = rng.dirichlet(np.full(5000, 0.05)).astype(np.float32)
    sums = np.cumsum(weights, dtype=np.float64)
    for coin in rng.random(2000):
        expected = int(np.searchsorted(sums, coin * sums[-1], side="right"))
        assert draw(weights, coin) == expected


def test_draw_sums_in_float64() -> None:
    """In float32 a long tail of small weights would be lost; its share of the draws must not be."""
    weights = np.full(200_001, 1e-8, np.float32)
    weights[0] = 1.0
    tail = 200_000 * 1e-8
    assert draw(weights, 1 - 0.9 * tail / (1 + tail)) == pytest.approx(20_000, abs=50)


def test_draw_by_chance() -> None:
    rng = np.random.default_rng(4)
    p = rng.dirichlet(np.ones(8)).astype(np.float32)
    counts = np.bincount([draw(p, coin) for coin in rng.random(20_000)], minlength=8)
    shares = p / p.sum(dtype=np.float64)
    assert chisquare(counts, shares * 20_000).pvalue > 1e-4
    assert chisquare(counts, np.roll(shares, 1) * 20_000).pvalue < 1e-8


def test_draw_from_nothing_is_our_bug() -> None:
    with pytest.raises(AssertionError, match="no mass"):
        draw(np.zeros(4), 0.5)
