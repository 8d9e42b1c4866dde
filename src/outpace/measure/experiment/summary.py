"""From what was measured to the tables of the study. Pure.

With E the output tokens per target pass, c the time of drafting one token and v(n) that of a pass
over n rows, both in plain passes, the measured speed-up S is reached from K + 1, what it would be
if everything were accepted and all but one plain pass per step were free, in four factors:

    S = (K + 1) x E / (K + 1)                 low alpha
                x 1 / (1 + K c)               drafting
                x (1 + K c) / (K c + v)       verifying K + 1 rows instead of one
                x S (K c + v) / E             all the rest of the engine, beside plain decoding's

Their logarithms add up, so each has a share of the way down. A negative share has brought S up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import median
from typing import Any

import numpy as np

from outpace.measure.experiment.meter import Agreement
from outpace.measure.experiment.results import (
    DraftRuns,
    ExperimentResults,
    LengthRuns,
    TimedAnswer,
)
from outpace.measure.formulas import (
    PassCosts,
    expected_tokens,
    free_speedup,
    implied_v,
    needed_alpha,
    simple_speedup,
    speedup,
)
from outpace.measure.passes import PassTimes
from outpace.measure.statistics import Ratio, geometric_mean, unique, wilson
from outpace.outputs import SpeculationStats

SCHEMA = 1
LEAST_TOKENS = 8
"""Answers of one prompt with fewer tokens than this are too short to be timed."""
MOST_ABOVE_TOKENS = 1.2
"""A pass over several rows can be a little cheaper than one over a single row, but not by more."""

Row = dict[str, Any]


def summarise(results: ExperimentResults) -> Row:
    """Everything that reports show, as JSON values.

    Drafts whose every length was not measured yet, after an interruption, are left out.
    """
    plain, pass_s = results.plain, _pass_s(results.plain)
    costs = pass_costs(results.passes)
    drafts = []
    for draft in results.drafts:
        if pass_s and costs and all(runs.answers and runs.times for runs in draft.lengths):
            drafts.append(_draft(draft, plain, pass_s, costs))
    return {
        "schema": SCHEMA,
        "provenance": results.provenance,
        "target": results.target,
        "options": results.options,
        "notes": results.notes,
        "complete": results.complete,
        "elapsed_s": results.elapsed_s,
        "num_rounds": results.num_rounds,
        "num_prompts": len(unique(answer.prompt for answer in plain.answers)),
        "plain": _plain(plain, pass_s),
        "passes": _passes(results.passes, costs),
        "drafts": drafts,
    }


def pass_costs(passes: list[PassTimes]) -> PassCosts | None:
    """v(n) from medians over all repetitions; None where nothing was measured."""
    seconds = _by_rows(passes)
    if not seconds.get(1):
        return None
    return PassCosts.measured({rows: median(times) for rows, times in seconds.items() if times})


def loss_shares(k: int, expected: float, c: float, v: float, ratio: float) -> dict[str, float]:
    """The share of each factor in the way from K + 1 down to `ratio`; see the module. They add up
    to 1. All 0 where nothing was lost."""
    factors = {
        "alpha": expected / (k + 1),
        "draft": 1 / (1 + k * c),
        "rows": (1 + k * c) / (k * c + v),
        "rest": ratio * (k * c + v) / expected,
    }
    way = math.log((k + 1) / ratio)
    if way <= 0:
        return dict.fromkeys(factors, 0.0)
    return {name: -math.log(factor) / way for name, factor in factors.items()}


def _by_rows(passes: list[PassTimes]) -> dict[int, list[float]]:
    seconds: dict[int, list[float]] = {}
    for times in passes:
        seconds.setdefault(times.num_rows, []).extend(times.seconds)
    return seconds


def _passes(passes: list[PassTimes], costs: PassCosts | None) -> list[Row]:
    if costs is None:
        return []
    seconds = _by_rows(passes)
    return [
        {
            "num_rows": rows,
            "context_len": passes[0].context_len,
            "median_ms": 1000 * median(seconds[rows]),
            "v": costs.at(rows),
        }
        for rows in sorted(seconds)
    ]


def _pass_s(plain: LengthRuns) -> float | None:
    """Seconds of a plain target pass as the engine makes them."""
    return median(times.target_s for times in plain.times) if plain.times else None


def _plain(plain: LengthRuns, pass_s: float | None) -> Row | None:
    if pass_s is None or not plain.answers:
        return None
    return {
        "tokens_per_s": _speed(plain.answers),
        "pass_ms": 1000 * pass_s,
        "rest_ms": 1000 * median(times.rest_s for times in plain.times),
        "num_answers": len(plain.answers),
    }


def _draft(draft: DraftRuns, plain: LengthRuns, pass_s: float, costs: PassCosts) -> Row:
    return {
        "label": draft.label,
        "kind": draft.kind,
        "description": draft.description,
        "acceptance": _acceptance(draft.agreement),
        "rows": [_row(runs, draft.agreement, plain, pass_s, costs) for runs in draft.lengths],
    }


def _acceptance(agreement: Agreement) -> Row:
    return {
        "alphas": agreement.alphas,
        "num_drafts": agreement.num_drafts,
        "num_accepted": agreement.accepted,
        "num_expected": agreement.expected,
        "drawn_chance": agreement.drawn.chance,
        "decided_chance": agreement.decided.chance,
        "is_drawn_from_q": agreement.drawn.holds,
        "is_decided_by_p_and_q": agreement.decided.holds,
    }


def _row(
    runs: LengthRuns, agreement: Agreement, plain: LengthRuns, pass_s: float, costs: PassCosts
) -> Row:
    """One line of the table. Costs are in plain passes."""
    k, stats = runs.k, _stats(runs.answers)
    alpha = agreement.alpha(k)
    draft_cost = median(times.draft_s for times in runs.times) / pass_s
    c, v = draft_cost / k, costs.at(k + 1)
    expected = expected_tokens(stats.conditional_acceptance, k)
    measured = ratio_to(plain.answers, runs.answers)
    low, high = wilson(stats.num_accepted_tokens, sum(stats.reached_per_position))
    row: Row = {
        "k": k,
        "c": c,
        "alpha": alpha,
        "accepted_share": stats.num_accepted_tokens / sum(stats.reached_per_position),
        "accepted_low": low,
        "accepted_high": high,
        "conditional_acceptance": stats.conditional_acceptance,
        "expected_tokens": expected,
        "simple_ratio": None if alpha is None else simple_speedup(alpha, k, c),
        "free_ratio": free_speedup(stats.conditional_acceptance, k, c),
        "predicted_ratio": speedup(expected, k, c, v),
        "measured": _ratio_json(measured),
        "tokens_per_s": _speed(runs.answers),
        "v": v,
        "step": _step(runs, pass_s),
        "needed_alpha": needed_alpha(k, c, v),
        "unreliable": "not measured",
        "implied_v": None,
        "loss": None,
    }
    if measured is not None:
        implied = implied_v(measured.mean, expected, k, c)
        row["unreliable"] = _unreliable(measured, expected, implied)
        if row["unreliable"] is None:
            row["implied_v"] = implied
            row["loss"] = loss_shares(k, expected, c, v, measured.mean)
    return row


def _unreliable(measured: Ratio, expected: float, implied: float) -> str | None:
    """Why nothing should be concluded from a measured ratio; None where it can be relied on."""
    if measured.low is None:
        return "fewer than three prompts"
    if measured.mean > MOST_ABOVE_TOKENS * expected:
        return "faster than its tokens a step allow"
    return "its times leave none for verifying" if implied < 0 else None


def _step(runs: LengthRuns, pass_s: float) -> dict[str, float]:
    """What a full step takes, median of each part, in plain passes."""
    parts = {
        "draft": [times.draft_s for times in runs.times],
        "pass": [times.target_s for times in runs.times],
        "rest": [times.rest_s for times in runs.times],
    }
    return {name: median(seconds) / pass_s for name, seconds in parts.items()}


def _stats(answers: list[TimedAnswer]) -> SpeculationStats:
    total = SpeculationStats()
    for answer in answers:
        total.add(answer.stats)
    return total


def _speed(answers: list[TimedAnswer]) -> float | None:
    """Tokens per second, after the first step of each."""
    seconds = sum(answer.seconds for answer in answers)
    return sum(answer.num_tokens for answer in answers) / seconds if seconds > 0 else None


def ratio_to(plain: list[TimedAnswer], drafted: list[TimedAnswer]) -> Ratio | None:
    """Speed over plain decoding's on the same prompts, over prompts; None without a prompt on which
    both had enough to say."""
    ours, theirs = _by_prompt(drafted), _by_prompt(plain)
    ratios = [ours[prompt] / theirs[prompt] for prompt in ours if prompt in theirs]
    return geometric_mean(np.array(ratios)) if ratios else None


def _by_prompt(answers: list[TimedAnswer]) -> Mapping[str, float]:
    """Tokens per second by prompt, where there were enough."""
    speeds = {}
    for prompt in unique(answer.prompt for answer in answers):
        own = [answer for answer in answers if answer.prompt == prompt]
        speed = _speed(own)
        if speed is not None and sum(answer.num_tokens for answer in own) >= LEAST_TOKENS:
            speeds[prompt] = speed
    return speeds


def _ratio_json(ratio: Ratio | None) -> Row | None:
    if ratio is None:
        return None
    return {
        "mean": ratio.mean,
        "low": ratio.low,
        "high": ratio.high,
        "num_prompts": ratio.num_prompts,
    }
