"""The step's benchmark told to people: tables, each with a line that says how to read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console

from harness.step.results import Engine, Results
from harness.step.summary import Row, Spread
from harness.tables import new_table, show_table
from outpace.measure.statistics import unique


def show_summary(summary: Mapping[str, Sequence[Row]], console: Console) -> None:
    for context_len in unique(row["context_len"] for row in summary["passes"]):
        _show_passes(context_len, summary["passes"], console)
    _show_limits(summary["limits"], console)
    _show_ratios(summary["ratios"], console)
    _show_prefills(summary["prefills"], console)


def _show_passes(context_len: int, rows: Sequence[Row], console: Console) -> None:
    here = [row for row in rows if row["context_len"] == context_len]
    cells = {(row["engine"], row["num_rows"]): row for row in here}
    counts = sorted({row["num_rows"] for row in here})
    table = new_table("n", *map(str, counts))
    for engine in unique(row["engine"] for row in here):
        found = [cells.get((engine, n)) for n in counts]
        table.add_row(
            engine,
            *("-" if r is None else f"{r['ms'].median:.2f}  {r['v'].median:.2f}" for r in found),
        )
    show_table(
        f"1. A pass over n rows after {context_len} cached tokens: ms, and v(n)",
        table,
        "Medians over rounds. v(n): relative to n = 1 within rounds.",
        console,
    )


def _show_limits(rows: Sequence[Row], console: Console) -> None:
    if not rows:
        return
    table = new_table("engine", "context", "MB read", "GB/s", "limit GB/s", "fraction")
    for row in rows:
        table.add_row(
            row["engine"],
            str(row["context_len"]),
            f"{row['bytes'] / 1e6:.0f}",
            f"{row['gb_per_s'].median:.1f}",
            _with_quartiles(row["limit_gb_per_s"], 1),
            f"{row['fraction'].median:.0%}",
        )
    show_table(
        "2. One row against the rate at which memory is read",
        table,
        "MB read: weights and cache, once. Limit: a buffer larger than the caches, read by as many "
        "threads right before each pass; in brackets the quartiles.",
        console,
    )


def _show_ratios(rows: Sequence[Row], console: Console) -> None:
    if not rows:
        return
    counts = sorted({row["num_rows"] for row in rows})
    table = new_table("ours / peer", "context", *(f"n = {n}" for n in counts))
    cells = {(r["ours"], r["peer"], r["context_len"], r["num_rows"]): r["speedup"] for r in rows}
    for ours, peer, context_len in unique((r["ours"], r["peer"], r["context_len"]) for r in rows):
        found = [cells.get((ours, peer, context_len, n)) for n in counts]
        table.add_row(
            f"{ours} / {peer}",
            str(context_len),
            *("-" if spread is None else _with_quartiles(spread) for spread in found),
        )
    show_table(
        "3. How many times faster ours is than a peer on the same weights",
        table,
        "Medians of ratios within rounds; in brackets the quartiles.",
        console,
    )


def _show_prefills(rows: Sequence[Row], console: Console) -> None:
    if not rows:
        return
    table = new_table("engine", "prompt", "ms", "tokens/s", "times faster than peers")
    for row in rows:
        table.add_row(
            row["engine"],
            str(row["num_tokens"]),
            _with_quartiles(row["ms"], 0),
            f"{row['tokens_per_s']:.0f}",
            ", ".join(f"{peer} {s.median:.2f}" for peer, s in row["speedups"].items()),
        )
    show_table(
        "4. Prompts", table, "Fed to an empty cache in chunks of 512, logits for the last.", console
    )


def show_end(results: Results, console: Console) -> None:
    console.print()
    if results.choices:
        console.print(_agreement(results), markup=False, highlight=False)
    for engine in results.engines:
        console.print(f"{engine.label}: {engine.details}", markup=False, highlight=False)
    for note in results.notes:
        console.print(f"Note: {note}", markup=False, highlight=False)
    console.print(f"{results.rounds} rounds in {results.elapsed_s / 60:.1f} min.", highlight=False)


def _agreement(results: Results) -> str:
    """Whether engines with the same weights choose the same next tokens."""
    parts = []
    for ours in (engine for engine in results.engines if engine.kind == "native"):
        parts += [
            f"{ours.label} and {peer.label} {_num_equal(results, ours, peer)}"
            for peer in results.engines
            if peer.kind != "native" and peer.format == ours.format
        ]
    shown = "; ".join(parts) or "no peer was asked"
    return f"Same most probable token after {_num_choices(results)} prompts: {shown}."


def _num_choices(results: Results) -> int:
    return max(map(len, results.choices.values()))


def _num_equal(results: Results, ours: Engine, peer: Engine) -> int:
    both = zip(results.choices[ours.label], results.choices[peer.label], strict=True)
    return sum(a == b for a, b in both)


def _with_quartiles(spread: Spread, digits: int = 2) -> str:
    return f"{spread.median:.{digits}f} ({spread.low:.{digits}f}-{spread.high:.{digits}f})"
