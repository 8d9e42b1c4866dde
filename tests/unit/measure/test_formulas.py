"""The speed-up formulas, against the values recorded in tests/vectors and published figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outpace.errors import OptionError
from outpace.measure.formulas import (
    PassCosts,
    batch_speedup,
    best_k,
    crossover_batch,
    expected_tokens,
    free,
    free_speedup,
    implied_v,
    needed_alpha,
    simple_speedup,
    speedup,
)

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "vectors" / "golden.json").read_text(encoding="utf-8")
)
# What a pass costs where rows are dear.
DEAR = PassCosts.measured({1: 10.0, 2: 14.0, 4: 18.0, 8: 30.0})


@pytest.mark.parametrize("alpha", GOLDEN["E[tokens per step] (1-a^(K+1))/(1-a)"])
def test_expected_tokens(alpha: str) -> None:
    values = GOLDEN["E[tokens per step] (1-a^(K+1))/(1-a)"][alpha]
    for k, expected in values.items():
        assert expected_tokens(float(alpha), int(k)) == pytest.approx(expected, abs=1e-6)


def test_expected_tokens_by_position() -> None:
    assert expected_tokens([0.5, 0.4, 0.3], 3) == pytest.approx(1 + 0.5 + 0.2 + 0.06)
    assert expected_tokens([0.5, 0.4, 0.3], 1) == 1.5
    # Beyond the last known position it goes on like the last one.
    assert expected_tokens([0.5, 0.4], 4) == pytest.approx(1 + 0.5 + 0.2 + 0.08 + 0.032)
    assert expected_tokens([0.7], 4) == pytest.approx(expected_tokens(0.7, 4))
    assert expected_tokens([], 0) == expected_tokens(0.7, 0) == 1.0
    with pytest.raises(OptionError, match="no position is known"):
        expected_tokens([], 1)


def test_the_mean_of_simulated_runs() -> None:
    rng = np.random.default_rng(0)
    accepted = np.cumprod(rng.random((200_000, 4)) < [0.9, 0.5, 0.7, 0.2], axis=1).sum(axis=1)
    assert expected_tokens([0.9, 0.5, 0.7, 0.2], 4) == pytest.approx(
        1 + accepted.mean(), abs=4 * accepted.std() / np.sqrt(len(accepted))
    )


@pytest.mark.parametrize(
    "alpha", GOLDEN["optimal gamma and speedup (alpha -> c -> [gamma*,speedup])"]
)
def test_best_k(alpha: str) -> None:
    table = GOLDEN["optimal gamma and speedup (alpha -> c -> [gamma*,speedup])"][alpha]
    for c, (k, ratio) in table.items():
        found = best_k(float(alpha), float(c), free)
        assert found == (k, pytest.approx(ratio, abs=1e-4))


def test_best_k_is_the_best_of_all() -> None:
    ratios = [1.0] + [speedup(expected_tokens(0.8, k), k, 0.05, DEAR) for k in range(1, 65)]
    assert best_k(0.8, 0.05, DEAR) == (int(np.argmax(ratios)), max(ratios))
    assert best_k(0.8, 0.05, DEAR, max_k=2) == (2, ratios[2])
    # Where rows are dear, shorter drafts are best, and none pays that is seldom accepted.
    assert 0 < best_k(0.8, 0.05, DEAR)[0] < best_k(0.8, 0.05, free)[0]
    assert best_k(0.3, 0.05, DEAR) == (0, 1.0)
    assert best_k(0.3, 0.05, free)[0] > 0


def test_published_figures() -> None:
    """Those of the mission: 2.77 tokens a pass are 1.90 times the speed at c = 8/70, not 2.7."""
    assert expected_tokens(0.7, 4) == pytest.approx(2.7731)
    assert free_speedup(0.7, 4, 8 / 70) == pytest.approx(1.90, abs=0.005)
    # Corollary 3.9 of 2211.17192: the best gain where alpha > c is at least (1 + alpha)/(1 + c).
    assert free_speedup(0.5, 1, 0.5) == 1.0
    assert free_speedup(0.4, 1, 0.5) == pytest.approx(0.9333, abs=1e-4)
    assert best_k(0.6, 0.5, free) == (1, pytest.approx(1.0667, abs=1e-4))
    # Its Table 1, for drafts that cost nothing.
    for row in GOLDEN["Leviathan Table 1 recomputed (c=chat=0)"]:
        assert free_speedup(row["alpha"], row["gamma"], 0.0) == pytest.approx(
            row["speed_c0"], abs=1e-4
        )


@given(st.floats(0, 1), st.integers(1, 16), st.floats(0, 2))
def test_the_formula_in_circulation_overstates(alpha: float, k: int, c: float) -> None:
    simple, exact = simple_speedup(alpha, k, c), free_speedup(alpha, k, c)
    if k == 1 or alpha in (0.0, 1.0):
        assert simple == pytest.approx(exact)
    else:
        assert simple >= exact * (1 - 1e-12)
    if k > 1 and 0.05 < alpha < 0.95:
        assert simple > exact


def test_the_published_losses_imply_dear_verification() -> None:
    """0.35 to 0.68 times at K = 1 with next to nothing accepted, by drafts of a quarter of a pass
    and less: v(2) must have been 1.4 to 2.6, whatever else was wrong."""
    assert implied_v(0.68, expected_tokens(0.0, 1), 1, 0.07) == pytest.approx(1.4, abs=0.01)
    assert implied_v(0.35, expected_tokens(0.0, 1), 1, 0.26) == pytest.approx(2.6, abs=0.01)


@given(st.floats(0, 1), st.integers(1, 16), st.floats(0, 1), st.floats(1, 5))
def test_implied_v_inverts_the_speedup(alpha: float, k: int, c: float, v: float) -> None:
    expected = expected_tokens(alpha, k)
    assert implied_v(speedup(expected, k, c, v), expected, k, c) == pytest.approx(v)


@given(st.integers(1, 16), st.floats(0, 1), st.floats(1, 5))
def test_needed_alpha_breaks_even(k: int, c: float, v: float) -> None:
    alpha = needed_alpha(k, c, v)
    if alpha is None:
        assert speedup(expected_tokens(1.0, k), k, c, v) < 1
    elif alpha == 0.0:
        assert speedup(1.0, k, c, v) == pytest.approx(1)
    else:
        assert speedup(expected_tokens(alpha, k), k, c, v) == pytest.approx(1)


def test_needed_alpha() -> None:
    assert needed_alpha(1, 0.25, free) == pytest.approx(0.25)
    assert needed_alpha(1, 0.25, DEAR) == pytest.approx(0.65)
    assert needed_alpha(4, 0.0, free) == 0.0
    assert needed_alpha(1, 1.0, free) == pytest.approx(1.0)
    assert needed_alpha(1, 0.25, 1.8) is None


def test_pass_costs() -> None:
    assert [DEAR.at(n) for n in (1, 2, 4, 8)] == pytest.approx([1.0, 1.4, 1.8, 3.0])
    assert DEAR.at(3) == pytest.approx(1.6)
    assert DEAR.at(6) == pytest.approx(2.4)
    assert DEAR.at(10) == pytest.approx(3.6)
    assert DEAR(10) == DEAR.at(10)
    assert PassCosts.measured({1: 3.0}).at(7) == 1.0
    # Noise does not make more rows than were measured cheaper.
    assert PassCosts.measured({1: 1.0, 2: 2.0, 3: 1.5}).at(9) == 1.5
    for wrong in ({2: 1.0}, {1: 0.0, 2: 1.0}, {0: 1.0, 1: 1.0}, {}):
        with pytest.raises(OptionError, match="passes over 1 row"):
            PassCosts.measured(wrong)


def test_crossover_batch() -> None:
    """Passes that cost the same up to 16 rows and then by the row: a roofline."""

    def roofline(num_rows: int) -> float:
        return max(1.0, num_rows / 16)

    expected = expected_tokens(0.7, 3)
    # Below 4 requests the whole batch is free to verify, from 16 on every row costs its price.
    assert batch_speedup(expected, 3, 0.0, roofline, 1) == pytest.approx(2.533)
    assert batch_speedup(expected, 3, 0.0, roofline, 4) == pytest.approx(2.533)
    assert batch_speedup(expected, 3, 0.0, roofline, 16) == pytest.approx(2.533 / 4)
    assert batch_speedup(expected, 3, 0.0, roofline, 32) == pytest.approx(2.533 * 2 / 8)
    # 2.533 tokens for 4 B / 16 passes: no gain from 4 B > 2.533 * 16 on.
    assert crossover_batch(expected, 3, 0.0, roofline) == 11
    assert crossover_batch(expected, 3, lambda batch: 0.1 * batch, roofline) == 5
    assert crossover_batch(expected, 3, 0.0, free) is None
    assert crossover_batch(expected, 3, 0.0, roofline, max_batch=10) is None
    assert crossover_batch(1.0, 1, 0.1, free) == 1
