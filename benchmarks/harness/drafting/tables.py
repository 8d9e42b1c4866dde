"""Results of the benchmark of drafting methods told to people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from harness.drafting.results import Results
from harness.summary import Row, unique
from harness.tables import equal, interval, new_table, number, show_table, with_interval
from outpace.measure.methods import SHAPES

_SHOWN_POSITIONS = 6
_METHOD_CAPTION = (
    "Times per step, after the first. rows: tokens fed per target pass. rest: outside drafter and "
    "pass. c: drafting per draft token over a pass of {0}. Ratio: of tokens/s to {0}, geometric "
    "mean over prompts; the interval resamples prompts."
)


def show_summary(summary: Mapping[str, Any], reference: str, console: Console) -> None:
    _show_passes(summary["passes"], console)
    drafting = summary["drafting"]
    for group in drafting:
        _show_method(group, console)
    if drafting:
        console.print(_METHOD_CAPTION.format(reference), style="dim", highlight=False)
    for path, decoding in unique((g["path"], g["decoding"]) for g in drafting):
        methods = [g for g in drafting if (g["path"], g["decoding"]) == (path, decoding)]
        _show_overview(f"{path}, {decoding}", methods, reference, console)
    for group in summary["widths"]:
        _show_widths(group, console)


def _show_passes(rows: Sequence[Row], console: Console) -> None:
    if not rows:
        return
    counts = sorted({row["num_rows"] for row in rows})
    kinds = unique((row["dtype"], row["context_len"], row["shape"]) for row in rows)
    cells = {(r["dtype"], r["context_len"], r["shape"], r["num_rows"]): r for r in rows}
    table = new_table("path", "cached", "shape", *(f"n = {n}" for n in counts))
    for path, context_len, shape in kinds:
        found = [cells.get((path, context_len, shape, n)) for n in counts]
        table.add_row(
            path,
            str(context_len),
            shape,
            *("-" if r is None else f"{r['median_ms']:.1f}  {r['v']:.2f}" for r in found),
        )
    show_table(
        "1. A target pass over n rows: ms, and v(n) relative to n = 1",
        table,
        "Rows: the newest token and n - 1 draft tokens, a chain or a tree of two children each.",
        console,
    )


def _show_method(group: Mapping[str, Any], console: Console) -> None:
    table = new_table(
        "column",
        "prompts",
        "acceptance length",
        f"accepted at 1 to {_SHOWN_POSITIONS}, given all before",
        "rows",
        "draft ms",
        "pass ms",
        "rest ms",
        "c",
        "tokens/s",
        "ratio",
        "95 % interval",
        "ids equal",
    )
    for row in group["rows"]:
        if row["category"] == "all":
            table.add_section()
        cost = row["cost"]
        parts = ("num_rows", "draft_ms", "pass_ms", "rest_ms")
        digits = dict(zip(parts, (2, 3, 2, 2), strict=True))
        table.add_row(
            row["category"],
            str(row["num_prompts"]),
            number(row["acceptance_length"]),
            " ".join(f"{a:.2f}" for a in row["conditional_acceptance"][:_SHOWN_POSITIONS]) or "-",
            *(number(cost and getattr(cost, part), digits[part]) for part in parts),
            number(row["c"], 3),
            number(row["tokens_per_s"], 1),
            number(row["decode_ratio"] and row["decode_ratio"].mean),
            interval(row["decode_ratio"]),
            equal(row),
        )
    title = f"2. {group['method']}: {group['path']}, {group['decoding']}"
    show_table(title, table, "", console)


def _show_overview(
    title: str, methods: Sequence[Mapping[str, Any]], reference: str, console: Console
) -> None:
    columns = unique(row["category"] for group in methods for row in group["rows"])
    columns = [*(c for c in columns if c != "all"), "all"]
    table = new_table("method", *columns, "all, interval", "ids equal")
    for group in methods:
        if group["method"] == reference:
            continue
        rows = {row["category"]: row for row in group["rows"]}
        cells = [rows.get(column) for column in columns]
        table.add_row(
            group["method"],
            *(_length_and_ratio(row) for row in cells),
            interval(rows["all"]["decode_ratio"]),
            equal(rows["all"]),
        )
    show_table(
        f"3. Acceptance length, and tokens/s relative to {reference}: {title}",
        table,
        "Table 2 at a glance.",
        console,
    )


def _length_and_ratio(row: Row | None) -> str:
    if row is None:
        return "-"
    ratio = row["decode_ratio"]
    return f"{number(row['acceptance_length'])}  {number(ratio and ratio.mean)}x"


def _show_widths(group: Mapping[str, Any], console: Console) -> None:
    table = new_table("method", "K")
    for shape in SHAPES:
        for column in ("acceptance length", "rows", "predicted", "tokens/s", "ratio"):
            table.add_column(f"{shape} {column}", justify="right", overflow="fold")
    table.add_column("tree / chain", justify="right")
    table.add_column("faster", justify="right")
    for index, row in enumerate(group["rows"]):
        if index and row["method"] != group["rows"][index - 1]["method"]:
            table.add_section()
        cells: list[str] = []
        for shape in SHAPES:
            cost, ratio = row[shape]["cost"], row[shape]["decode_ratio"]
            cells += [
                number(cost and cost.acceptance_length),
                number(cost and cost.num_rows, 1),
                number(row[shape]["predicted_tokens_per_s"], 1),
                number(cost and cost.tokens_per_s, 1),
                f"{number(ratio and ratio.mean)}x",
            ]
        k = str(row["num_speculative_tokens"])
        ratio = with_interval(row["tree_to_chain"])
        table.add_row(row["method"], k, *cells, ratio, row["winner"] or "neither")
    show_table(
        f"4. Chain against tree: {group['path']}, {group['decoding']}",
        table,
        "predicted: tokens/s from acceptance length / (draft time + v(rows) x plain pass), without "
        "the rest of a step; tokens/s: measured, all steps together. ratio: to plain. tree / "
        "chain: measured, with its 95 % interval; neither: it contains 1, or there is none.",
        console,
    )


def show_end(results: Results, console: Console) -> None:
    console.print()
    for note in results.notes:
        console.print(f"Note: {note}", markup=False, highlight=False)
    for path in results.paths:
        runs = [run for run in results.runs if run.dtype == path]
        prompts = len(unique(run.prompt for run in runs))
        rounds = len(unique(run.round for run in runs))
        console.print(f"{path}: {prompts} prompts, {rounds} rounds begun.", highlight=False)
    console.print(f"Total time: {results.elapsed_s / 60:.1f} min.", highlight=False)
