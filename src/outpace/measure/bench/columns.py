"""One method in one column of a table: how fast, how much accepted, where the time went."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import Any

import numpy as np

from outpace.measure.bench.costs import (
    Curves,
    StepCosts,
    nearest_curve,
    predicted_ratio,
    step_costs,
)
from outpace.measure.bench.results import BenchRun, Classified, MethodInfo
from outpace.measure.statistics import Ratio, first_difference, geometric_mean, unique
from outpace.outputs import SpeculationStats

Row = dict[str, Any]
Speed = Callable[[BenchRun], float | None]


@dataclass(frozen=True, slots=True)
class Ground:
    """What all columns of a model in one dtype share.

    curves: v(n). limit_tokens_per_s: what one plain sequence could reach if a pass took only the
    reading of its weights. prompt_lens: tokens of each prompt, by label. classified: answers that
    differ.
    """

    curves: Curves
    limit_tokens_per_s: float | None
    prompt_lens: dict[str, int]
    classified: Sequence[Classified]


def column_row(
    info: MethodInfo,
    column: str,
    runs: Sequence[BenchRun],
    plain_runs: Sequence[BenchRun],
    ground: Ground,
) -> Row:
    """Everything about `runs`, all of one method, beside plain decoding of the same groups."""
    mine, plain = step_costs(runs), step_costs(plain_runs)
    tokens_per_s = typical_speed(runs, _decode_speed)
    batch = runs[0].batch
    limit = ground.limit_tokens_per_s
    ratio = end_to_end = None
    if not info.is_plain:
        ratio = speed_ratio(runs, plain_runs, _decode_speed)
        end_to_end = speed_ratio(runs, plain_runs, _end_to_end_speed)
    return {
        "column": column,
        "num_prompts": len(unique(label for run in runs for label in run.prompts)),
        "tokens_per_s": tokens_per_s,
        "end_to_end_tokens_per_s": typical_speed(runs, _end_to_end_speed),
        "ttft_ms": 1e3 * median(fmean(a.first_s for a in run.timing.answers) for run in runs),
        "ratio": as_dict(ratio),
        "end_to_end_ratio": as_dict(end_to_end),
        **_acceptance(runs, info),
        **_ids_compared(runs, plain_runs, info, ground.classified),
        **_costs(mine, plain, runs, info, ground),
        "limit_fraction": tokens_per_s / (limit * batch) if limit and tokens_per_s else None,
    }


def speed_ratio(over: Sequence[BenchRun], under: Sequence[BenchRun], speed: Speed) -> Ratio | None:
    """How many times faster `over` is than `under`; None without a common group."""
    theirs = {(run.group, run.round): speed(run) for run in under}
    by_group: dict[str, list[float]] = {}
    for run in over:
        mine, other = speed(run), theirs.get((run.group, run.round))
        if mine is not None and other is not None:
            by_group.setdefault(run.group, []).append(mine / other)
    if not by_group:
        return None
    return geometric_mean(np.array([median(ratios) for ratios in by_group.values()]))


def typical_speed(runs: Sequence[BenchRun], speed: Speed) -> float | None:
    """Median over groups of the medians over rounds."""
    by_group: dict[str, list[float]] = {}
    for run in runs:
        value = speed(run)
        if value is not None:
            by_group.setdefault(run.group, []).append(value)
    return median(median(values) for values in by_group.values()) if by_group else None


def as_dict(ratio: Ratio | None) -> Row | None:
    return None if ratio is None else asdict(ratio)


def _decode_speed(run: BenchRun) -> float | None:
    return run.decode_speed


def _end_to_end_speed(run: BenchRun) -> float | None:
    return run.end_to_end_speed


def _acceptance(runs: Sequence[BenchRun], info: MethodInfo) -> Row:
    """Of all drafts of all runs together; nothing is known of peers."""
    stats = SpeculationStats()
    for run in runs:
        for answer in run.timing.answers:
            stats.add(answer.stats)
    num_reached = sum(stats.reached_per_position)
    return {
        "acceptance_length": None if info.is_peer else stats.acceptance_length,
        "alpha": sum(stats.accepted_per_position) / num_reached if num_reached else None,
        "conditional_acceptance": stats.conditional_acceptance,
        "reached_per_position": stats.reached_per_position,
    }


def _ids_compared(
    runs: Sequence[BenchRun],
    plain_runs: Sequence[BenchRun],
    info: MethodInfo,
    classified: Sequence[Classified],
) -> Row:
    """How many greedy answers have plain decoding's ids, the earliest place where one has not, and
    how many of these are rounding ties; None where not all were looked into."""
    expected = {(run.group, run.round): run.token_ids for run in plain_runs}
    kinds = {(each.prompt, each.plain_ids, each.other_ids): each.kind for each in classified}
    places: list[int | None] = []
    found: list[str | None] = []
    for run in runs:
        theirs = expected.get((run.group, run.round))
        if run.temperature != 0 or theirs is None or info.is_plain:
            continue
        for label, mine, other in zip(run.prompts, run.token_ids, theirs, strict=True):
            places.append(first_difference(mine, other))
            if places[-1] is not None:
                found.append(kinds.get((label, tuple(other), tuple(mine))))
    return {
        "num_compared": len(places),
        "num_equal": len(places) - len(found),
        "first_difference": min((place for place in places if place is not None), default=None),
        "num_ties": None if not places or None in found else found.count("tie"),
    }


def _costs(
    mine: StepCosts | None,
    plain: StepCosts | None,
    runs: Sequence[BenchRun],
    info: MethodInfo,
    ground: Ground,
) -> Row:
    c = predicted = None
    if mine is not None and plain is not None and not info.is_plain:
        if mine.draft_token_s is not None:
            c = mine.draft_token_s / plain.pass_s
        curve = nearest_curve(ground.curves, info.shape, _context_len(runs, ground))
        if curve is not None:
            predicted = predicted_ratio(mine, plain, curve)
    step = None
    if mine is not None:
        step = {
            "num_rows": mine.num_rows,
            "draft_ms": 1e3 * mine.draft_s,
            "pass_ms": 1e3 * mine.pass_s,
            "rest_ms": 1e3 * mine.rest_s,
        }
    return {"step": step, "c": c, "predicted_ratio": predicted}


def _context_len(runs: Sequence[BenchRun], ground: Ground) -> float:
    """Tokens cached halfway through an answer, on average."""
    return fmean(
        ground.prompt_lens[label] + len(answer.token_ids) / 2
        for run in runs
        for label, answer in zip(run.prompts, run.timing.answers, strict=True)
    )
