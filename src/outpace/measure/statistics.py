"""Intervals and tests: how far a measured number can be trusted, and what a sample can show.

Intervals are for 95 % and over prompts, which differ in earnest; rounds of the same prompt do not
count as more data. Tests compare a sample with a law that is known exactly.

scipy is imported where it is used: it is slow to import, and most of the program needs none of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from jaxtyping import Float, Integer

from outpace.errors import OptionError

MIN_PROMPTS = 3
"""Fewer prompts than this get no interval."""
MIN_EXPECTED = 5.0
"""Cells of a chi-square test in which fewer samples are expected are pooled."""
CONFIDENCE = 0.95

_MAX_SAMPLES = 10**12
_BEYOND_DOUBT, _DOUBTED = 1e-9, 0.01
_NUM_SIMULATED, _SIMULATED_TOGETHER = 100_000, 5_000
_ENOUGH_REACHED = 50

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ratio:
    """A mean over prompts; low and high bound its 95 % interval, None for too few prompts."""

    mean: float
    low: float | None
    high: float | None
    num_prompts: int


def geometric_mean(ratios: Float[np.ndarray, " n"]) -> Ratio:
    """Of positive ratios, one per prompt, with Student's t interval of their logarithms.

    What the interval covers, in percent, measured in 4000 experiments each with n = 3 | 8 | 20 | 80
    prompts, beside the percentile bootstrap, which is too narrow for few prompts:

    - normal logarithms: 95 | 95 | 95 | 95; bootstrap 73 | 89 | 92 | 95
    - heavy tails (t, 4 degrees of freedom): 96 | 95 | 95 | 95; bootstrap 74 | 87 | 92 | 93
    - skewed (exponential): 88 | 89 | 92 | 94; bootstrap 67 | 84 | 90 | 94
    - one prompt in five gains twice as much: 64 | 83 | 92 | 95; bootstrap 47 | 82 | 91 | 94

    Nothing helps in the last case with few prompts: often none of the other kind is among them.
    """
    logs = np.log(ratios)
    mean, count = float(logs.mean()), len(logs)
    if count < MIN_PROMPTS:
        return Ratio(math.exp(mean), None, None, count)
    half = _t_quantile(count) * float(logs.std(ddof=1)) / math.sqrt(count)
    return Ratio(math.exp(mean), math.exp(mean - half), math.exp(mean + half), count)


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """(low, high): Wilson's 95 % interval of a share; (0, 1) where nothing was tried."""
    if trials == 0:
        return 0.0, 1.0
    z = _normal_quantile()
    share = successes / trials
    middle = share + z**2 / (2 * trials)
    half = z * math.sqrt(share * (1 - share) / trials + (z / (2 * trials)) ** 2)
    scale = 1 + z**2 / trials
    # Rounding must not put the share itself outside.
    return min((middle - half) / scale, share), max((middle + half) / scale, share)


@dataclass(frozen=True, slots=True)
class ChiSquare:
    """Pearson's test of a sample against a law.

    num_cells: after pooling; dof is one less. impossible: samples of what has probability 0 in the
    law; a single one makes p_value 0.
    """

    statistic: float
    dof: int
    p_value: float
    num_samples: int
    num_cells: int
    impossible: int


def chi_square(
    counts: Integer[np.ndarray, " V"], law: Float[np.ndarray, " V"], *, simulate: bool = False
) -> ChiSquare:
    """How well `counts` fit `law`; outcomes of which fewer than 5 are expected form one cell.

    Where fewer than two cells are left, nothing can be told: p_value 1, unless something
    impossible was seen.

    simulate: take a small p_value from up to 100,000 samples of the law, as long as one of them is
    as far off; beyond, and by default, it is that of the chi-square distribution.
    """
    from scipy.stats import chi2

    law = _normalised(law)
    num_samples, impossible = int(counts.sum()), int(counts[law == 0].sum())
    cells = _cells(law, num_samples)
    expected = num_samples * _pooled(law, cells)
    observed = _pooled(counts, cells)
    statistic = float(((observed - expected) ** 2 / expected).sum()) if num_samples else 0.0
    dof = len(expected) - 1
    p_value = float(chi2.sf(statistic, dof)) if dof else 1.0
    if simulate and _BEYOND_DOUBT < p_value < _DOUBTED:
        p_value = max(p_value, _simulated_p_value(statistic, expected))
    return ChiSquare(
        statistic=statistic,
        dof=dof,
        p_value=0.0 if impossible else p_value,
        num_samples=num_samples,
        num_cells=len(expected),
        impossible=impossible,
    )


def _simulated_p_value(statistic: float, expected: Float[np.ndarray, " cells"]) -> float:
    """The share of samples from the law whose statistic is as large; 0 where none is.

    Far out, the statistic of a skewed law exceeds chi-square's quantiles several times as often as
    it should, even with a hundred samples expected in its rarest cell.
    """
    num_samples = round(float(expected.sum()))
    rng = np.random.default_rng(0)
    reached = simulated = 0
    for _ in range(_NUM_SIMULATED // _SIMULATED_TOGETHER):
        drawn = rng.multinomial(num_samples, expected / expected.sum(), size=_SIMULATED_TOGETHER)
        statistics = ((drawn - expected) ** 2 / expected).sum(axis=1)
        reached += int((statistics >= statistic * (1 - 1e-12)).sum())
        simulated += _SIMULATED_TOGETHER
        if reached >= _ENOUGH_REACHED:
            break
    return reached / simulated


def chi_square_power(
    law: Float[np.ndarray, " V"],
    alternative: Float[np.ndarray, " V"],
    num_samples: int,
    level: float = 0.01,
) -> float:
    """Probability that `chi_square` of samples drawn from `alternative` has p_value < level.

    From the noncentral chi-square distribution, so for many samples and a small difference; what
    pooling hides is hidden here too, and what is impossible in `law` is found by a single sample.
    """
    from scipy.stats import chi2, ncx2

    law, alternative = _normalised(law), _normalised(alternative)
    cells = _cells(law, num_samples)
    expected, drawn = _pooled(law, cells), _pooled(alternative, cells)
    dof = len(expected) - 1
    missed = 1.0
    if dof:
        shift = num_samples * float(((drawn - expected) ** 2 / expected).sum())
        missed = 1 - float(ncx2.sf(chi2.isf(level, dof), dof, shift))
    outside = min(float(alternative[law == 0].sum()), 1.0)
    return 1 - missed * (1 - outside) ** num_samples


def samples_needed(
    law: Float[np.ndarray, " V"],
    alternative: Float[np.ndarray, " V"],
    level: float = 0.01,
    power: float = 0.95,
) -> int | None:
    """Samples with which `chi_square` finds `alternative` with at least this power.

    About the smallest such number: pooling makes the power jump a little. None where no number of
    samples would do, because the laws are equal.
    """

    def enough(num_samples: int) -> bool:
        return chi_square_power(law, alternative, num_samples, level) >= power

    high = 1
    while not enough(high):
        high *= 2
        if high > _MAX_SAMPLES:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def hardest_bias(law: Float[np.ndarray, " V"], distance: float) -> Float[np.ndarray, " V"]:
    """The law at this total-variation distance from `law` that chi-square finds hardest to see.

    Half of the mass gains in proportion and half loses. With halves of equal mass no other law at
    the distance has a smaller sum of (a - l)^2 / l, namely 4 distance^2, so that a sample in which
    this one would be found shows any bias of that size, as far as pooling lets it be seen.
    Raises OptionError where only one outcome is possible: there any bias is an impossible outcome.
    """
    assert 0 <= distance <= 0.5, f"a distance of {distance}"
    law = _normalised(law)
    if np.count_nonzero(law) < 2:
        raise OptionError("the law has only one possible outcome, so no bias within it")
    gains = np.zeros(len(law), dtype=bool)
    balance = 0.0
    for cell in np.argsort(-law, kind="stable"):
        gains[cell] = balance < 0
        balance += law[cell] if gains[cell] else -law[cell]
    mass = float(law[gains].sum())
    if mass > 0.5:
        # What loses must be the heavier half: it has to have that much.
        gains, mass = ~gains, 1 - mass
    factors = np.where(gains, 1 + distance / mass, 1 - distance / (1 - mass))
    biased: Float[np.ndarray, " V"] = law * factors
    return biased


def total_variation(left: Float[np.ndarray, " V"], right: Float[np.ndarray, " V"]) -> float:
    """Half of the sum of the absolute differences of two laws."""
    return 0.5 * float(np.abs(left - right).sum())


def holm(p_values: Sequence[float]) -> list[float]:
    """p values adjusted for being several (Holm's method), in the same order.

    Rejecting those below a level rejects any true law of all with at most that probability,
    however the tests depend on each other.
    """
    adjusted, worst = [0.0] * len(p_values), 0.0
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    for rank, index in enumerate(order):
        worst = max(worst, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = worst
    return adjusted


def first_difference(left: Sequence[object], right: Sequence[object]) -> int | None:
    """Index of the first differing token (or character); None if the lists are equal."""
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return None if len(left) == len(right) else min(len(left), len(right))


def unique(values: Iterable[T]) -> list[T]:
    """Each value once, in order of first appearance."""
    return list(dict.fromkeys(values))


def _normalised(law: Float[np.ndarray, " V"]) -> Float[np.ndarray, " V"]:
    law = np.asarray(law, dtype=np.float64)
    total = law.sum()
    assert abs(total - 1) < 1e-3, f"probabilities add up to {total}"
    assert (law >= 0).all(), "a probability is negative"
    normalised: Float[np.ndarray, " V"] = law / total
    return normalised


def _cells(law: Float[np.ndarray, " V"], num_samples: int) -> Integer[np.ndarray, " V"]:
    """The cell of every outcome: 0 for what is pooled, -1 for the impossible, others alone."""
    expected = num_samples * law
    cells = np.zeros(len(law), dtype=np.int64)
    alone = expected >= MIN_EXPECTED
    rest = float(expected[~alone].sum())
    if 0 < rest < MIN_EXPECTED and alone.any():
        # The pool itself is too small: the smallest other cell joins it.
        alone[np.flatnonzero(alone)[expected[alone].argmin()]] = False
    cells[alone] = 1 + np.arange(int(alone.sum()))
    cells[law == 0] = -1
    return cells


def _pooled(
    values: Float[np.ndarray, " V"] | Integer[np.ndarray, " V"], cells: Integer[np.ndarray, " V"]
) -> Float[np.ndarray, " cells"]:
    """Sums of `values` over the cells that exist, in the order of their numbers."""
    kept = cells >= 0
    _, places = np.unique(cells[kept], return_inverse=True)
    sums: Float[np.ndarray, " cells"] = np.bincount(places, weights=values[kept])
    return sums


def _t_quantile(count: int) -> float:
    from scipy.stats import t

    return float(t.ppf((1 + CONFIDENCE) / 2, count - 1))


def _normal_quantile() -> float:
    from scipy.stats import norm

    return float(norm.ppf((1 + CONFIDENCE) / 2))
