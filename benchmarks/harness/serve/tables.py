"""Results of the server's benchmark told to people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from harness.serve.results import Results
from harness.tables import equal, new_table, number, show_table, with_interval
from outpace.measure.methods import PLAIN


def show_summary(summary: Mapping[str, Any], console: Console) -> None:
    table = new_table(
        "clients",
        "method",
        "requests",
        "tokens/s",
        f"/ {PLAIN}",
        "requests/s",
        "first token p50 p95, ms",
        "per token p50 p95, ms",
        "end to end p50 p95 p99, s",
        "tokens per pass",
        "texts equal",
        "client",
    )
    for row in summary["rows"]:
        if row["method"] == PLAIN:
            table.add_section()
        table.add_row(
            str(row["num_clients"]),
            row["method"],
            str(row["num_requests"]),
            number(row["tokens_per_s"], 1),
            with_interval(row["ratio"]),
            number(row["requests_per_s"]),
            _spread(row["ttft_s"], ("p50", "p95"), 1e3, 0),
            _spread(row["token_s"], ("p50", "p95"), 1e3, 1),
            _spread(row["total_s"], ("p50", "p95", "p99"), 1, 2),
            number(row["acceptance_length"]),
            "-" if row["method"] == PLAIN else equal(row),
            f"{row['client_share']:.0%}",
        )
    show_table(
        "Requests of several clients at once",
        table,
        "tokens/s, requests/s: of all clients together, prompts included. Ratio: geometric mean "
        "over sets of requests of neighbouring runs, with an interval over sets. "
        "Latencies are percentiles of all requests; per token: after the first. client: what the "
        "clients took of one core.",
        console,
    )


def show_end(results: Results, console: Console) -> None:
    console.print()
    for note in results.notes:
        console.print(f"Note: {note}", markup=False, highlight=False)
    console.print(f"Total time: {results.elapsed_s / 60:.1f} min.", highlight=False)


def _spread(
    values: Mapping[str, float] | None, names: tuple[str, ...], scale: float, digits: int
) -> str:
    """Percentiles side by side."""
    return "-" if values is None else "  ".join(number(scale * values[n], digits) for n in names)
