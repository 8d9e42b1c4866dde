"""From raw results to the rows of tables. Pure: the same results give the same rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from statistics import median
from typing import Any

from harness.auto.prompts import COPYING, HARD
from harness.auto.results import BatchRun, Results
from harness.results import Run
from harness.summary import (
    Row,
    acceptance_length,
    decode_speed,
    end_to_end_speed,
    groups,
    ids_compared,
    speed_ratio,
    typical_speed,
)
from outpace.engine.metrics import EngineMetrics
from outpace.measure.decided import Decided
from outpace.measure.methods import PLAIN
from outpace.measure.statistics import first_difference, unique
from outpace.outputs import SpeculationStats

ALL = "all"
NO_DRAFT = "none"
LENGTHS = ((0, 0), (1, 1), (2, 2), (3, 4), (5, 8), (9, None))
"""Classes of draft lengths, each from its first to its last."""


def summarise(results: Results) -> dict[str, Any]:
    """Everything the tables show."""
    subject, fixed = results.subject, results.fixed
    return {
        "subject": subject,
        "fixed": fixed,
        "main": [
            {
                "path": path,
                "decoding": decoding,
                "rows": column_rows(runs, subject, fixed),
                "decided": decided_row(runs, subject),
                "steps": step_rows(runs),
            }
            for path, decoding, runs in groups(results.runs)
        ],
        "entropy": [
            {
                "path": path,
                "decoding": decoding,
                "rows": column_rows(runs, subject, fixed)[-1:],
                "decided": decided_row(runs, subject),
                "steps": step_rows(runs),
            }
            for path, decoding, runs in groups(results.entropy_runs)
        ],
        "mixed": [
            {
                "path": path,
                "row": batch_row(runs, subject, fixed),
                "lengths": length_rows(runs, results.trees),
                "requests": request_rows(runs, subject, results.trees),
                "decided": decided_row(runs, subject),
                "steps": step_rows(runs),
            }
            for path, _, runs in batch_groups(results.batch_runs, "mixed")
        ],
        "batch": [
            {
                "path": path,
                "decoding": decoding,
                "rows": [
                    {
                        "size": size,
                        **batch_row([r for r in runs if r.size == size], subject, fixed),
                    }
                    for size in unique(run.size for run in runs)
                ],
                "decided": decided_row(runs, subject),
                "steps": step_rows(runs),
            }
            for path, decoding, runs in batch_groups(results.batch_runs, "batch")
        ],
    }


def batch_groups(runs: Sequence[BatchRun], part: str) -> list[tuple[str, str, list[BatchRun]]]:
    """Runs of one part by path and sampling parameters."""
    return groups([run for run in runs if run.part == part])


def column_rows(runs: Sequence[Run], subject: str, fixed: Sequence[str]) -> list[Row]:
    """All methods by category, then over all prompts."""
    rows = []
    for category in (*unique(run.category for run in runs), None):
        here = [run for run in runs if category in (None, run.category)]
        row: Row = {
            "category": ALL if category is None else category,
            "num_prompts": len(unique(run.prompt for run in here)),
            **compared(here, subject, fixed, acceptance_length, ids_compared),
        }
        decided = decided_row(here, subject)
        row["shares"] = decided["shares"] if decided else {}
        rows.append(row)
    return rows


def batch_row(runs: Sequence[BatchRun], subject: str, fixed: Sequence[str]) -> Row:
    """All methods over all groups of one size."""
    return {
        "num_groups": len(unique(run.prompt for run in runs)),
        **compared(runs, subject, fixed, batch_acceptance_length, batch_ids_compared),
    }


def compared(
    runs: Sequence[Any],
    subject: str,
    fixed: Sequence[str],
    length: Callable[[Sequence[Any]], float | None],
    ids: Callable[[Sequence[Any], Sequence[Any]], Row],
) -> Row:
    """Every method beside plain decoding and beside the subject, and the subject beside the fixed
    method with the best ratio to plain.

    That one is picked for having been the fastest in these very runs, which is in its favour.
    """
    by_method = {
        name: [run for run in runs if run.method == name]
        for name in unique(run.method for run in runs)
    }
    plain, mine = by_method.get(PLAIN, []), by_method.get(subject, [])
    methods: dict[str, Row] = {}
    for name, own in by_method.items():
        methods[name] = {
            "tokens_per_s": typical_speed(own, decode_speed),
            "acceptance_length": length(own),
            "ratio": speed_ratio(own, plain, decode_speed),
            "end_to_end_ratio": speed_ratio(own, plain, end_to_end_speed),
            "subject_ratio": speed_ratio(mine, own, decode_speed),
            **ids(own, plain),
        }
    ranked = [(methods[n]["ratio"].mean, n) for n in fixed if n in methods and methods[n]["ratio"]]
    best = max(ranked)[1] if ranked else None
    return {
        "methods": methods,
        "best_fixed": best,
        "subject_to_best": methods[best]["subject_ratio"] if best else None,
    }


def batch_acceptance_length(runs: Sequence[BatchRun]) -> float | None:
    """Output tokens per request and target pass."""
    stats = _stats_of(answer.stats for run in runs for answer in run.timing.answers)
    return stats.num_output_tokens / stats.num_steps if stats.num_steps else None


def batch_ids_compared(runs: Sequence[BatchRun], reference: Sequence[BatchRun]) -> Row:
    """As `ids_compared`, for every request that was decoded greedily."""
    expected = {(run.prompt, run.round): run.token_ids for run in reference}
    places = []
    for run in runs:
        theirs = expected.get((run.prompt, run.round), [])
        for kind, mine, other in zip(run.kinds, run.token_ids, theirs, strict=False):
            if run.decoding == "greedy" or kind == COPYING:
                places.append(first_difference(mine, other))
    differing = [place for place in places if place is not None]
    return {
        "num_compared": len(places),
        "num_equal": len(places) - len(differing),
        "first_difference": min(differing, default=None),
    }


def decided_row(runs: Sequence[Any], subject: str) -> Row | None:
    """What the subject decided in these runs; None if it decides nothing.

    shares: of steps, by source; accepted, drafted: tokens by source. time_bias, token_bias: of all
    that was predicted together, relative to all that was measured. time_error, token_error: the
    same for each generation by itself, the mean of its absolute values. step_error: the median of
    the absolute error of a single step's time.
    """
    all_decided = [run.timing.decided for run in runs if run.method == subject]
    found = [decided for decided in all_decided if decided is not None]
    total = Decided()
    for decided in found:
        total.add(decided)
    num_steps = sum(total.steps.values())
    if not num_steps:
        return None
    ranked = sorted(total.steps.items(), key=lambda item: -item[1])
    return {
        "num_steps": num_steps,
        "num_planned": total.num_planned,
        "shares": {source: count / num_steps for source, count in ranked},
        "drafted": total.drafted,
        "accepted": total.accepted,
        "time_bias": total.time_error,
        "token_bias": total.token_error,
        "time_error": _mean_size(decided.time_error for decided in found),
        "token_error": _mean_size(decided.token_error for decided in found),
        "step_error": median(map(abs, total.time_errors)) if total.time_errors else None,
    }


def step_rows(runs: Sequence[Any]) -> list[Row]:
    """Where every method's time went, milliseconds per decoding step."""
    rows = []
    for method in unique(run.method for run in runs):
        total = EngineMetrics()
        for run in runs:
            if run.method == method:
                for count in fields(EngineMetrics):
                    more = getattr(run.timing.counted, count.name)
                    setattr(total, count.name, getattr(total, count.name) + more)
        if total.num_steps:
            rows.append(
                {
                    "method": method,
                    "num_steps": total.num_steps,
                    "draft_ms": 1e3 * total.draft_s / total.num_steps,
                    "pass_ms": 1e3 * total.target_s / total.num_steps,
                    "rest_ms": 1e3 * total.overhead_s_per_step,
                }
            )
    return rows


def length_rows(runs: Sequence[BatchRun], trees: Sequence[str]) -> list[Row]:
    """How long every method's drafts were for requests of either kind."""
    return [
        {"method": method, "kind": kind, **lengths(stats, method in trees)}
        for method in unique(run.method for run in runs)
        for kind in (COPYING, HARD)
        for stats in [
            _stats_of(
                answer.stats
                for run in runs
                if run.method == method
                for own, answer in zip(run.kinds, run.timing.answers, strict=True)
                if own == kind
            )
        ]
        if stats.num_steps
    ]


def request_rows(runs: Sequence[BatchRun], subject: str, trees: Sequence[str]) -> list[Row]:
    """How long the subject's drafts were, for every request of its first group."""
    first = next((run for run in runs if run.method == subject), None)
    if first is None:
        return []
    answers = zip(first.labels, first.kinds, first.timing.answers, strict=True)
    return [
        {"request": label, "kind": kind, **lengths(answer.stats, subject in trees)}
        for label, kind, answer in answers
    ]


def lengths(stats: SpeculationStats, is_tree: bool) -> Row:
    """Mean number of draft tokens, shares of steps by class of `LENGTHS` (empty for trees, whose
    siblings would be counted as longer drafts), and output tokens per pass."""
    at_least = [stats.num_steps, *stats.drafted_per_position]

    def longer(length: int | None) -> int:
        return at_least[length] if length is not None and length < len(at_least) else 0

    counts = [longer(low) - longer(None if high is None else high + 1) for low, high in LENGTHS]
    num_steps = stats.num_steps or 1
    return {
        "mean": sum(stats.drafted_per_position) / num_steps,
        "shares": [] if is_tree else [count / num_steps for count in counts],
        "acceptance_length": stats.acceptance_length,
    }


def _stats_of(each: Any) -> SpeculationStats:
    total = SpeculationStats()
    for stats in each:
        total.add(stats)
    return total


def _mean_size(values: Any) -> float | None:
    sizes = [abs(value) for value in values if value is not None]
    return sum(sizes) / len(sizes) if sizes else None
