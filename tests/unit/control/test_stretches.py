"""Plain stretches against drafting: when it is left, and when it is tried again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from outpace.control.costs import CostTable, PassShape
from outpace.control.stretches import (
    AFTER_PAID,
    CREDIT,
    FIRST_STRETCH,
    IDLE_CHARGE,
    LONGEST,
    LOOK_AGAIN,
    MOST_CREDIT,
    MOST_LATE,
    SELDOM,
    SHORT_STRETCH,
    SHORTEST,
    Copying,
    Stretches,
)

TABLE = CostTable(((1, 1.0), (8, 2.0)), 0.0, 0.0, 0.0)
PLAIN, DRAFTED = PassShape(1, 1, 10), PassShape(1, 4, 10)
LOSING = (1, 1.0)
"""Output tokens and seconds of a step of drafting in whose time plain ones yield two tokens."""
TRIAL = int(CREDIT)
"""How many of those are made on credit."""


def observe(stretches: Stretches, shape: PassShape, num_tokens: int, seconds: float) -> None:
    """A step that takes what was expected."""
    stretches.observe(shape, num_tokens, seconds, seconds)


def run(
    stretches: Stretches, num_steps: int, drafting: Callable[[int], tuple[int, float]]
) -> list[bool]:
    """Which of so many steps were plain. Plain ones take half of what the table says; drafting(i)
    says the output tokens and seconds of the others."""
    plain = []
    for i in range(num_steps):
        plain.append(stretches.is_plain)
        if stretches.is_plain:
            observe(stretches, PLAIN, 1, 0.5)
        else:
            observe(stretches, DRAFTED, *drafting(i))
    return plain


def tried(num_steps: int = FIRST_STRETCH) -> Stretches:
    """After the first stretch, or so many steps more of drafting that loses."""
    stretches = Stretches(TABLE)
    run(stretches, num_steps, lambda i: LOSING)
    return stretches


def steps_until_left(
    stretches: Stretches, num_tokens: int, seconds: float, shape: PassShape = DRAFTED
) -> int:
    """How many steps like this are made before drafting is left; at most 1,000."""
    for i in range(1000):
        if stretches.is_plain:
            return i
        observe(stretches, shape, num_tokens, seconds)
    return 1000


def test_plain_steps_come_first_and_are_measured() -> None:
    stretches = Stretches(TABLE)
    assert run(stretches, FIRST_STRETCH, lambda i: LOSING) == [True] * FIRST_STRETCH
    assert not stretches.is_plain
    assert stretches.plain_s(1, 10) == pytest.approx(0.5)
    assert stretches.per_second(1, 10) == pytest.approx(2.0)


def test_drafting_that_is_slower_than_a_stretch_is_left_though_its_own_plain_steps_are_dearer() -> (
    None
):
    """1.5 tokens a second of drafting beside 2 of plain steps among their like."""
    plain = run(Stretches(TABLE), 4000, lambda i: (1 + i % 2, 1.0))
    trial = plain[FIRST_STRETCH:].index(True)
    assert trial <= 2 * CREDIT + 1
    assert all(plain[FIRST_STRETCH + trial : FIRST_STRETCH + trial + SHORTEST])
    # A trial between any two pauses, each twice as long as the one before up to the longest.
    assert 4 * CREDIT <= plain.count(False) <= 7 * (2 * CREDIT + 1)


@pytest.mark.parametrize("loss", [0.1, 0.25, 1.0])
def test_a_trial_ends_when_it_has_lost_its_credit(loss: float) -> None:
    steps = steps_until_left(tried(), 1, 0.5 * (1 + loss))
    assert steps == pytest.approx(CREDIT / loss, abs=1)


def test_a_step_without_a_draft_is_charged_more() -> None:
    idle = steps_until_left(tried(), 1, 0.55, PLAIN)
    assert idle == pytest.approx(CREDIT / (0.1 * IDLE_CHARGE), abs=1)
    assert steps_until_left(tried(), 1, 0.5, PLAIN) == LOOK_AGAIN  # costs nothing: it may go on


def test_a_step_is_charged_little_more_than_was_expected_of_it() -> None:
    """One that takes forever may be a hiccup of the machine; two are not."""
    stretches, expected_s = tried(), 0.75
    loss = MOST_LATE * expected_s / 0.5 - 1
    assert loss < CREDIT < 2 * loss
    for is_plain in (False, True):
        stretches.observe(DRAFTED, 1, 100.0, expected_s)
        assert stretches.is_plain == is_plain


def test_a_slow_start_with_a_good_end_is_not_cut() -> None:
    slow_start = iter([LOSING] * (TRIAL - 1))
    assert not any(run(tried(), 100, lambda i: next(slow_start, (3, 1.0))))


def test_what_was_gained_excuses_no_more_than_the_limit() -> None:
    stretches = tried()
    run(stretches, 100, lambda i: (5, 1.0))
    assert steps_until_left(stretches, *LOSING) == int(MOST_CREDIT)


def test_after_drafting_that_paid_the_pause_is_short_and_after_a_lost_trial_longer_each_time() -> (
    None
):
    stretches = tried()
    run(stretches, 100, lambda i: (5, 1.0))
    steps_until_left(stretches, *LOSING)
    pauses = []
    for _ in range(6):
        start = 0
        while stretches.is_plain:
            observe(stretches, PLAIN, 1, 0.5)
            start += 1
        pauses.append(start)
        steps_until_left(stretches, *LOSING)
    assert pauses == [AFTER_PAID, *(SHORTEST * 2**i for i in range(4)), LONGEST]


def test_drafting_that_pays_goes_on_and_plain_steps_are_looked_at_again() -> None:
    plain = run(Stretches(TABLE), 2000, lambda i: (3, 1.2))
    assert plain.count(True) <= FIRST_STRETCH + SHORT_STRETCH * (2000 // LOOK_AGAIN)
    assert any(plain[LOOK_AGAIN:])


def test_drafting_that_pays_clearly_is_seldom_interrupted() -> None:
    plain = run(Stretches(TABLE), FIRST_STRETCH + SELDOM + 50, lambda i: (5, 1.0))
    looks = plain[FIRST_STRETCH:]
    assert looks.count(True) == SHORT_STRETCH
    assert looks.index(True) == SELDOM


def test_a_plain_speed_that_was_measured_in_a_slow_moment_is_corrected() -> None:
    """Plain steps seemed to take three times as long as they do: what loses seemed to win."""
    stretches, plain_s, drafted_s = Stretches(TABLE), 0.5, 0.6
    for _ in range(FIRST_STRETCH):
        observe(stretches, PLAIN, 1, 3 * plain_s)
    plain = run(stretches, 3000, lambda i: (1, drafted_s))
    assert not any(plain[: SELDOM - 1])
    assert plain[SELDOM:].count(True) > 1000


def test_it_comes_back_when_it_pays_again() -> None:
    plain = run(Stretches(TABLE), 4000, lambda i: LOSING if i < 2000 else (4, 1.0))
    assert plain[1500:2000].count(True) > 400
    assert plain[2000 + LONGEST + TRIAL :].count(True) <= SHORT_STRETCH


def test_a_stretch_can_be_ended_and_is_judged_anew() -> None:
    stretches = tried(FIRST_STRETCH + TRIAL)
    assert stretches.is_plain
    stretches.end()
    assert run(stretches, TRIAL, lambda i: LOSING) == [False] * TRIAL
    assert stretches.is_plain


def test_what_always_turns_up_does_not_end_every_stretch() -> None:
    """In a batch some text always copies, and copying is not always worth drafting."""
    stretches, plain = Stretches(TABLE), 0
    for _ in range(4000):
        if stretches.is_plain and not stretches.is_firm:
            stretches.end()
        plain += stretches.is_plain
        rows, seconds = (8, 2.0) if stretches.is_plain else (16, 4.0)
        observe(stretches, PassShape(8, rows, 80), 8, seconds)
    assert plain > 3500


def test_one_text_that_copies_from_the_start_is_drafted_for_at_once() -> None:
    stretches = Stretches(TABLE)
    for _ in range(100):
        stretches.end()
        assert not stretches.is_plain
        observe(stretches, DRAFTED, 4, 1.0)


def test_a_stretch_stays_open_to_what_paid_when_it_was_tried() -> None:
    stretches = tried(FIRST_STRETCH + TRIAL)
    stretches.end()
    assert not any(run(stretches, 30, lambda i: (4, 1.0)))
    assert steps_until_left(stretches, *LOSING) < 1000
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
    observe(stretches, PassShape(8, 12, 80), 10, 2.5)
    assert stretches.is_plain
    while stretches.is_plain:
        observe(stretches, eight, 8, 2.0)
    assert stretches.plain_s(8, 80) == pytest.approx(2.0)
    assert stretches.plain_s(1, 10) == pytest.approx(0.5)


def test_steps_that_feed_prompts_measure_nothing_and_pauses_still_end() -> None:
    stretches = Stretches(TABLE)
    for _ in range(FIRST_STRETCH):
        stretches.pass_by()
    observe(stretches, DRAFTED, 2, 1.0)
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
