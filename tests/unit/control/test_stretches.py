"""Plain stretches against drafting: when it is left, and when it is tried again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from outpace.control.costs import CostTable, PassShape
from outpace.control.stretches import (
    FIRST_STRETCH,
    IDLE_TRIAL,
    LONGEST,
    LOOK_AGAIN,
    SHORT_STRETCH,
    SHORTEST,
    TRIAL,
    Copying,
    Stretches,
)

TABLE = CostTable(((1, 1.0), (8, 2.0)), 0.0, 0.0, 0.0)
PLAIN, DRAFTED = PassShape(1, 1, 10), PassShape(1, 4, 10)


def run(
    stretches: Stretches, num_steps: int, drafting: Callable[[int], tuple[int, float]]
) -> list[bool]:
    """Which of so many steps were plain. Plain ones take half of what the table says; drafting(i)
    says the output tokens and seconds of the others."""
    plain = []
    for i in range(num_steps):
        plain.append(stretches.is_plain)
        if stretches.is_plain:
            stretches.observe(PLAIN, 1, 0.5)
        else:
            stretches.observe(DRAFTED, *drafting(i))
    return plain


def test_plain_steps_come_first_and_are_measured() -> None:
    stretches = Stretches(TABLE)
    assert run(stretches, FIRST_STRETCH, lambda i: (1, 1.0)) == [True] * FIRST_STRETCH
    assert not stretches.is_plain
    assert stretches.plain_s(1, 10) == pytest.approx(0.5)
    assert stretches.per_second(1, 10) == pytest.approx(2.0)


def test_drafting_that_is_slower_than_a_stretch_is_left_though_its_own_plain_steps_are_dearer() -> (
    None
):
    """1.5 tokens a second of drafting beside 2 of plain steps among their like."""
    plain = run(Stretches(TABLE), 2000, lambda i: (1 + i % 2, 1.0))
    drafting = plain.count(False)
    assert plain[FIRST_STRETCH : FIRST_STRETCH + TRIAL] == [False] * TRIAL
    assert all(plain[FIRST_STRETCH + TRIAL : FIRST_STRETCH + TRIAL + SHORTEST])
    # A trial between any two pauses, each twice as long as the one before up to the longest.
    assert 3 * TRIAL <= drafting <= 6 * TRIAL


@pytest.mark.parametrize(
    ("rows", "seconds", "num_trial"),
    [(1, 0.8, IDLE_TRIAL), (1, 0.51, TRIAL), (4, 0.8, TRIAL)],
    ids=["idle and slower", "idle but as quick", "drafting"],
)
def test_a_trial_in_which_nothing_is_drafted_ends_early_where_it_costs(
    rows: int, seconds: float, num_trial: int
) -> None:
    stretches = Stretches(TABLE)
    run(stretches, FIRST_STRETCH, lambda i: (1, 1.0))
    for _ in range(num_trial):
        assert not stretches.is_plain
        stretches.observe(PassShape(1, rows, 10), 1, seconds)
    assert stretches.is_plain


def test_a_trial_is_not_idle_once_something_was_drafted() -> None:
    stretches = Stretches(TABLE)
    run(stretches, FIRST_STRETCH, lambda i: (1, 1.0))
    stretches.observe(DRAFTED, 1, 0.8)
    for _ in range(TRIAL - 1):
        assert not stretches.is_plain
        stretches.observe(PLAIN, 1, 0.8)
    assert stretches.is_plain


def test_drafting_that_pays_goes_on_and_plain_steps_are_looked_at_again() -> None:
    plain = run(Stretches(TABLE), 2000, lambda i: (3, 1.2))
    assert plain.count(True) <= FIRST_STRETCH + SHORT_STRETCH * (2000 // LOOK_AGAIN)
    assert any(plain[LOOK_AGAIN:])


def test_drafting_that_pays_clearly_is_not_interrupted() -> None:
    plain = run(Stretches(TABLE), 2000, lambda i: (5, 1.0))
    assert not any(plain[FIRST_STRETCH:])


def test_it_comes_back_when_it_pays_again() -> None:
    plain = run(Stretches(TABLE), 4000, lambda i: (1, 1.0) if i < 2000 else (4, 1.0))
    assert plain[1500:2000].count(True) > 400
    assert not any(plain[2000 + LONGEST + TRIAL :])


def test_a_stretch_can_be_ended_and_is_judged_anew() -> None:
    stretches = Stretches(TABLE)
    run(stretches, FIRST_STRETCH + TRIAL, lambda i: (1, 1.0))
    assert stretches.is_plain
    stretches.end()
    assert run(stretches, TRIAL, lambda i: (1, 1.0)) == [False] * TRIAL
    assert stretches.is_plain


def test_what_always_turns_up_does_not_end_every_stretch() -> None:
    """In a batch some text always copies, and copying is not always worth drafting."""
    stretches, plain = Stretches(TABLE), 0
    for _ in range(4000):
        if stretches.is_plain and not stretches.is_firm:
            stretches.end()
        plain += stretches.is_plain
        rows, seconds = (8, 2.0) if stretches.is_plain else (16, 4.0)
        stretches.observe(PassShape(8, rows, 80), 8, seconds)
    assert plain > 3500


def test_one_text_that_copies_from_the_start_is_drafted_for_at_once() -> None:
    stretches = Stretches(TABLE)
    for _ in range(100):
        stretches.end()
        assert not stretches.is_plain
        stretches.observe(DRAFTED, 4, 1.0)


def test_a_stretch_stays_open_to_what_paid_when_it_was_tried() -> None:
    stretches = Stretches(TABLE)
    run(stretches, FIRST_STRETCH + TRIAL, lambda i: (1, 1.0))
    stretches.end()
    assert not any(run(stretches, TRIAL + 10, lambda i: (4, 1.0)))
    while not stretches.is_plain:
        stretches.observe(DRAFTED, 1, 1.0)
    assert not stretches.is_firm


def test_steps_that_feed_prompts_end_a_stretch_and_teach_nothing() -> None:
    stretches = Stretches(TABLE)
    for _ in range(FIRST_STRETCH):
        assert stretches.is_plain
        stretches.pass_by()
    assert not stretches.is_plain
    assert stretches.plain_s(1, 10) == pytest.approx(TABLE.seconds(PLAIN))


def test_other_numbers_of_sequences_are_measured_before_drafting_is_judged_for_them() -> None:
    """Plain steps of one sequence take half of what the table says, those of eight all of it."""
    stretches, eight = Stretches(TABLE), PassShape(8, 8, 80)
    run(stretches, FIRST_STRETCH + 1, lambda i: (5, 1.0))
    stretches.observe(PassShape(8, 12, 80), 10, 2.5)
    assert stretches.is_plain
    while stretches.is_plain:
        stretches.observe(eight, 8, 2.0)
    assert stretches.plain_s(8, 80) == pytest.approx(2.0)
    assert stretches.plain_s(1, 10) == pytest.approx(0.5)


def test_steps_that_feed_prompts_measure_nothing_and_pauses_still_end() -> None:
    stretches = Stretches(TABLE)
    for _ in range(FIRST_STRETCH):
        stretches.pass_by()
    stretches.observe(DRAFTED, 2, 1.0)
    assert stretches.is_plain


def test_copying_is_noticed_after_some_tokens_and_ends_with_the_copy() -> None:
    copying, text = Copying(), list(range(100))
    assert not copying.follow(text)
    seen = []
    for token in [40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 7]:
        text.append(token)
        seen.append(copying.follow(text))
    assert seen == [False] * 7 + [True] * 3 + [False]


def test_text_that_comes_at_once_is_followed_like_text_that_comes_by_token() -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 8] * 3
    at_once, by_token = Copying(), Copying()
    for end in range(1, len(text)):
        by_token.follow(text[:end])
    assert at_once.follow(text) == by_token.follow(text) is True
