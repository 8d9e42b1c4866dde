"""Whether a text is worth reading for a trained drafter, and when that is tried in spite of it."""

from __future__ import annotations

import pytest

from outpace.control.costs import FEW_UNREAD, DraftCosts
from outpace.control.goodput import LOOKUP, NONE, TRAINED, Plan, Ways
from outpace.control.probing import Probing
from outpace.control.reading import FIRST_GUESS, AnswerLengths, worth_reading
from outpace.control.trials import with_trials
from outpace.params import SamplingParams
from outpace.types import Sequence

PLAIN_S = 10e-3
CURVE = [10e-3, 10.5e-3, 11e-3, 12e-3]
TRAINED_S = [0.0, 1e-3, 1.4e-3, 1.8e-3]
RATE = 1 / PLAIN_S


def worth(ladder: list[float], reading_s: float, to_come: int) -> bool:
    (found,) = worth_reading([Ways([0.3], ladder)], [reading_s], [to_come], CURVE, TRAINED_S, RATE)
    assert found.lookup == [0.3]
    assert found.trained in ([], ladder)
    return bool(found.trained)


def test_what_is_read_already_is_not_asked_about() -> None:
    assert worth([0.01], 0.0, 0)


def test_a_long_text_is_read_for_a_long_answer_by_a_good_drafter_alone() -> None:
    good, poor = [0.6, 0.3, 0.1], [0.2, 0.04, 0.01]
    assert worth(good, 50e-3, 64)
    assert not worth(good, 50e-3, 8)
    assert not worth(good, 500e-3, 64)
    assert not worth(poor, 50e-3, 64)
    assert not worth([], 50e-3, 64)


def test_it_is_worth_just_what_the_answer_gains() -> None:
    """One token more in each step that costs as much as half a token: half a step for every two."""
    ladder, curve, trained_s = [1.0], [10e-3, 12e-3], [0.0, 3e-3]
    gained_s = 5e-3 * 64 / 2
    for share, expected in ((0.99, True), (1.01, False)):
        (found,) = worth_reading(
            [Ways([], ladder)], [share * gained_s], [64], curve, trained_s, RATE
        )
        assert bool(found.trained) is expected


def test_requests_are_judged_one_by_one() -> None:
    ways = [Ways([], [0.6, 0.3]), Ways([], [0.6, 0.3]), Ways([], [0.1])]
    found = worth_reading(ways, [0.0, 90e-3, 0.0], [64, 10, 64], CURVE, TRAINED_S, RATE)
    assert [bool(each.trained) for each in found] == [True, False, True]


def answering(num_output: int, most: int | None) -> Sequence:
    """A request that has said so much, of `most` tokens."""
    num_prompt = 7
    return Sequence(
        0,
        [1] * (num_prompt + num_output),
        num_prompt,
        SamplingParams(),
        max_len=None if most is None else num_prompt + most,
    )


@pytest.mark.parametrize(
    ("num_output", "most", "expected"),
    [
        (0, None, FIRST_GUESS),
        (0, 10, 10),
        (8, 10, 2),
        (10, 10, 0),
        (32, None, 32),
        (500, None, 500),
        (500, 600, 100),
    ],
)
def test_long_answers_are_expected_to_go_on(
    num_output: int, most: int | None, expected: float
) -> None:
    assert AnswerLengths().to_come(answering(num_output, most)) == expected


def test_answers_are_expected_to_be_as_long_as_those_before() -> None:
    lengths = AnswerLengths()
    for _ in range(100):
        lengths.observe(5)
    assert lengths.to_come(answering(0, 200)) == pytest.approx(5, abs=0.5)
    for _ in range(100):
        lengths.observe(300)
    assert lengths.to_come(answering(0, 200)) == 200
    assert lengths.to_come(answering(0, None)) == pytest.approx(300, abs=5)


def test_what_reading_takes_is_learned_beside_what_drafting_takes() -> None:
    costs = DraftCosts(PLAIN_S)
    assert costs.reading_s(FEW_UNREAD) == 0.0
    assert costs.reading_s(100) == pytest.approx(2 * PLAIN_S)
    for _ in range(40):
        costs.observe(1, 2, [3], 1.4e-3)
    drafting_s = costs.predict(1, 2)
    for _ in range(20):
        costs.observe(1, 2, [200], drafting_s + 40e-3)
        costs.observe(2, 2, [100, 2], costs.predict(2, 2) + 20e-3)  # of which one text was read
    assert costs.reading_s(100) == pytest.approx(20e-3)
    assert costs.predict(1, 2) == drafting_s


def test_one_slow_reading_is_outvoted() -> None:
    """The first call makes buffers, and a machine may have a hiccup."""
    costs = DraftCosts(PLAIN_S)
    costs.observe(1, 2, [200], 2.0)
    assert costs.reading_s(100) == pytest.approx(2 * PLAIN_S)
    for _ in range(2):
        costs.observe(1, 2, [200], costs.predict(1, 2) + 40e-3)
    assert costs.reading_s(100) == pytest.approx(20e-3, rel=0.1)


def test_a_call_that_took_no_time_does_no_harm() -> None:
    costs = DraftCosts(PLAIN_S)
    for _ in range(20):
        costs.observe(1, 2, [200], 0.0)
    assert costs.reading_s(100) == pytest.approx(0.0, abs=1e-6)
    for _ in range(20):
        costs.observe(1, 2, [200], 40e-3)
    assert costs.reading_s(100) == pytest.approx(20e-3, rel=0.1)


def test_trials_that_read_much_come_as_much_later() -> None:
    def first_trial(price: float) -> int:
        probing, nothing = Probing(), Plan([(NONE, 0)], 1.0, PLAIN_S)
        for step in range(2000):
            ways = [Ways([], [0.1, 0.01])]
            found = with_trials(nothing, probing, [(0, price)], ways, CURVE, TRAINED_S)
            if found.choices[0][0] == TRAINED:
                return step
        raise AssertionError("it is never tried")

    assert first_trial(0.0) == first_trial(1.0) == 63
    assert first_trial(5.0) == 319
    assert first_trial(1000.0) == 511  # what costs so much is tried at last


def test_trials_whose_price_grows_while_they_are_put_off_come_all_the_same() -> None:
    probing = Probing()
    for waited in range(1000):
        if probing.is_due(0, price=0.1 * waited):
            break
        probing.tick(0)
    assert waited == 512


def test_trials_do_not_displace_the_lookup() -> None:
    probing, decided = Probing(), Plan([(LOOKUP, 1)], 1.3, CURVE[1])
    for _ in range(100):
        found = with_trials(decided, probing, [(0, 0.0)], [Ways([0.3], [0.1])], CURVE, TRAINED_S)
        assert found == decided
