"""Passes over n rows are timed, as often as asked and without leaving a trace."""

from __future__ import annotations

import pytest
from tiny import tiny_model

from outpace.measure.passes import PassTimes, measure_passes


def measured(ticks: list[None], results: list[PassTimes], interrupt_at: int | None = None) -> None:
    def tick() -> None:
        ticks.append(None)
        if len(ticks) == interrupt_at:
            raise KeyboardInterrupt

    measure_passes(
        tiny_model(),
        rows=(1, 3),
        context_lens=(10, 20),
        repeats=2,
        seed=0,
        results=results,
        tick=tick,
        shapes=("chain", "tree"),
        label="tiny",
    )


def test_every_kind_is_timed_as_often_as_asked() -> None:
    ticks: list[None] = []
    results: list[PassTimes] = []
    measured(ticks, results)
    kinds = {(times.context_len, times.num_rows, times.shape) for times in results}
    assert kinds == {(c, n, s) for c in (10, 20) for n in (1, 3) for s in ("chain", "tree")}
    assert all(len(times.seconds) == 2 and min(times.seconds) > 0 for times in results)
    assert {times.dtype for times in results} == {"tiny"}
    # Each once more, to warm up.
    assert len(ticks) == 3 * len(results)


def test_a_pass_may_be_longer_than_its_context() -> None:
    results: list[PassTimes] = []
    measure_passes(
        tiny_model(),
        rows=(8,),
        context_lens=(3,),
        repeats=1,
        seed=0,
        results=results,
        tick=lambda: None,
    )
    assert [(times.num_rows, times.context_len) for times in results] == [(8, 3)]


def test_an_interruption_leaves_what_was_timed() -> None:
    results: list[PassTimes] = []
    with pytest.raises(KeyboardInterrupt):
        measured([], results, interrupt_at=14)
    assert 0 < sum(len(times.seconds) for times in results) < 2 * len(results)
