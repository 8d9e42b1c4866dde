"""A benchmark's summary told to people, each table with a line that says how to read it.

Every table fits 80 columns: those with a column for each method or kind of pass are cut into as
many tables as the width asks for.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from outpace.cli.printable import in_one_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Row = Mapping[str, Any]
Cells = Sequence[str]
_ALL = "all"
_MOST_POSITIONS = 8
_HEADING = 17
"""Width of a heading; that of a ratio with its interval."""
_MB, _GB = 10**6, 10**9


def show_summary(summary: Row, console: Console) -> None:
    """Print everything."""
    from outpace.measure.statistics import unique

    _show_header(summary, console)
    for path in summary["paths"]:
        _show_path(path, console)
        for setting in path["settings"]:
            _show_columns(path, setting, console)
            _show_speed(path, setting, console)
            _show_whole_answers(path, setting, console)
            _show_steps(path, setting, console)
        for temperature in unique(setting["temperature"] for setting in path["settings"]):
            _show_acceptance(path, temperature, console)
            _show_crossover(summary, path, temperature, console)
    _show_verdict(summary, console)
    _show_end(summary, console)


def _show_header(summary: Row, console: Console) -> None:
    known = {"model": summary["model"]["name"], **summary["provenance"]}
    for name, value in known.items():
        if value not in (None, {}, []):
            _say(f"{name:<16} {value}", console, is_wrapped=False)


def _show_path(path: Row, console: Console) -> None:
    from outpace.measure.report.numbers import counted

    facts = [path["runs_on"]]
    if path.get("threads") is not None:
        facts.append(counted(path["threads"], "thread"))
    if path["weights_bytes"] is not None:
        facts.append(f"a pass reads {path['weights_bytes'] / _MB:,.0f} MB of weights")
    if path["memory_bytes_per_s"] is not None:
        facts.append(f"memory is read at {path['memory_bytes_per_s'] / _GB:.1f} GB/s")
    _title(path["path"], console)
    _say(f"{'; '.join(facts)}.", console)
    if path["passes"]:
        _show_passes(path["passes"], console)


def _show_passes(passes: Sequence[Row], console: Console) -> None:
    from outpace.measure.report.numbers import decimals, percent
    from outpace.measure.statistics import unique

    rows = sorted({row["num_rows"] for row in passes})
    columns = {}
    for shape, length in unique((row["shape"], row["context_len"]) for row in passes):
        cells = {
            row["num_rows"]: f"{decimals(row['v'])} {row['median_ms']:.2f} ms"
            + (f" {percent(row['limit_fraction'])}" if row["limit_fraction"] else "")
            for row in passes
            if (row["shape"], row["context_len"]) == (shape, length)
        }
        columns[f"{shape} after {length} tokens"] = [cells.get(n, "-") for n in rows]
    _show_side_by_side(
        "v(n): a target pass over n rows, in passes over one row",
        ("rows n", list(map(str, rows))),
        columns,
        "Rows are the newest token and n - 1 draft tokens, in a chain or a tree, after so many "
        "tokens that the cache holds. Each cell: v(n), the time of a pass, and how fast it reads "
        "the weights, in % of what this machine's memory can give.",
        console,
    )


def _show_columns(path: Row, setting: Row, console: Console) -> None:
    from outpace.measure.statistics import unique

    names = unique(row["column"] for each in setting["methods"] for row in each["columns"])
    if names == [_ALL]:
        return
    columns = {}
    for method in setting["methods"]:
        if not method["is_plain"]:
            cells = {row["column"]: row["ratio"] for row in method["columns"]}
            columns[method["method"]] = [_ratio(cells.get(name)) for name in names]
    _show_side_by_side(
        f"Speed-up by column: {_where(path, setting)}",
        ("column", names),
        columns,
        "Decoding speed against plain decoding of the same prompts; in brackets the 95 % interval.",
        console,
    )


def _show_speed(path: Row, setting: Row, console: Console) -> None:
    from outpace.measure.report.numbers import counted, decimals

    rows = [
        (
            method["method"],
            decimals(row["tokens_per_s"], 1),
            "1" if method["is_plain"] else _ratio(row["ratio"]),
            decimals(row["predicted_ratio"]),
            f"{row['num_equal']}/{row['num_compared']}" if row["num_compared"] else "-",
        )
        for method, row in _totals(setting)
    ]
    _show(
        f"Methods over all prompts: {_where(path, setting)}",
        _table(("method", "tokens/s", "ratio", "predicted", "ids equal"), rows),
        f"{counted(setting['num_prompts'], 'prompt')}, up to "
        f"{counted(setting['num_rounds'], 'round')}. Ratio: to plain decoding, with its 95 % "
        "interval. Predicted: what tokens per pass, drafting, v(rows) and rest would give.",
        console,
    )
    for method, row in _totals(setting):
        if row["num_compared"] > row["num_equal"]:
            _say(f"{method['method']}: {_differences(row)}", console)


def _show_whole_answers(path: Row, setting: Row, console: Console) -> None:
    from outpace.measure.report.numbers import decimals, percent

    rows = [
        (
            method["method"],
            decimals(row["end_to_end_tokens_per_s"], 1),
            "1" if method["is_plain"] else _ratio(row["end_to_end_ratio"]),
            "-" if row["ttft_ms"] is None else f"{row['ttft_ms']:.0f} ms",
            percent(row["limit_fraction"]),
        )
        for method, row in _totals(setting)
    ]
    _show(
        f"Whole answers, prompts included: {_where(path, setting)}",
        _table(("method", "tokens/s", "end to end", "first token", "of limit"), rows),
        "Of limit: decoding speed in % of plain decoding's limit, which memory sets.",
        console,
    )


def _show_steps(path: Row, setting: Row, console: Console) -> None:
    from outpace.measure.report.numbers import decimals

    rows = [
        (
            method["method"],
            decimals(row["acceptance_length"]),
            decimals(row["alpha"]),
            decimals(row["c"], 3),
            decimals(row["step"]["num_rows"], 1),
            *(_milliseconds(row["step"][part]) for part in ("draft_ms", "pass_ms", "rest_ms")),
        )
        for method, row in _totals(setting)
        if row["step"]
    ]
    headings = (
        "method",
        "tokens\n/pass",
        "alpha",
        "c",
        "rows",
        "draft\nms",
        "pass\nms",
        "rest\nms",
    )
    if rows:
        _show(
            f"Drafting, and mean times of a step: {_where(path, setting)}",
            _table(headings, rows),
            "alpha: how often a draft token is accepted if those before it are. c: the time of one "
            "draft token, in plain passes.",
            console,
        )


def _show_acceptance(path: Row, temperature: float, console: Console) -> None:
    """Of the smallest batch: a draft's fate does not depend on who else is decoded."""
    from outpace.measure.report.numbers import percent

    setting = next(s for s in path["settings"] if s["temperature"] == temperature)
    shares = {m["method"]: row["conditional_acceptance"] for m, row in _totals(setting)}
    longest = min(max(map(len, shares.values()), default=0), _MOST_POSITIONS)
    columns = {
        name: [*map(percent, found[:longest]), *["-"] * (longest - len(found))]
        for name, found in shares.items()
        if found
    }
    if columns:
        _show_side_by_side(
            f"Acceptance by position: {_where(path, setting)}",
            ("draft token", [str(i + 1) for i in range(longest)]),
            columns,
            "Of the drafts whose tokens before were all accepted; of a tree any of the siblings.",
            console,
        )


def _show_crossover(summary: Row, path: Row, temperature: float, console: Console) -> None:
    rows = [
        row
        for row in summary["crossover"]
        if (row["path"], row["temperature"]) == (path["path"], temperature)
    ]
    batches = sorted({each["batch"] for row in rows for each in row["ratios"]})
    if len(batches) < 2:
        return
    columns = {}
    for row in rows:
        cells = {each["batch"]: each["ratio"] for each in row["ratios"]}
        crossover = row["crossover_batch"]
        columns[row["method"]] = [
            *(_ratio(cells.get(batch)) for batch in batches),
            "-" if crossover is None else f"batch {crossover}",
        ]
    _show_side_by_side(
        f"Speed-up by batch: {path['path']}, {_decoding(temperature)}",
        ("", [*(f"batch {batch}" for batch in batches), "slower from"]),
        columns,
        "All requests of a batch together, from when each has its first token.",
        console,
    )


def _show_verdict(summary: Row, console: Console) -> None:
    from outpace.measure.report.bench_words import case_findings, finding, sameness_sentence

    _title(_unmarked(finding(summary)), console)
    for said in (*case_findings(summary), sameness_sentence(summary)):
        _say(f"- {_unmarked(said)}", console)


def _show_end(summary: Row, console: Console) -> None:
    for note in summary["notes"]:
        _say(f"note: {note}", console)
    minutes, seconds = divmod(round(summary["elapsed_s"]), 60)
    state = "complete" if summary["complete"] else "NOT complete"
    _say(f"{state}, {minutes} min {seconds} s", console)


def _totals(setting: Row) -> list[tuple[Row, Row]]:
    """Every method with its figures over all prompts."""
    return [(method, method["columns"][-1]) for method in setting["methods"]]


def _where(path: Row, setting: Row) -> str:
    batch = "" if setting["batch"] == 1 else f", batch {setting['batch']}"
    return f"{path['path']}, {_decoding(setting['temperature'])}{batch}"


def _decoding(temperature: float) -> str:
    return f"temperature {temperature:g}" if temperature else "greedy"


def _ratio(ratio: Row | None) -> str:
    if ratio is None:
        return "-"
    if ratio["low"] is None:
        return f"{ratio['mean']:.2f}"
    return f"{ratio['mean']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]"


def _milliseconds(value: float) -> str:
    return f"{value:.{2 if value < 100 else 0}f}"


def _differences(row: Row) -> str:
    num_differing = row["num_compared"] - row["num_equal"]
    text = f"ids differ in {num_differing} of {row['num_compared']} answers"
    if row["first_difference"] is not None:
        text += f", first from token {row['first_difference']}"
    if row["num_ties"] is None:
        return f"{text}."
    if row["num_ties"] == num_differing:
        return f"{text}; all are rounding ties."
    return f"{text}; {num_differing - row['num_ties']} are NO tie."


def _unmarked(text: str) -> str:
    """What reports set in bold or as code, without the marks."""
    return re.sub(r"\*\*|`", "", text)


def _show_side_by_side(
    title: str,
    names: tuple[str, Cells],
    columns: Mapping[str, Cells],
    how_to_read: str,
    console: Console,
) -> None:
    """A column for each name in `columns`, as many beside each other as there is room for.

    names: of the first column, and of the rows.
    """
    heading, rows = names
    left = console.width - max(map(len, (heading, *rows)))
    folded = {
        "\n".join(textwrap.wrap(in_one_line(name), _HEADING)): columns[name] for name in columns
    }
    _title(title, console)
    part: dict[str, Cells] = {}
    for name, cells in folded.items():
        widths = [_width(*each) for each in (*part.items(), (name, cells))]
        if part and sum(widths) + 2 * len(widths) > left:
            console.print(_beside(heading, rows, part), "", markup=False, highlight=False)
            part = {}
        part[name] = cells
    console.print(_beside(heading, rows, part), markup=False, highlight=False)
    _say(how_to_read, console)


def _width(name: str, cells: Cells) -> int:
    return max(map(len, (*name.split("\n"), *cells)))


def _beside(heading: str, rows: Cells, columns: Mapping[str, Cells]) -> Table:
    return _table((heading, *columns), zip(rows, *columns.values(), strict=True))


def _table(headings: Cells, rows: Iterable[Cells]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for index, heading in enumerate(headings):
        # Of what is too wide after all, names are folded before figures.
        table.add_column(
            heading,
            justify="right" if index else "left",
            no_wrap=index > 0,
            overflow="fold",
            vertical="bottom",
        )
    for name, *cells in rows:
        table.add_row(in_one_line(name), *cells)
    return table


def _show(title: str, table: Table, how_to_read: str, console: Console) -> None:
    _title(title, console)
    console.print(table, markup=False, highlight=False)
    _say(how_to_read, console)


def _title(text: str, console: Console) -> None:
    console.print(f"\n{in_one_line(text)}", style="bold", markup=False, highlight=False)


def _say(text: str, console: Console, *, is_wrapped: bool = True) -> None:
    console.print(in_one_line(text), markup=False, highlight=False, soft_wrap=not is_wrapped)
