"""What `auto` promises, and whether these measurements bear it out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.auto.prompts import COPYING, HARD
from harness.auto.summary import ALL
from harness.summary import Row
from harness.tables import with_interval
from outpace.measure.methods import PLAIN
from outpace.measure.statistics import Ratio

MOST_ERROR = 0.10
ENTROPY_LOSS = 0.03


@dataclass(frozen=True, slots=True)
class Check:
    """holds: None where too little was measured to tell."""

    where: str
    what: str
    figure: str
    holds: bool | None


def check(summary: Mapping[str, Any]) -> list[Check]:
    """Everything promised of the subject that can be told from the summary."""
    subject = summary["subject"]
    found: list[Check] = []
    for group in summary["main"]:
        where = f"{group['path']}, {group['decoding']}"
        total = next(row for row in group["rows"] if row["category"] == ALL)
        found += _against_fixed(where, total)
        ratios = {row["category"]: _ratio(row, subject) for row in group["rows"]}
        found += _never_slower(where, "column", ratios)
        found += _foreseen(where, group["decided"])
    for group in summary["entropy"]:
        ratio = _ratio(group["rows"][-1], subject)
        holds = None
        if ratio is not None and ratio.high is not None:
            holds = ratio.mean >= 1 - ENTROPY_LOSS or ratio.high >= 1
        what = f"within {ENTROPY_LOSS:.0%} of plain on random words, or within the interval"
        found.append(Check(group["path"], what, with_interval(ratio), holds))
    for group in summary["mixed"]:
        where = f"{group['path']}, mixed"
        found += _against_fixed(where, group["row"])
        found += _different_lengths(where, group["lengths"], subject)
    for group in summary["batch"]:
        where = f"{group['path']}, {group['decoding']}, batches"
        ratios = {str(row["size"]): _ratio(row, subject) for row in group["rows"]}
        found += _never_slower(where, "size", ratios)
    return found


def _ratio(row: Row, name: str) -> Ratio | None:
    ratio: Ratio | None = row["methods"].get(name, {}).get("ratio")
    return ratio


def _against_fixed(where: str, row: Row) -> list[Check]:
    ratio = row["subject_to_best"]
    if ratio is None:
        return []
    holds = None if ratio.high is None else ratio.high >= 1
    what = f"as fast as the best fixed method, {row['best_fixed']}"
    return [Check(where, what, with_interval(ratio), holds)]


def _never_slower(where: str, kind: str, ratios: Mapping[str, Ratio | None]) -> list[Check]:
    known = {name: r for name, r in ratios.items() if r is not None and r.high is not None}
    slower = [name for name, r in known.items() if r.high is not None and r.high < 1]
    figure = ", ".join(f"{name} {with_interval(known[name])}" for name in slower) or "none"
    what = f"in no {kind} slower than {PLAIN} beyond the interval"
    return [Check(where, what, figure, not slower if known else None)]


def _foreseen(where: str, decided: Row | None) -> list[Check]:
    if decided is None or decided["time_bias"] is None:
        return []
    return [
        Check(
            where,
            f"predicted {what} within {MOST_ERROR:.0%} of what was measured",
            f"{decided[name]:+.1%}",
            abs(decided[name]) <= MOST_ERROR,
        )
        for what, name in (("time", "time_bias"), ("tokens", "token_bias"))
        if decided[name] is not None
    ]


def _different_lengths(where: str, rows: Sequence[Row], subject: str) -> list[Check]:
    means = {row["kind"]: row["mean"] for row in rows if row["method"] == subject}
    if set(means) != {COPYING, HARD}:
        return []
    figure = f"{means[COPYING]:.1f} and {means[HARD]:.1f} tokens"
    holds = means[COPYING] > means[HARD]
    return [Check(where, "longer drafts for what copies than for what is hard", figure, holds)]
