"""Results of the benchmark of `auto` told to people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from harness.auto.checks import Check
from harness.auto.options import PARTS
from harness.auto.results import Results
from harness.auto.summary import ALL, LENGTHS, NO_DRAFT
from harness.summary import Row
from harness.tables import equal, interval, new_table, number, show_table, with_interval
from outpace.measure.methods import PLAIN
from outpace.measure.statistics import unique

_SPEED = (
    "Speeds are of decoding, medians over prompts; ratios are geometric means over prompts of "
    "neighbouring runs, with intervals over prompts."
)


def show_summary(summary: Mapping[str, Any], checks: Sequence[Check], console: Console) -> None:
    subject = summary["subject"]
    for group in summary["main"]:
        _show_columns(group, subject, console)
        _show_methods(group, subject, console)
    parts = [(name, group) for name in PARTS for group in summary[name]]
    _show_steps(parts, console)
    _show_decided([(name, group) for name, group in parts if group["decided"]], subject, console)
    _show_entropy(summary["entropy"], console)
    for group in summary["mixed"]:
        title = f"6. Four copying and four hard requests at once: {group['path']}"
        _show_batches(title, [group["row"]], subject, console)
        _show_lengths(group, subject, console)
    for group in summary["batch"]:
        title = f"8. Requests decoded together: {group['path']}, {group['decoding']}"
        _show_batches(title, group["rows"], subject, console)
    _show_checks(checks, subject, console)


def _show_columns(group: Mapping[str, Any], subject: str, console: Console) -> None:
    table = new_table(
        "column",
        "prompts",
        "tokens per pass",
        f"{PLAIN} tokens/s",
        f"{subject} tokens/s",
        f"{subject} / {PLAIN}",
        "best fixed",
        f"{subject} / best fixed",
        "steps by source",
        "ids equal",
    )
    for row in group["rows"]:
        if row["category"] == ALL:
            table.add_section()
        mine, plain = row["methods"].get(subject), row["methods"].get(PLAIN)
        table.add_row(
            row["category"],
            str(row["num_prompts"]),
            number(mine and mine["acceptance_length"]),
            number(plain and plain["tokens_per_s"], 1),
            number(mine and mine["tokens_per_s"], 1),
            with_interval(mine and mine["ratio"]),
            row["best_fixed"] or "-",
            with_interval(row["subject_to_best"]),
            shares(row["shares"]),
            _ids(mine, group["decoding"]),
        )
    caption = f"{_SPEED} The best fixed method is the fastest of these very runs, column by column."
    title = f"1. {subject} by column: {group['path']}, {group['decoding']}"
    show_table(title, table, caption, console)


def _show_methods(group: Mapping[str, Any], subject: str, console: Console) -> None:
    rows = group["rows"]
    names = unique(name for row in rows for name in row["methods"])
    table = new_table(
        "method",
        *(row["category"] for row in rows),
        "all, interval",
        "tokens/s",
        f"{subject} / it",
        "ids equal",
    )
    for name in names:
        cells = [row["methods"].get(name) for row in rows]
        total = cells[-1]
        table.add_row(
            name,
            *(_length_and_ratio(cell) for cell in cells),
            interval(total["ratio"]),
            number(total["tokens_per_s"], 1),
            "" if name == subject else with_interval(total["subject_ratio"]),
            _ids(total, group["decoding"]),
        )
    show_table(
        f"2. Tokens per pass, and tokens/s relative to {PLAIN}: {group['path']}, "
        f"{group['decoding']}",
        table,
        "",
        console,
    )


def _show_steps(parts: Sequence[tuple[str, Mapping[str, Any]]], console: Console) -> None:
    if not parts:
        return
    table = new_table(
        "method", "part", "path", "decoding", "steps", "draft ms", "pass ms", "rest ms"
    )
    for name, group in parts:
        table.add_section()
        for row in group["steps"]:
            table.add_row(
                row["method"],
                name,
                group["path"],
                group.get("decoding", name),
                str(row["num_steps"]),
                number(row["draft_ms"], 3),
                number(row["pass_ms"]),
                number(row["rest_ms"]),
            )
    show_table(
        "3. Where a decoding step's time goes, ms per step",
        table,
        "rest: outside drafter and target pass. In part batch, sizes are taken together.",
        console,
    )


def _show_decided(
    parts: Sequence[tuple[str, Mapping[str, Any]]], subject: str, console: Console
) -> None:
    if not parts:
        return
    table = new_table(
        "part",
        "path",
        "decoding",
        "steps",
        "by source",
        "accepted of drafted",
        "time",
        "time, by request",
        "time, by step",
        "tokens",
        "tokens, by request",
    )
    for name, group in parts:
        decided = group["decided"]
        sources = [source for source in decided["shares"] if source != NO_DRAFT]
        table.add_row(
            name,
            group["path"],
            group.get("decoding", name),
            str(decided["num_steps"]),
            shares(decided["shares"]),
            ", ".join(f"{s} {decided['accepted'][s]}/{decided['drafted'][s]}" for s in sources),
            percent(decided["time_bias"], "+"),
            percent(decided["time_error"]),
            percent(decided["step_error"]),
            percent(decided["token_bias"], "+"),
            percent(decided["token_error"]),
        )
    show_table(
        f"4. What {subject} decided, and how far its predictions were off",
        table,
        "time, tokens: all that was predicted together against all that was measured. By request: "
        "mean over generations (or batches) of the absolute error of each; by step: median. How "
        "many tokens a step yields is random, a prediction is its expectation.",
        console,
    )


def _show_entropy(groups: Sequence[Mapping[str, Any]], console: Console) -> None:
    if not groups:
        return
    table = new_table(
        "path", "decoding", "method", "prompts", "tokens per pass", "tokens/s", f"/ {PLAIN}"
    )
    for group in groups:
        (row,) = group["rows"]
        for name, mine in row["methods"].items():
            table.add_row(
                group["path"],
                group["decoding"],
                name,
                str(row["num_prompts"]),
                number(mine["acceptance_length"]),
                number(mine["tokens_per_s"], 1),
                with_interval(mine["ratio"]),
            )
    show_table("5. Random words: nothing to guess", table, _SPEED, console)


def _show_batches(title: str, rows: Sequence[Row], subject: str, console: Console) -> None:
    names = unique(name for row in rows for name in row["methods"])
    sizes = [str(row.get("size", "")) for row in rows]
    columns = [f"{size} {what}".strip() for size in sizes for what in ("tokens/s", "ratio")]
    table = new_table("method", *columns)
    for extra in ("tokens per pass", "end-to-end ratio", "ids equal"):
        table.add_column(extra, justify="right", overflow="fold")
    for name in names:
        cells = [row["methods"].get(name) for row in rows]
        speeds = [
            text
            for cell in cells
            for text in (
                number(cell and cell["tokens_per_s"], 1),
                with_interval(cell and cell["ratio"]),
            )
        ]
        known = [cell for cell in cells if cell]
        table.add_row(
            name,
            *speeds,
            " ".join(number(cell["acceptance_length"]) for cell in known),
            " ".join(number(c["end_to_end_ratio"] and c["end_to_end_ratio"].mean) for c in known),
            f"{sum(c['num_equal'] for c in known)}/{sum(c['num_compared'] for c in known)}",
        )
    best = [
        f"{row.get('size', 'all')}: {row['best_fixed']} {with_interval(row['subject_to_best'])}"
        for row in rows
        if row["best_fixed"]
    ]
    caption = (
        f"Tokens of all requests per second, from when all have their first one; ratio to {PLAIN}, "
        f"interval over {rows[0]['num_groups']} groups of prompts. ids: of greedy requests."
    )
    if best:
        caption += f" {subject} / the best fixed method: {'; '.join(best)}."
    show_table(title, table, caption, console)


def _show_lengths(group: Mapping[str, Any], subject: str, console: Console) -> None:
    names = [_class_name(low, high) for low, high in LENGTHS]
    table = new_table("method", "request", "kind", "mean tokens", *names, "tokens per pass")
    rows = [(row["method"], "all", row) for row in group["lengths"] if row["method"] != PLAIN]
    rows += [(subject, row["request"], row) for row in group["requests"]]
    for name, request, row in rows:
        table.add_row(
            name,
            request,
            row["kind"],
            number(row["mean"], 1),
            *([f"{share:.0%}" for share in row["shares"]] or ["-"] * len(LENGTHS)),
            number(row["acceptance_length"]),
        )
    show_table(
        f"7. How long drafts were, in shares of steps: {group['path']}",
        table,
        f"All requests of a kind; then each of the first group, as {subject} drafted for it.",
        console,
    )


def _show_checks(checks: Sequence[Check], subject: str, console: Console) -> None:
    table = new_table("where", "what", "figure", "holds")
    for each in checks:
        holds = {True: "yes", False: "NO", None: "cannot be told"}[each.holds]
        table.add_row(each.where, each.what, each.figure, holds)
    show_table(f"9. What is promised of {subject}", table, "", console)


def show_end(results: Results, console: Console) -> None:
    console.print()
    for note in results.notes:
        console.print(f"Note: {note}", markup=False, highlight=False)
    for path in results.paths:
        counts = [
            f"{len(unique(run.prompt for run in runs if run.dtype == path))} {what}"
            for runs, what in (
                (results.runs, "prompts"),
                (results.entropy_runs, "random ones"),
                (results.batch_runs, "batches"),
            )
        ]
        console.print(f"{path}: {', '.join(counts)}.", highlight=False)
    console.print(f"Total time: {results.elapsed_s / 60:.1f} min.", highlight=False)


def shares(by_source: Mapping[str, float]) -> str:
    """ "none 62 %, lookup 38 %"."""
    return ", ".join(f"{source} {100 * share:.0f} %" for source, share in by_source.items()) or "-"


def percent(value: float | None, sign: str = "") -> str:
    return "-" if value is None else f"{100 * value:{sign}.1f} %"


def _class_name(low: int, high: int | None) -> str:
    if high is None:
        return f"{low} or more"
    return str(low) if low == high else f"{low} to {high}"


def _length_and_ratio(cell: Row | None) -> str:
    if cell is None:
        return "-"
    ratio = cell["ratio"]
    return f"{number(cell['acceptance_length'])}  {number(ratio and ratio.mean)}x"


def _ids(cell: Row | None, decoding: str) -> str:
    """Only greedy answers are the same: what is sampled here has no seed."""
    return equal(cell) if cell and decoding == "greedy" else "-"
