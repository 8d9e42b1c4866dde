"""Acceptance per position: what is learned, from whom it is borrowed, how soon it is forgotten."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from outpace.control.acceptance import REGIME_HALF_LIFE, REQUEST_MEMORY, Acceptance

HISTORIES = st.lists(
    st.tuples(st.integers(0, 8), st.integers(0, 8), st.booleans()).map(
        lambda t: (t[0], min(t[0], t[1]), t[2])
    ),
    max_size=12,
)


def opened(base: tuple[float, ...] = (0.5,), seq_id: int = 0) -> Acceptance:
    acceptance = Acceptance(base)
    acceptance.open(seq_id, "greedy")
    return acceptance


def conditional(ladder: list[float]) -> list[float]:
    return [after / before for before, after in pairwise([1.0, *ladder])]


def judge(
    acceptance: Acceptance, truth: list[float], num_drafts: int, seed: int, seq_id: int = 0
) -> None:
    """Let it see drafts whose tokens are accepted with these conditional probabilities."""
    rng = random.Random(seed)
    for _ in range(num_drafts):
        accepted = 0
        while accepted < len(truth) and rng.random() < truth[accepted]:
            accepted += 1
        acceptance.observe(seq_id, len(truth), accepted, False)


@settings(max_examples=examples(30))
@given(HISTORIES, st.integers(0, 10))
def test_a_ladder_never_rises(history: list[tuple[int, int, bool]], num_levels: int) -> None:
    acceptance = opened()
    for drafted, accepted, was_cut in history:
        acceptance.observe(0, drafted, accepted, was_cut)
    ladder = acceptance.ladder(0, num_levels)
    assert len(ladder) == num_levels
    assert all(1 >= before >= after > 0 for before, after in pairwise([1.0, *ladder]))


def test_at_first_it_is_what_was_assumed_and_the_last_position_goes_on() -> None:
    assert opened((0.8, 0.5)).ladder(0, 4) == pytest.approx([0.8, 0.4, 0.2, 0.1])


def test_it_learns_each_position() -> None:
    truth = [0.9, 0.7, 0.8, 0.4]
    acceptance = opened()
    judge(acceptance, truth, 4000, seed=1)
    acceptance.open(1, "greedy")  # so that the regime speaks, with its long memory
    learned = conditional(acceptance.ladder(1, 4))
    assert learned == pytest.approx(truth, abs=0.08)
    assert learned != pytest.approx([0.5] * 4, abs=0.08)  # it is not what was assumed


def test_requests_of_one_regime_share_and_others_do_not() -> None:
    acceptance = opened()
    judge(acceptance, [0.95] * 4, 200, seed=2)
    acceptance.open(1, "greedy")
    acceptance.open(2, "sampled")
    assert acceptance.ladder(1, 1)[0] > 0.85
    assert acceptance.ladder(2, 1)[0] == 0.5


def test_a_request_differs_from_its_regime_as_soon_as_it_has_shown_it() -> None:
    acceptance = opened()
    judge(acceptance, [0.9] * 4, 300, seed=3)
    acceptance.open(1, "greedy")
    judge(acceptance, [0.1] * 4, 30, seed=4, seq_id=1)
    assert acceptance.ladder(1, 1)[0] < 0.4
    assert acceptance.ladder(0, 1)[0] > 0.8


def test_the_last_drafts_speak() -> None:
    acceptance = opened()
    judge(acceptance, [0.9] * 4, 500, seed=5)
    judge(acceptance, [0.1] * 4, 2 * REQUEST_MEMORY, seed=6)
    assert acceptance.ladder(0, 1)[0] < 0.35


def test_positions_that_were_not_reached_borrow_from_the_one_before() -> None:
    acceptance = opened()
    judge(acceptance, [0.95], 300, seed=7)  # one token at a time
    learned = conditional(acceptance.ladder(0, 3))
    assert learned[1:] == pytest.approx([learned[0]] * 2)
    # Also within a request, by how much it differs from its regime.
    acceptance.open(1, "greedy")
    judge(acceptance, [0.1], 60, seed=8, seq_id=1)
    learned = conditional(acceptance.ladder(1, 3))
    assert learned[2] == pytest.approx(learned[0], abs=0.02)
    assert learned[0] < 0.4


@settings(max_examples=examples(30))
@given(HISTORIES)
def test_what_was_drafted_behind_a_rejection_teaches_nothing(
    history: list[tuple[int, int, bool]],
) -> None:
    long, short = opened(), opened()
    for drafted, accepted, was_cut in history:
        if drafted > accepted:
            long.observe(0, drafted, accepted, was_cut)
            short.observe(0, accepted + 1, accepted, was_cut)
    assert long.ladder(0, 8) == short.ladder(0, 8)


def test_a_draft_that_was_cut_was_not_rejected() -> None:
    cut, rejected, complete = opened(), opened(), opened()
    for _ in range(20):
        cut.observe(0, 4, 2, True)
        rejected.observe(0, 4, 2, False)
        complete.observe(0, 2, 2, False)
    assert cut.ladder(0, 4) == complete.ladder(0, 4)
    assert cut.ladder(0, 4)[2] > 2 * rejected.ladder(0, 4)[2]
    untouched = opened()
    untouched.observe(0, 4, 0, True)
    assert untouched.ladder(0, 4) == opened().ladder(0, 4)


def test_fading_takes_a_request_back_towards_its_regime() -> None:
    acceptance = opened()
    judge(acceptance, [0.9] * 4, 300, seed=9)
    acceptance.open(1, "greedy")
    fresh = acceptance.ladder(1, 3)
    for _ in range(15):
        acceptance.observe(1, 3, 0, False)
    acceptance.open(2, "greedy")  # the regime has learned too
    shared, before = acceptance.ladder(2, 3), acceptance.ladder(1, 3)
    acceptance.fade(1, 0.5)
    assert before[0] < acceptance.ladder(1, 3)[0] < shared[0] < fresh[0]
    acceptance.fade(1, 0.0)
    assert acceptance.ladder(1, 3) == shared


def test_what_a_regime_has_shown_long_ago_is_forgotten() -> None:
    acceptance = opened()
    judge(acceptance, [0.05] * 4, 300, seed=9)
    acceptance.open(1, "greedy")
    acceptance.open(2, "sampled")
    poor, other = acceptance.ladder(1, 1)[0], acceptance.ladder(2, 1)[0]
    acceptance.fade_regime(1, 0)
    assert acceptance.ladder(1, 1)[0] == poor
    for _ in range(5):
        acceptance.fade_regime(1, REGIME_HALF_LIFE)
    assert poor < 0.1
    assert 2 * poor < acceptance.ladder(1, 1)[0] < 0.5
    acceptance.fade_regime(1, 20 * REGIME_HALF_LIFE)
    assert acceptance.ladder(1, 1)[0] == pytest.approx(0.5, abs=0.01)
    assert acceptance.ladder(2, 1)[0] == other


def test_nothing_is_kept_of_a_request_that_was_released() -> None:
    acceptance = opened()
    with pytest.raises(AssertionError, match=r"\[0\]"):
        acceptance.check_integrity()
    acceptance.release(0)
    acceptance.release(0)
    acceptance.check_integrity()
