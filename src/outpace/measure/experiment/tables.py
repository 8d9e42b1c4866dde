"""The tables of the study as texts, for the terminal and for the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from outpace.measure.experiment.drafts import TRAINED
from outpace.measure.report.numbers import decimals, interval
from outpace.measure.report.table import Table

SPEEDS = ("draft", "k", "c", "alpha", "E", "simple", "exact", "measured")
LOSSES = ("draft", "k", "accepted", "implied v", "v(k+1)", "alpha %", "c %", "v %", "rest %")
_SPEEDS_LEGEND = (
    "c: time of drafting a token, in plain passes. alpha: mean of sum_x min(p, q) over the "
    "positions of the draft. E: output tokens a step. simple: (1 + k alpha) / (1 + k c). exact: "
    "E / (k c + v). measured: times plain decoding's tokens per second"
)
LOSSES_LEGEND = (
    "accepted: share of the draft tokens reached, counted. implied v: E / measured - k c. v(k+1): "
    "a pass over k + 1 rows, measured alone. The last four: shares of the way from k + 1 times "
    "plain down to what was measured; a negative one goes up. -: not reliable."
)
UNTRAINED_TITLE = "Drafts that were not trained for the target"
TRAINED_TITLE = "The same with a trained draft"

Row = Mapping[str, Any]


def speed_tables(summary: Row) -> list[Table]:
    """Acceptance, costs, predictions and what was measured, one line per draft and k."""
    return _tables(summary, SPEEDS, _speed_cells, "")


def speeds_legend(summary: Row) -> str:
    """What the columns of `speed_tables` mean."""
    rows = [row for draft in summary["drafts"] for row in draft["rows"] if row["measured"]]
    has_intervals = any(row["measured"]["low"] is not None for row in rows)
    of_intervals = (
        ", with a 95 % interval over prompts."
        if has_intervals
        else "; fewer than three prompts were answered, so there is no interval."
    )
    return _SPEEDS_LEGEND + of_intervals


def loss_tables(summary: Row) -> list[Table]:
    """What became of the speed, one line per draft and k."""
    return _tables(summary, LOSSES, _loss_cells, ": what the speed was lost to")


def _tables(
    summary: Row, headings: Sequence[str], cells: Callable[[Row], Sequence[str]], suffix: str
) -> list[Table]:
    """One table of the untrained drafts and one of the trained, as far as there are any."""
    tables = []
    for title, is_trained in ((UNTRAINED_TITLE, False), (TRAINED_TITLE, True)):
        rows = [
            (draft["label"], str(row["k"]), *cells(row))
            for draft in summary["drafts"]
            if (draft["kind"] == TRAINED) == is_trained
            for row in draft["rows"]
        ]
        if rows:
            tables.append(Table(headings, rows, caption=title + suffix))
    return tables


def _speed_cells(row: Row) -> Sequence[str]:
    measured = row["measured"] or dict.fromkeys(("mean", "low", "high"))
    return (
        decimals(row["c"]),
        decimals(row["alpha"], 3),
        decimals(row["expected_tokens"]),
        decimals(row["simple_ratio"]),
        decimals(row["predicted_ratio"]),
        interval(measured["mean"], measured["low"], measured["high"]),
    )


def _loss_cells(row: Row) -> Sequence[str]:
    shares = row["loss"] or {}
    return (
        decimals(row["accepted_share"], 3),
        decimals(row["implied_v"]),
        decimals(row["v"]),
        *(
            decimals(None if name not in shares else 100 * shares[name], 0)
            for name in ("alpha", "draft", "rows", "rest")
        ),
    )


def bar_lines(summary: Row, width: int) -> Iterator[tuple[str, str, str]]:
    """(name, bar, figures) for each draft and k, as a chart in characters.

    A full block is measured; a light one is what the simple formula promises beyond it. The first
    line is plain decoding. width: characters of the longest bar.
    """
    rows = [
        (f"{draft['label']}, k = {row['k']}", row)
        for draft in summary["drafts"]
        for row in draft["rows"]
        if row["measured"] is not None
    ]
    means = [float(row["measured"]["mean"]) for _, row in rows]
    tallest = max([1.0, *means, *(_promised(row) for _, row in rows)])

    def blocks(value: float) -> int:
        return round(value / tallest * width)

    yield "plain", "█" * blocks(1.0), "1.00"
    for name, row in rows:
        mean = row["measured"]["mean"]
        bar = "█" * blocks(mean)
        bar += "░" * max(0, blocks(_promised(row)) - len(bar))
        yield name, bar, f"{mean:.2f}, simple {decimals(row['simple_ratio'])}"


def _promised(row: Row) -> float:
    return row["simple_ratio"] or 0.0
