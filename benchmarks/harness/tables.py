"""Results told to people: tables on stdout, each with a line that says how to read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from harness.results import Results, Run
from harness.summary import (
    Ratio,
    Row,
    category_rows,
    method_rows,
    overhead_rows,
    pass_rows,
    unique,
)


def summarise(results: Results, methods: Sequence[str], seed: int) -> dict[str, Any]:
    """Everything the tables show. methods: our own, the plain one first."""
    return {
        "passes": pass_rows(results.passes),
        "decoding": [
            {
                "dtype": dtype,
                "decoding": decoding,
                "method": method,
                "reference": methods[0],
                "rows": category_rows(runs, method, methods[0], seed),
            }
            for dtype, decoding, runs in groups(results.runs)
            for method in methods[1:]
            if any(run.method == method for run in runs)
        ],
        "overheads": overhead_rows(results.overheads),
        "engines": [
            {
                "dtype": dtype,
                "decoding": decoding,
                "methods": methods,
                "rows": method_rows(runs, methods, seed),
            }
            for dtype, decoding, runs in groups(results.runs)
        ],
    }


def groups(runs: Sequence[Run]) -> list[tuple[str, str, list[Run]]]:
    """Runs by dtype and sampling parameters, greedy ones first."""
    return [
        (dtype, decoding, [r for r in runs if (r.dtype, r.decoding) == (dtype, decoding)])
        for decoding in unique(run.decoding for run in runs)
        for dtype in unique(run.dtype for run in runs if run.decoding == decoding)
    ]


def show_header(header: Mapping[str, Any], console: Console, title: str) -> None:
    console.print(title, style="bold", highlight=False)
    for name, value in header.items():
        text = "-" if value is None else value
        console.print(f"  {name:<18} {text}", markup=False, highlight=False, soft_wrap=True)


def show_summary(summary: Mapping[str, Any], console: Console) -> None:
    _show_passes(summary["passes"], console)
    for group in summary["decoding"]:
        _show_categories(group, console)
    _show_overheads(summary["overheads"], console)
    for group in summary["engines"]:
        _show_engines(group, console)


def _show_passes(rows: Sequence[Row], console: Console) -> None:
    if not rows:
        return
    columns = unique(f"{row['dtype']}, {row['context_len']}" for row in rows)
    cells = {(f"{r['dtype']}, {r['context_len']}", r["num_rows"]): r for r in rows}
    table = new_table("n", *columns)
    for n in sorted({row["num_rows"] for row in rows}):
        found = [cells.get((column, n)) for column in columns]
        table.add_row(
            str(n), *("-" if r is None else f"{r['median_ms']:.1f}  {r['v']:.2f}" for r in found)
        )
    show_table(
        "1. A target pass over n rows: ms, and v(n) relative to n = 1",
        table,
        "Columns: dtype, cached tokens. v(n): the median of ratios within repetitions.",
        console,
    )


def _show_categories(group: Mapping[str, Any], console: Console) -> None:
    table = new_table(
        "category",
        "prompts",
        "plain tokens/s",
        "tokens/s",
        "ratio",
        "95 % interval",
        "end-to-end ratio",
        "acceptance length",
        "ids equal",
    )
    for row in group["rows"]:
        if row["category"] == "all":
            table.add_section()
        ratio = row["decode_ratio"]
        table.add_row(
            row["category"],
            str(row["num_prompts"]),
            number(row["reference_tokens_per_s"], 1),
            number(row["tokens_per_s"], 1),
            number(ratio and ratio.mean),
            interval(ratio),
            number(row["end_to_end_ratio"] and row["end_to_end_ratio"].mean),
            number(row["acceptance_length"]),
            equal(row),
        )
    show_table(
        f"2. {group['method']} against {group['reference']}: {group['dtype']}, {group['decoding']}",
        table,
        "tokens/s: decoding only, the tokens after the first step over the time after it. Ratio: "
        "geometric mean over prompts; the interval resamples prompts. End to end: whole calls.",
        console,
    )


def _show_overheads(rows: Sequence[Row], console: Console) -> None:
    if not rows:
        return
    table = new_table(
        "dtype",
        "method",
        "decoding",
        "steps",
        "draft",
        "target pass",
        "rest of step",
        "between steps",
        "outside passes",
    )
    for row in rows:
        table.add_row(
            row["dtype"],
            row["method"],
            row["decoding"],
            str(row["num_steps"]),
            *(f"{row[k]:.2f}" for k in ("draft_ms", "target_ms", "rest_of_step_ms")),
            f"{row['between_steps_ms']:.2f}",
            f"{row['share_outside_passes']:.1%}",
        )
    show_table(
        "3. Where a decoding step's time goes, ms per step",
        table,
        "Prompts were cached, so every step decodes. Outside passes: the share of the wall time "
        "that no target pass accounts for, drafting included.",
        console,
    )


def _show_engines(group: Mapping[str, Any], console: Console) -> None:
    others = [row for row in group["rows"] if row["decode_ratios"]]
    ours = group["methods"] if others else []
    table = new_table(
        "method",
        "tokens/s",
        "end-to-end tokens/s",
        "first token ms",
        "acceptance length",
        "ids equal",
        *(f"{name} / it" for name in ours),
    )
    for row in group["rows"]:
        ratios = [row["decode_ratios"].get(name) for name in ours]
        table.add_row(
            row["method"],
            number(row["tokens_per_s"], 1),
            number(row["end_to_end_tokens_per_s"], 1),
            number(row["ttft_ms"], 0),
            number(row["acceptance_length"]),
            equal(row),
            *(with_interval(ratio) for ratio in ratios),
        )
    show_table(
        f"4. Engines side by side: {group['dtype']}, {group['decoding']}",
        table,
        f"ids equal: to those of {group['methods'][0]}."
        + (
            " X / it: how many times faster X decodes than this row's method; geometric mean over "
            "prompts with its 95 % interval."
            if others
            else ""
        ),
        console,
    )


def new_table(first: str, *columns: str) -> Table:
    table = Table()
    table.add_column(first, no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", overflow="fold")
    return table


def show_table(title: str, table: Table, caption: str, console: Console) -> None:
    console.print()
    console.print(title, style="bold", highlight=False)
    console.print(table)
    if caption:
        console.print(caption, style="dim", highlight=False)


def number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def interval(ratio: Ratio | None) -> str:
    if ratio is None or ratio.low is None or ratio.high is None:
        return "-"
    return f"{ratio.low:.2f} to {ratio.high:.2f}"


def with_interval(ratio: Ratio | None) -> str:
    if ratio is None:
        return "-"
    around = "" if ratio.low is None else f" ({interval(ratio)})"
    return f"{ratio.mean:.2f}{around}"


def equal(row: Row) -> str:
    text = f"{row['num_equal']}/{row['num_compared']}"
    if row["first_difference"] is None:
        return text
    return f"{text}, first at {row['first_difference']}"
