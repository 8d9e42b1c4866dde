"""From raw results of the server to the rows of its table. Pure: as harness/summary.py."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from harness.serve.results import LoadRun, Results
from harness.summary import Row, speed_ratio, typical_speed
from outpace.measure.methods import PLAIN
from outpace.measure.statistics import first_difference, unique

PERCENTILES = (50, 95, 99)


def summarise(results: Results) -> dict[str, Any]:
    """Everything the tables show."""
    return {
        "subject": results.subject,
        "rows": [
            method_row([run for run in results.runs if run.num_clients == num_clients], method)
            for num_clients in sorted(unique(run.num_clients for run in results.runs))
            for method in (PLAIN, results.subject)
            if any((r.num_clients, r.method) == (num_clients, method) for r in results.runs)
        ],
    }


def method_row(runs: Sequence[Any], method: str) -> Row:
    """One method beside plain decoding, with as many clients.

    Speeds are medians over sets of the medians over rounds, the ratio is as everywhere, and
    percentiles are of all requests of all rounds.
    """
    mine = [run for run in runs if run.method == method]
    plain = [run for run in runs if run.method == PLAIN]
    answers = [answer for run in mine for answer in run.answers]
    num_passes = sum(answer.num_passes for answer in answers)
    return {
        "num_clients": mine[0].num_clients,
        "method": method,
        "num_sets": len(unique(run.prompt for run in mine)),
        "num_rounds": len(unique(run.round for run in mine)),
        "num_requests": len(answers),
        "tokens_per_s": typical_speed(mine, _token_speed),
        "requests_per_s": typical_speed(mine, _request_speed),
        "ratio": None if method == PLAIN else speed_ratio(mine, plain, _token_speed),
        "ttft_s": percentiles(answer.ttft_s for answer in answers),
        "token_s": percentiles(answer.token_s for answer in answers),
        "total_s": percentiles(answer.total_s for answer in answers),
        "acceptance_length": sum(a.num_tokens for a in answers) / num_passes
        if num_passes
        else None,
        "num_cached": sum(answer.num_cached for answer in answers),
        "client_share": sum(run.client_s for run in mine) / sum(run.total_s for run in mine),
        **texts_compared(mine, plain),
    }


def percentiles(values: Iterable[float | None]) -> dict[str, float] | None:
    """By name ("p50"), of the values that exist; None without any."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return {f"p{p}": float(np.percentile(known, p)) for p in PERCENTILES}


def texts_compared(runs: Sequence[LoadRun], reference: Sequence[LoadRun]) -> Row:
    """How many answers have the reference's text, and the earliest character where one differs."""
    expected = {(run.prompt, run.round): run.answers for run in reference}
    places = [
        first_difference(mine.text, theirs.text)
        for run in runs
        if (run.prompt, run.round) in expected
        for mine, theirs in zip(run.answers, expected[run.prompt, run.round], strict=True)
    ]
    differing = [place for place in places if place is not None]
    return {
        "num_compared": len(places),
        "num_equal": len(places) - len(differing),
        "first_difference": min(differing, default=None),
    }


def _token_speed(run: Any) -> float | None:
    speed: float = run.token_speed
    return speed


def _request_speed(run: Any) -> float | None:
    speed: float = run.request_speed
    return speed
