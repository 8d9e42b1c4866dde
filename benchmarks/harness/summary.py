"""From raw results to the rows of tables. Pure: the same results give the same rows.

Two methods are compared pair by pair: the runs of one prompt in one round, made right after each
other. The median over rounds is a prompt's ratio; over prompts, which differ in earnest, the
geometric mean is taken, with an interval that says how much it hangs on the choice of prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, Protocol, TypeVar

import numpy as np

from harness.results import Run
from outpace.measure.statistics import Ratio, first_difference, geometric_mean, unique

Row = dict[str, Any]
Speed = Callable[[Run], float | None]


class Grouped(Protocol):
    """What says of a run where and how it was made."""

    @property
    def dtype(self) -> str: ...

    @property
    def decoding(self) -> str: ...


AnyRun = TypeVar("AnyRun", bound=Grouped)


def groups(runs: Sequence[AnyRun]) -> list[tuple[str, str, list[AnyRun]]]:
    """Runs by path and sampling parameters, path by path."""
    return [
        (path, decoding, [r for r in runs if (r.dtype, r.decoding) == (path, decoding)])
        for path in unique(run.dtype for run in runs)
        for decoding in unique(run.decoding for run in runs if run.dtype == path)
    ]


def decode_speed(run: Run) -> float | None:
    return run.decode_speed


def end_to_end_speed(run: Run) -> float | None:
    return run.end_to_end_speed


def speed_ratio(over: Sequence[Run], under: Sequence[Run], speed: Speed) -> Ratio | None:
    """How many times faster `over` is than `under`; None without a common prompt."""
    theirs = {(run.prompt, run.round): speed(run) for run in under}
    by_prompt: dict[str, list[float]] = {}
    for run in over:
        mine, other = speed(run), theirs.get((run.prompt, run.round))
        if mine is not None and other is not None:
            by_prompt.setdefault(run.prompt, []).append(mine / other)
    if not by_prompt:
        return None
    return geometric_mean(np.array([median(ratios) for ratios in by_prompt.values()]))


def typical_speed(runs: Sequence[Run], speed: Speed) -> float | None:
    """Median over prompts of the medians over rounds."""
    by_prompt: dict[str, list[float]] = {}
    for run in runs:
        value = speed(run)
        if value is not None:
            by_prompt.setdefault(run.prompt, []).append(value)
    return median(median(values) for values in by_prompt.values()) if by_prompt else None


def acceptance_length(runs: Sequence[Run]) -> float | None:
    """Output tokens per target pass that gave output, over all runs together."""
    num_steps = sum(len(run.timing.step_lens) for run in runs)
    return sum(len(run.timing.token_ids) for run in runs) / num_steps if num_steps else None


def ids_compared(runs: Sequence[Run], reference: Sequence[Run]) -> Row:
    """How many runs gave the reference's ids, and the earliest place where one did not."""
    expected = {(run.prompt, run.round): run.timing.token_ids for run in reference}
    pairs = [
        (run.timing.token_ids, expected[run.prompt, run.round])
        for run in runs
        if (run.prompt, run.round) in expected
    ]
    places = [first_difference(mine, theirs) for mine, theirs in pairs]
    differing = [place for place in places if place is not None]
    return {
        "num_compared": len(pairs),
        "num_equal": len(pairs) - len(differing),
        "first_difference": min(differing, default=None),
    }
