"""Rivals: what a candidate is worth depends on what the other drafter says, and is learned."""

from __future__ import annotations

import pytest

from outpace.control.rivals import Candidate, Ranked, Rivals, Situation

RANKED = Ranked([7, 8, 9], [0.5, 0.2, 0.1])


@pytest.fixture
def rivals() -> Rivals:
    rivals = Rivals()
    rivals.open(0, "greedy")
    return rivals


def situations(candidates: list[Candidate]) -> dict[int, Situation]:
    return {each.token_id: each.situation for each in candidates}


def test_the_head_is_taken_at_its_word_where_the_lookup_is_silent(rivals: Rivals) -> None:
    found = rivals.candidates(0, RANKED, None, 0.0)
    assert [each.token_id for each in found] == RANKED.token_ids
    assert [each.worth for each in found] == pytest.approx(RANKED.chances)
    assert {each.situation for each in found} == {Situation.ALONE}


def test_a_token_that_both_name_is_likelier_and_the_others_less_likely(rivals: Rivals) -> None:
    first, second, third = rivals.candidates(0, RANKED, 8, 0.6)
    assert (first.token_id, second.token_id, third.token_id) == (7, 8, 9)
    assert second.situation is Situation.AGREED
    assert second.worth == pytest.approx(1 - 0.4 * 0.8)
    assert first.worth == pytest.approx(0.5 * 0.4)
    assert third.worth == pytest.approx(0.1 * 0.4)


def test_the_lookups_token_comes_last_if_the_head_does_not_name_it(rivals: Rivals) -> None:
    found = rivals.candidates(0, RANKED, 3, 0.6)
    assert [each.token_id for each in found] == [7, 8, 9, 3]
    assert found[-1].situation is Situation.OUTSIDE
    assert found[-1].worth == pytest.approx(0.6 * 0.5)
    assert set(situations(found[:-1]).values()) == {Situation.CONTESTED}


def test_what_was_said_is_learned_for_the_situation_it_was_said_in(rivals: Rivals) -> None:
    """The lookup is always right where the two differ, and the head where it is alone."""
    for _ in range(200):
        rivals.observe(0, rivals.candidates(0, RANKED, 3, 0.6), 3)
        rivals.observe(0, rivals.candidates(0, RANKED, None, 0.0), 7)
    contested = rivals.candidates(0, RANKED, 3, 0.6)
    assert contested[-1].worth > 0.8
    assert contested[0].worth < 0.1
    alone = rivals.candidates(0, RANKED, None, 0.0)
    assert alone[0].worth > 0.8
    assert alone[1].worth < 0.1


def test_requests_of_a_regime_share_what_they_learn_and_others_do_not(rivals: Rivals) -> None:
    for _ in range(200):
        rivals.observe(0, rivals.candidates(0, RANKED, 3, 0.6), 3)
    rivals.open(1, "greedy")
    rivals.open(2, "seeded")
    assert rivals.candidates(1, RANKED, 3, 0.6)[-1].worth > 0.6
    assert rivals.candidates(2, RANKED, 3, 0.6)[-1].worth == pytest.approx(0.3)


def test_a_claim_of_one_is_on_the_curve(rivals: Rivals) -> None:
    (only,) = rivals.candidates(0, Ranked([5], [1.0]), None, 0.0)
    assert only.worth == pytest.approx(1.0)


def test_what_is_kept_for_a_request_goes_with_it(rivals: Rivals) -> None:
    with pytest.raises(AssertionError):
        rivals.check_integrity()
    rivals.release(0)
    rivals.check_integrity()
