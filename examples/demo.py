"""Three kinds of text, decoded plainly and with `auto`: the closing table of `make demo`."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rich.box import HORIZONTALS
from rich.console import Console
from rich.table import Table

from outpace import LLM, SamplingParams
from outpace.cli.compare import LEAST_DIFFERENCE, Comparison, compare_methods


class Task(NamedTuple):
    """name: what it is called in the table. prompt: what the model is asked."""

    name: str
    prompt: str


TASKS = (
    Task(
        "repeat a list",
        """Repeat the following list exactly.

1. Open the valve on the left side of the tank.
2. Wait until the gauge on the left side of the tank shows zero.
3. Close the valve on the left side of the tank.
4. Open the valve on the right side of the tank.
5. Wait until the gauge on the right side of the tank shows zero.
6. Close the valve on the right side of the tank.""",
    ),
    Task(
        "note to JSON",
        """Write this note as a JSON object with the keys "name", "address", "day" and "reason":

Mrs. Amelia Thornberry, 27 Harbour View Road, Whitby. Comes on Thursday at half past three
because the kitchen window does not close any more.""",
    ),
    Task(
        "open question",
        "What makes a good friend? Answer in a few sentences of your own.",
    ),
)


class Row(NamedTuple):
    """One line of the table."""

    task: str
    found: Comparison


def measure(llm: LLM, tasks: Iterable[Task], params: SamplingParams, repeats: int) -> list[Row]:
    """Both ways in turn, `repeats` times after a warm-up, for each task."""
    return [
        Row(
            task.name,
            compare_methods(llm, [{"role": "user", "content": task.prompt}], params, repeats),
        )
        for task in tasks
    ]


def closing_table(sections: Sequence[tuple[str, Sequence[Row]]]) -> Table:
    """The rows of each section under its heading."""
    shares = [row.found.shares or {} for _, rows in sections for row in rows]
    sources = list(dict.fromkeys(source for found in shares for source in found))
    sources.sort(key=lambda source: source == "plain")
    table = Table(title="Plain decoding and auto", box=HORIZONTALS, padding=0)
    table.add_column("\ntask", no_wrap=True)
    headings = ["plain\ntok/s", "auto\ntok/s", "\nratio", "tokens\n/ pass", "same\nids"]
    shared = [source.replace("+", "\n+") for source in sources]  # so that the table fits
    for heading in [*headings, *(f"{source}\nsteps" for source in shared)]:
        table.add_column(heading, justify="right", no_wrap=True)
    for heading, rows in sections:
        table.add_row(f"[bold]{heading}[/bold]")
        for row in rows:
            table.add_row(f" {row.task}", *_cells(row.found, sources))
        table.add_section()
    if not all(row.found.is_reliable for _, rows in sections for row in rows):
        table.caption = "? more than the tokens per pass can give: the machine was busy"
    return table


def _cells(found: Comparison, sources: Sequence[str]) -> list[str]:
    speeds = [found.plain_tokens_per_s, found.speculative_tokens_per_s]
    shares = found.shares or {}
    return [
        *("-" if speed is None else f"{speed:.0f}" for speed in speeds),
        _ratio_cell(found),
        f"{found.acceptance_length:.2f}",
        {True: "yes", False: "[bold red]NO[/]", None: "-"}[found.ids_equal],
        *(f"{100 * shares.get(source, 0):.0f} %" for source in sources),
    ]


def _ratio_cell(found: Comparison) -> str:
    """Coloured where it is more than 5 % from 1, like what `--compare` calls a difference."""
    if found.ratio is None:
        return "-"
    if not found.is_reliable:
        return f"{found.ratio:.2f}?"
    if abs(found.ratio - 1) < LEAST_DIFFERENCE:
        return f"{found.ratio:.2f}"
    return f"[bold {'green' if found.ratio > 1 else 'red'}]{found.ratio:.2f}[/]"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtypes", nargs="+", default=["auto", "bfloat16"])
    parser.add_argument("--max-tokens", type=int, default=80)
    parser.add_argument("--repeats", type=int, default=3, help="timed runs of each way")
    options = parser.parse_args(arguments)

    params = SamplingParams(temperature=0, max_tokens=options.max_tokens)
    console = Console()
    sections = []
    for dtype in options.dtypes:
        with (
            console.status(f"{options.model}, dtype {dtype}"),
            LLM(options.model, dtype=dtype, max_num_seqs=1) as llm,
        ):
            heading = f"{llm.dtype} (default)" if dtype == "auto" else llm.dtype
            sections.append((heading, measure(llm, TASKS, params, options.repeats)))
    console.print(closing_table(sections))


if __name__ == "__main__":
    main()
