"""When a drafter that does not pay is tried again."""

from __future__ import annotations

import pytest

from outpace.control.probing import Probing


def steps_until_due(probing: Probing, seq_id: int = 0) -> int:
    steps = 0
    while not probing.is_due(seq_id):
        probing.tick(seq_id)
        steps += 1
    return steps


def test_pauses_double_up_to_a_limit() -> None:
    probing = Probing()
    pauses = []
    for _ in range(6):
        pauses.append(steps_until_due(probing))
        probing.observe(0, paid=False)
    assert pauses == [64, 128, 256, 512, 512, 512]


def test_once_it_has_paid_it_is_tried_soon() -> None:
    probing = Probing()
    for _ in range(3):
        steps_until_due(probing)
        probing.observe(0, paid=False)
    steps_until_due(probing)
    probing.observe(0, paid=True)
    assert steps_until_due(probing) == 64


def test_failing_in_use_only_begins_a_pause() -> None:
    probing = Probing()
    for _ in range(5):  # in use, not on trial
        probing.observe(0, paid=False)
    assert steps_until_due(probing) == 64


def test_requests_wait_for_themselves() -> None:
    probing = Probing()
    steps_until_due(probing, 0)
    assert probing.is_due(0)
    assert not probing.is_due(1)
    assert steps_until_due(probing, 1) == 64


def test_nothing_is_kept_of_a_request_that_was_released() -> None:
    probing = Probing()
    steps_until_due(probing)
    probing.observe(0, paid=False)
    with pytest.raises(AssertionError, match=r"\[0\]"):
        probing.check_integrity()
    probing.release(0)
    probing.release(0)
    probing.check_integrity()
    assert steps_until_due(probing) == 64
