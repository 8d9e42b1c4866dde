"""The record of decisions: what is kept, added up, and compared with what was measured."""

from __future__ import annotations

from typing import Any

import pytest

from outpace.control.decisions import (
    CAPACITY,
    WINDOW,
    DecisionLog,
    RequestRecord,
    SourceTotals,
    StepRecord,
)


def record(step: int = 0, **fields: Any) -> StepRecord:
    values: dict[str, Any] = {
        "num_seqs": 1,
        "num_rows": 4,
        "context": 100,
        "requests": [RequestRecord(0, "suffix", 3, 2)],
        "predicted_tokens": 3.0,
        "predicted_s": 0.01,
        "num_tokens": 3,
        "draft_s": 0.001,
        "target_s": 0.008,
        "step_s": 0.01,
    }
    return StepRecord(step, **values | fields)


def test_totals_by_source_outlive_the_records() -> None:
    log = DecisionLog(capacity=2)
    for step in range(5):
        requests = [RequestRecord(0, "suffix", 4, 3), RequestRecord(1, "eagle3", 2, step % 2)]
        log.add(record(step, requests=[*requests, RequestRecord(2, "none", 0, 0)]))
    assert log.totals == {
        "suffix": SourceTotals(5, 20, 15),
        "eagle3": SourceTotals(5, 10, 2),
        "none": SourceTotals(5, 0, 0),
    }
    assert log.num_steps == 5
    assert [kept.step for kept in log.tail(10)] == [3, 4]


def test_the_newest_records_are_kept() -> None:
    log = DecisionLog()
    assert log.tail(3) == []
    for step in range(CAPACITY + 10):
        log.add(record(step))
    assert [kept.step for kept in log.tail(3)] == [CAPACITY + 7, CAPACITY + 8, CAPACITY + 9]
    assert len(log.tail(10**6)) == CAPACITY
    assert log.tail(0) == []


def test_errors_of_time_are_relative_to_each_step() -> None:
    log = DecisionLog()
    for predicted, measured in ((0.011, 0.01), (0.01, 0.01), (0.01, 0.04)):
        log.add(record(predicted_s=predicted, step_s=measured))
    errors = log.errors()
    assert errors.time_error == pytest.approx((0.1 + 0 + 0.75) / 3)
    assert errors.median_time_error == pytest.approx(0.1)
    assert errors.num_steps == 3


def test_errors_of_tokens_are_those_of_windows() -> None:
    log = DecisionLog()
    for step in range(2 * WINDOW + 5):  # the last five fill no window
        measured = (1, 5)[step % 2] if step < 2 * WINDOW else 100
        log.add(record(step, num_tokens=measured, predicted_tokens=3.3))
    assert log.errors().token_error == pytest.approx(0.1)
    # Windows that are off to either side do not cancel.
    log = DecisionLog()
    for step in range(2 * WINDOW):
        log.add(record(step, num_tokens=2, predicted_tokens=1.0 if step < WINDOW else 3.0))
    assert log.errors().token_error == pytest.approx(0.5)


def test_fewer_steps_than_a_window_are_compared_as_they_are() -> None:
    log = DecisionLog()
    assert log.errors() == (0.0, 0.0, 0.0, 0)
    log.add(record(num_tokens=2, predicted_tokens=3.0))
    assert log.errors().token_error == pytest.approx(0.5)


def test_steps_without_a_prediction_are_left_out() -> None:
    log = DecisionLog()
    log.add(record())
    log.add(record(predicted_s=0.0, predicted_tokens=0.0, step_s=9.0, num_tokens=50))
    assert log.errors() == (0.0, 0.0, 0.0, 1)
    assert log.num_steps == 2
