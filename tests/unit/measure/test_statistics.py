"""The statistics themselves: intervals cover, tests reject what is biased and little else."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from outpace.errors import OptionError
from outpace.measure.statistics import (
    Ratio,
    chi_square,
    chi_square_power,
    first_difference,
    geometric_mean,
    hardest_bias,
    holm,
    samples_needed,
    total_variation,
    unique,
    wilson,
)

Draw = Callable[[np.random.Generator, int], np.ndarray]

# Logarithms of ratios, and their mean.
SHAPES: dict[str, tuple[Draw, float]] = {
    "normal": (lambda rng, n: rng.normal(0.4, 0.3, n), 0.4),
    "heavy tails": (lambda rng, n: 0.2 * rng.standard_t(4, n), 0.0),
    "skewed": (lambda rng, n: rng.exponential(0.3, n), 0.3),
}
# What is claimed to be covered, less four standard errors of 1000 experiments.
LEAST = {
    "normal": {3: 0.92, 8: 0.92, 20: 0.92, 80: 0.92},
    "heavy tails": {3: 0.92, 8: 0.92, 20: 0.92, 80: 0.92},
    "skewed": {3: 0.84, 8: 0.85, 20: 0.885, 80: 0.91},
}
MOST = 0.98


def half_as_wide(ratio: Ratio) -> Ratio:
    assert ratio.low is not None
    assert ratio.high is not None
    low, high = np.sqrt(ratio.mean * ratio.low), np.sqrt(ratio.mean * ratio.high)
    return Ratio(ratio.mean, float(low), float(high), ratio.num_prompts)


def covered(interval: Callable[[np.ndarray], Ratio], shape: str, n: int, count: int) -> float:
    """Share of `count` experiments of n prompts whose interval holds the true geometric mean."""
    draw, mean = SHAPES[shape]
    rng = np.random.default_rng(n)
    ratios = [interval(np.exp(draw(rng, n))) for _ in range(count)]
    return sum(r.low <= np.exp(mean) <= r.high for r in ratios) / count  # type: ignore[operator]


@pytest.mark.parametrize("n", [3, 8, 20, 80])
@pytest.mark.parametrize("shape", SHAPES)
def test_intervals_cover(shape: str, n: int) -> None:
    assert LEAST[shape][n] <= covered(geometric_mean, shape, n, 1000) <= MOST


@pytest.mark.parametrize("n", [3, 20])
@pytest.mark.parametrize("shape", SHAPES)
def test_intervals_half_as_wide_do_not(shape: str, n: int) -> None:
    share = covered(lambda ratios: half_as_wide(geometric_mean(ratios)), shape, n, 1000)
    assert share < LEAST[shape][n] - 0.05


def test_the_percentile_bootstrap_would_not_cover_with_few_prompts() -> None:
    def percentile(ratios: np.ndarray) -> Ratio:
        logs = np.log(ratios)
        picks = np.random.default_rng(0).integers(len(logs), size=(500, len(logs)))
        low, high = np.exp(np.percentile(logs[picks].mean(axis=1), [2.5, 97.5])).tolist()
        return Ratio(float(np.exp(logs.mean())), low, high, len(logs))

    assert covered(percentile, "normal", 8, 1000) < LEAST["normal"][8]


def test_means() -> None:
    assert geometric_mean(np.array([2.0, 8.0])) == Ratio(pytest.approx(4.0), None, None, 2)
    same = geometric_mean(np.array([1.5] * 4))
    assert same == Ratio(*[pytest.approx(1.5)] * 3, 4)
    # Student's interval, from scipy's own.
    logs = np.random.default_rng(0).normal(size=9)
    theirs = stats.t.interval(0.95, 8, loc=logs.mean(), scale=stats.sem(logs))
    mine = geometric_mean(np.exp(logs))
    assert np.log([mine.low, mine.high]) == pytest.approx(theirs)


def test_wilson() -> None:
    for successes, trials in ((0, 10), (3, 10), (10, 10), (980, 1000)):
        theirs = stats.binomtest(successes, trials).proportion_ci(method="wilson")
        assert wilson(successes, trials) == pytest.approx((theirs.low, theirs.high), abs=1e-9)
    assert wilson(0, 0) == (0.0, 1.0)
    drawn = np.random.default_rng(0).binomial(40, 0.9, 2000)
    inside = [low <= 0.9 <= high for low, high in (wilson(int(k), 40) for k in drawn)]
    assert 0.92 <= np.mean(inside) <= 0.98


LAW = np.array([0.4, 0.3, 0.15, 0.1, 0.05])
SKEWED = np.sort(np.random.default_rng(5).dirichlet(np.full(200, 0.1)))[::-1]
LEVEL, POWER = 0.01, 0.95


def rejected(
    law: np.ndarray, source: np.ndarray, num_samples: int, count: int, level: float = LEVEL
) -> float:
    """Share of `count` samples from `source` that the test tells from `law`."""
    rng = np.random.default_rng(1)
    samples = rng.multinomial(num_samples, source / source.sum(), size=count)
    return float(np.mean([chi_square(counts, law).p_value < level for counts in samples]))


def test_chi_square_is_pearsons() -> None:
    counts = np.array([35, 33, 16, 11, 5])
    found = chi_square(counts, LAW)
    theirs = stats.chisquare(counts, 100 * LAW)
    assert (found.statistic, found.p_value) == pytest.approx((theirs.statistic, theirs.pvalue))
    assert (found.dof, found.num_samples, found.num_cells, found.impossible) == (4, 100, 5, 0)


def test_rare_outcomes_are_pooled() -> None:
    law = np.array([0.5, 0.3, 0.1, 0.04, 0.04, 0.02])
    counts = np.array([52, 28, 9, 6, 3, 2])
    # 4, 4 and 2 expected of 100: one cell of 10.
    found = chi_square(counts, law)
    theirs = stats.chisquare([52, 28, 9, 11], [50, 30, 10, 10])
    assert (found.statistic, found.num_cells) == (pytest.approx(theirs.statistic), 4)
    # 3 are too few for a cell of their own: the smallest of the others takes them in.
    found = chi_square(np.array([50, 30, 17, 3]), np.array([0.5, 0.3, 0.17, 0.03]))
    assert found.num_cells == 3
    # Everything is rare, or all but one: there is nothing to compare.
    for rare in (np.full(100, 0.01), np.array([0.9, 0.06, 0.04])):
        found = chi_square(np.bincount([0], minlength=len(rare)), rare)
        assert (found.num_cells, found.dof, found.p_value) == (1, 0, 1.0)
    empty = chi_square(np.zeros(5, int), LAW)
    assert (empty.statistic, empty.p_value, empty.num_samples) == (0.0, 1.0, 0)


def test_a_single_impossible_sample_is_a_proof() -> None:
    law = np.array([0.6, 0.4, 0.0])
    assert chi_square(np.array([600, 400, 0]), law).p_value > 0.9
    found = chi_square(np.array([600, 399, 1]), law)
    assert (found.impossible, found.p_value) == (1, 0.0)
    # Even where nothing else could be told.
    assert chi_square(np.array([0, 0, 1]), np.array([1.0, 0.0, 0.0])).p_value == 0.0


@pytest.mark.parametrize("law", [LAW, SKEWED], ids=["few", "skewed"])
@pytest.mark.parametrize("num_samples", [200, 5000])
def test_true_samples_are_rejected_at_the_level(law: np.ndarray, num_samples: int) -> None:
    assert 0.03 <= rejected(law, law, num_samples, 1000, level=0.05) <= 0.08


@pytest.mark.parametrize("law", [LAW, SKEWED], ids=["few", "skewed"])
def test_a_bias_of_two_percent_is_rejected_at_the_stated_size(law: np.ndarray) -> None:
    hardest = hardest_bias(law, 0.02)
    assert total_variation(law, hardest) == pytest.approx(0.02)
    num_samples = samples_needed(law, hardest, LEVEL, POWER)
    assert num_samples is not None
    # Of 400 samples; four standard errors below the power, and as many above the level.
    assert rejected(law, hardest, num_samples, 400) >= POWER - 4 * np.sqrt(0.05 * 0.95 / 400)
    assert rejected(law, law, num_samples, 400) <= LEVEL + 4 * np.sqrt(0.01 * 0.99 / 400)
    # A quarter of that is not enough, so the number is no exaggeration.
    assert rejected(law, hardest, num_samples // 4, 400) < 0.7


@pytest.mark.parametrize("seed", range(4))
def test_other_biases_of_that_size_are_no_harder_to_see(seed: int) -> None:
    rng = np.random.default_rng(seed)
    change = rng.normal(size=len(LAW))
    change -= change.mean()
    biased = LAW + change * 0.02 / (0.5 * np.abs(change).sum())
    assert total_variation(LAW, biased) == pytest.approx(0.02)
    num_samples = samples_needed(LAW, hardest_bias(LAW, 0.02), LEVEL, POWER)
    assert num_samples is not None
    assert rejected(LAW, biased, num_samples, 200) >= POWER - 4 * np.sqrt(0.05 * 0.95 / 200)


@given(st.lists(st.floats(0.01, 1), min_size=2, max_size=8), st.floats(0.001, 0.5))
def test_the_hardest_bias(weights: list[float], distance: float) -> None:
    law = np.array(weights) / sum(weights)
    biased = hardest_bias(law, distance)
    assert (biased >= -1e-12).all()
    assert biased.sum() == pytest.approx(1)
    assert total_variation(law, biased) == pytest.approx(distance)
    shift = float(((biased - law) ** 2 / law).sum())
    assert shift >= 4 * distance**2 * (1 - 1e-9)


def test_the_hardest_bias_stays_within_what_is_possible() -> None:
    assert hardest_bias(np.array([0.5, 0.0, 0.5]), 0.1).tolist() == pytest.approx([0.4, 0.0, 0.6])
    with pytest.raises(OptionError, match="only one possible outcome"):
        hardest_bias(np.array([1.0, 0.0]), 0.02)


def test_power() -> None:
    biased = hardest_bias(LAW, 0.05)
    powers = [chi_square_power(LAW, biased, n, LEVEL) for n in (100, 1000, 3000, 10_000)]
    assert powers == sorted(powers)
    assert powers[0] < 0.1
    assert powers[-1] > 0.999
    assert rejected(LAW, biased, 1000, 2000) == pytest.approx(powers[1], abs=0.05)
    assert chi_square_power(LAW, LAW, 1000, 0.05) == pytest.approx(0.05)
    # One sample in a hundred is impossible: 300 samples hold one with 1 - 0.99^300.
    outside = np.array([0.59, 0.4, 0.01])
    law = np.array([0.6, 0.4, 0.0])
    assert chi_square_power(law, outside, 300, LEVEL) == pytest.approx(1 - 0.99**300, abs=0.01)


def test_samples_needed() -> None:
    assert samples_needed(LAW, LAW) is None
    for distance in (0.02, 0.1):
        biased = hardest_bias(LAW, distance)
        needed = samples_needed(LAW, biased, LEVEL, POWER)
        assert needed is not None
        assert chi_square_power(LAW, biased, needed, LEVEL) >= POWER
        assert chi_square_power(LAW, biased, int(0.95 * needed), LEVEL) < POWER
    # Where a bias is an impossible outcome, as many as it takes to see one.
    needed = samples_needed(np.array([1.0, 0.0]), np.array([0.98, 0.02]), LEVEL, POWER)
    assert needed == int(np.ceil(np.log(1 - POWER) / np.log(0.98)))


def test_several_tests_together() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.2]) == [0.2]
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []
    # Of 20 true laws none is rejected in 95 % of all cases; without adjusting hardly ever.
    p_values = np.random.default_rng(0).random((1000, 20))
    assert np.mean([min(holm(row.tolist())) < 0.05 for row in p_values]) < 0.08
    assert np.mean(p_values.min(axis=1) < 0.05) > 0.5
    # One that is false is still found.
    assert np.mean([holm([1e-4, *row[1:].tolist()])[0] < 0.05 for row in p_values]) == 1.0


def test_first_difference_and_unique() -> None:
    assert first_difference([1, 2, 3], [1, 2, 3]) is None
    assert first_difference([1, 2, 3], [1, 5, 3]) == 1
    assert first_difference([1, 2], [1, 2, 3]) == 2
    assert first_difference("abc", "") == 0
    assert unique(["b", "a", "b", "c", "a"]) == ["b", "a", "c"]
