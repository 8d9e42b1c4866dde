"""What a drafter's claims are worth: believed at first, then as far as they came true."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import accumulate, pairwise
from math import log
from operator import mul

import numpy as np
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression

from outpace.control.acceptance import KNOTS, Calibration, _non_decreasing

CLAIMS = st.lists(st.floats(0.0, 1.0), max_size=6)
HISTORIES = st.lists(st.tuples(CLAIMS, st.integers(0, 6), st.booleans()), max_size=8)
GRID = [i / 100 for i in range(101)]


def opened() -> Calibration:
    calibration = Calibration()
    calibration.open(0, "greedy")
    return calibration


def worth(calibration: Calibration, seq_id: int = 0) -> list[float]:
    """What each claim of the grid is worth."""
    return [calibration.ladder(seq_id, [claim])[0] for claim in GRID]


def judge(
    calibration: Calibration,
    truth: Callable[[float], float],
    num_drafts: int,
    seed: int,
    seq_id: int = 0,
) -> float:
    """Let it see drafts whose claims come true as often as `truth` says. Returns by how much its
    estimates were better than the claims, in nats per judged token."""
    rng = random.Random(seed)
    better, judged = 0.0, 0
    for _ in range(num_drafts):
        claimed = [rng.choice((1.0, 0.99, rng.random(), rng.random() ** 0.3)) for _ in range(6)]
        ladder = calibration.ladder(seq_id, claimed)
        accepted = 0
        for claim, (before, after) in zip(claimed, pairwise([1.0, *ladder]), strict=True):
            came_true = rng.random() < truth(claim)
            ours, theirs = min(after / before, 0.999), min(claim, 0.999)
            better += log(ours / theirs) if came_true else log((1 - ours) / (1 - theirs))
            judged += 1
            if not came_true:
                break
            accepted += 1
        calibration.observe(seq_id, claimed, accepted, False)
    return better / judged


@settings(max_examples=examples(30))
@given(CLAIMS)
def test_at_first_claims_are_believed(claimed: list[float]) -> None:
    assert opened().ladder(0, claimed) == pytest.approx(list(accumulate(claimed, mul)), abs=1e-12)


@settings(max_examples=examples(30))
@given(HISTORIES, CLAIMS)
def test_a_ladder_never_rises_and_a_higher_claim_is_never_worth_less(
    history: list[tuple[list[float], int, bool]], claimed: list[float]
) -> None:
    calibration = opened()
    for claims, accepted, was_cut in history:
        calibration.observe(0, claims, min(accepted, len(claims)), was_cut)
    ladder = calibration.ladder(0, claimed)
    assert len(ladder) == len(claimed)
    assert all(before >= after >= 0 for before, after in pairwise([1.0 + 1e-12, *ladder]))
    assert all(low <= high + 1e-12 for low, high in pairwise(worth(calibration)))


@pytest.mark.parametrize(
    "truth",
    [lambda c: c**2, lambda c: 0.7 * c, lambda c: 0.5 * c + 0.4],
    ids=["squared", "less", "flatter"],
)
def test_it_learns_what_claims_are_worth(truth: Callable[[float], float]) -> None:
    calibration = opened()
    judge(calibration, truth, 3000, seed=1)
    calibration.open(1, "greedy")  # so that the regime speaks, with its long memory
    errors = [abs(a - truth(c)) for a, c in zip(worth(calibration, 1), GRID, strict=True)]
    assert sum(errors) / len(errors) < 0.06
    assert max(errors) < 0.2
    claimed = [abs(c - truth(c)) for c in GRID]
    assert sum(errors) < sum(claimed) / 2


def test_estimates_are_better_than_wrong_claims_and_hardly_worse_than_right_ones() -> None:
    assert judge(opened(), lambda claim: 0.75 * claim, 400, seed=2) > 0.1
    calibration = opened()
    judge(calibration, lambda claim: min(claim, 0.98), 300, seed=3)
    assert abs(judge(calibration, lambda claim: min(claim, 0.98), 300, seed=4)) < 0.03


def test_a_request_is_blended_with_its_regime_and_with_no_other() -> None:
    calibration = opened()
    judge(calibration, lambda claim: 0.5 * claim, 300, seed=5)
    calibration.open(1, "greedy")
    calibration.open(2, "sampled")
    assert calibration.ladder(1, [1.0])[0] < 0.7
    assert calibration.ladder(2, [1.0])[0] == 1.0
    for _ in range(20):
        calibration.observe(1, [1.0] * 4, 4, False)
    assert calibration.ladder(1, [1.0])[0] > 0.8
    assert calibration.ladder(0, [1.0])[0] < 0.7


def test_a_draft_that_was_cut_was_not_rejected() -> None:
    cut, rejected = opened(), opened()
    for _ in range(20):
        cut.observe(0, [0.9, 0.9, 0.9], 1, True)
        rejected.observe(0, [0.9, 0.9, 0.9], 1, False)
    assert cut.ladder(0, [0.9])[0] > 0.95
    assert rejected.ladder(0, [0.9])[0] < 0.7


def test_only_judged_claims_teach() -> None:
    one, other = opened(), opened()
    one.observe(0, [0.9, 0.5, 0.1, 0.2], 1, False)
    other.observe(0, [0.9, 0.5, 0.99, 0.8], 1, False)
    assert worth(one) == worth(other) != worth(opened())


def test_fading_and_releasing() -> None:
    calibration = opened()
    judge(calibration, lambda claim: 0.3 * claim, 60, seed=6)
    calibration.open(1, "greedy")
    calibration.fade(0, 0.0)
    assert worth(calibration, 0) == worth(calibration, 1)
    calibration.release(0)
    calibration.release(1)
    calibration.check_integrity()


VALUES = st.lists(st.tuples(st.floats(0, 1), st.floats(0.1, 100)), min_size=1, max_size=len(KNOTS))


@settings(max_examples=examples(30))
@given(VALUES)
def test_the_nearest_non_decreasing_values(pairs: list[tuple[float, float]]) -> None:
    values, weights = [list(column) for column in zip(*pairs, strict=True)]
    expected = isotonic_regression(values, weights=weights).x
    np.testing.assert_allclose(_non_decreasing(values, weights), expected, atol=1e-9)
