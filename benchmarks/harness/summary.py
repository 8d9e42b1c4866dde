"""From raw results to the rows of tables. Pure: the same results give the same rows.

Two methods are compared pair by pair: the runs of one prompt in one round, made right after each
other. The median over rounds is a prompt's ratio; over prompts, which differ in earnest, the
geometric mean is taken, with a bootstrap interval that says how much it hangs on the choice of
prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float

from harness.results import Overhead, Run
from outpace.measure.passes import PassTimes

MIN_PROMPTS = 3
"""Fewer prompts than this get no interval."""

_NUM_RESAMPLES = 10_000

Row = dict[str, Any]
Speed = Callable[[Run], float | None]
T = TypeVar("T")


def decode_speed(run: Run) -> float | None:
    return run.decode_speed


def end_to_end_speed(run: Run) -> float | None:
    return run.end_to_end_speed


@dataclass(frozen=True, slots=True)
class Ratio:
    """Geometric mean over prompts; low and high bound its 95 % bootstrap interval."""

    mean: float
    low: float | None
    high: float | None
    num_prompts: int


def geometric_mean(ratios: Float[np.ndarray, " n"], seed: int) -> Ratio:
    """Of positive ratios, one per prompt, resampled with replacement (percentile bootstrap)."""
    logs = np.log(ratios)
    low = high = None
    if len(logs) >= MIN_PROMPTS:
        picks = np.random.default_rng(seed).integers(len(logs), size=(_NUM_RESAMPLES, len(logs)))
        low, high = np.exp(np.percentile(logs[picks].mean(axis=1), [2.5, 97.5])).tolist()
    return Ratio(float(np.exp(logs.mean())), low, high, len(logs))


def speed_ratio(
    over: Sequence[Run], under: Sequence[Run], speed: Speed, seed: int = 0
) -> Ratio | None:
    """How many times faster `over` is than `under`; None without a common prompt."""
    theirs = {(run.prompt, run.round): speed(run) for run in under}
    by_prompt: dict[str, list[float]] = {}
    for run in over:
        mine, other = speed(run), theirs.get((run.prompt, run.round))
        if mine is not None and other is not None:
            by_prompt.setdefault(run.prompt, []).append(mine / other)
    if not by_prompt:
        return None
    return geometric_mean(np.array([median(ratios) for ratios in by_prompt.values()]), seed)


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


def first_difference(left: Sequence[object], right: Sequence[object]) -> int | None:
    """Index of the first differing token (or character); None if the lists are equal."""
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return None if len(left) == len(right) else min(len(left), len(right))


def pass_rows(passes: Sequence[PassTimes]) -> list[Row]:
    """Milliseconds per pass, and v(n): the median of the ratios to one row, per repetition."""
    single = {(p.dtype, p.context_len, p.shape): p.seconds for p in passes if p.num_rows == 1}
    rows = []
    for times in passes:
        # An interrupted measurement leaves some lists one repetition shorter.
        one_row = single[times.dtype, times.context_len, times.shape]
        pairs = list(zip(times.seconds, one_row, strict=False))
        if not pairs:
            continue
        rows.append(
            {
                "dtype": times.dtype,
                "context_len": times.context_len,
                "shape": times.shape,
                "num_rows": times.num_rows,
                "median_ms": 1e3 * median(times.seconds),
                "v": median(seconds / one for seconds, one in pairs),
            }
        )
    return rows


def category_rows(runs: Sequence[Run], method: str, reference: str, seed: int) -> list[Row]:
    """`method` against `reference` by category, then over all prompts."""
    mine = [run for run in runs if run.method == method]
    base = [run for run in runs if run.method == reference]
    rows = []
    for category in (*unique(run.category for run in mine), None):
        ours = [run for run in mine if category in (None, run.category)]
        plain = [run for run in base if category in (None, run.category)]
        rows.append(
            {
                "category": "all" if category is None else category,
                "num_prompts": len(unique(run.prompt for run in ours)),
                "reference_tokens_per_s": typical_speed(plain, decode_speed),
                "tokens_per_s": typical_speed(ours, decode_speed),
                "decode_ratio": speed_ratio(ours, plain, decode_speed, seed),
                "end_to_end_ratio": speed_ratio(ours, plain, end_to_end_speed, seed),
                "acceptance_length": acceptance_length(ours),
                **ids_compared(ours, plain),
            }
        )
    return rows


def method_rows(runs: Sequence[Run], ours: Sequence[str], seed: int) -> list[Row]:
    """All methods side by side; for the others, how many times faster each of ours is."""
    names = unique(run.method for run in runs)
    by_method = {name: [run for run in runs if run.method == name] for name in names}
    rows = []
    for name, mine in by_method.items():
        rows.append(
            {
                "method": name,
                "tokens_per_s": typical_speed(mine, decode_speed),
                "end_to_end_tokens_per_s": typical_speed(mine, end_to_end_speed),
                "ttft_ms": 1e3 * median(run.timing.ttft_s for run in mine),
                "acceptance_length": acceptance_length(mine),
                **ids_compared(mine, by_method.get(ours[0], [])),
                "decode_ratios": {
                    own: speed_ratio(by_method.get(own, []), mine, decode_speed, seed)
                    for own in ours
                    if name not in ours
                },
            }
        )
    return rows


def overhead_rows(overheads: Sequence[Overhead]) -> list[Row]:
    """Milliseconds per step."""
    return [
        {
            "dtype": o.dtype,
            "decoding": o.decoding,
            "method": o.method,
            "num_steps": o.num_steps,
            "draft_ms": 1e3 * o.draft_s / o.num_steps,
            "target_ms": 1e3 * o.target_s / o.num_steps,
            "rest_of_step_ms": 1e3 * (o.step_s - o.draft_s - o.target_s) / o.num_steps,
            "between_steps_ms": 1e3 * (o.wall_s - o.step_s) / o.num_steps,
            "share_outside_passes": 1 - o.target_s / o.wall_s,
        }
        for o in overheads
    ]


def unique(values: Iterable[T]) -> list[T]:
    """Each value once, in order of first appearance."""
    return list(dict.fromkeys(values))
