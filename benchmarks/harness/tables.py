"""Results told to people: tables on stdout, each with a line that says how to read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from harness.summary import Row
from outpace.measure.statistics import Ratio


def show_header(header: Mapping[str, Any], console: Console, title: str) -> None:
    console.print(title, style="bold", highlight=False)
    for name, value in header.items():
        text = "-" if value is None else value
        console.print(f"  {name:<18} {text}", markup=False, highlight=False, soft_wrap=True)


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
