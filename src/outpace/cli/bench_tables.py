"""A benchmark's summary told to people, each table with a line that says how to read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Row = Mapping[str, Any]
_ALL = "all"
_MOST_POSITIONS = 8
_MB, _GB = 10**6, 10**9


def show_summary(summary: Row, console: Console) -> None:
    """Print everything."""
    from outpace.measure.statistics import unique

    _show_header(summary, console)
    for path in summary["paths"]:
        _show_path(path, console)
        for setting in path["settings"]:
            _show_columns(path, setting, console)
            _show_methods(path, setting, console)
        for temperature in unique(setting["temperature"] for setting in path["settings"]):
            _show_acceptance(path, temperature, console)
            _show_crossover(summary, path, temperature, console)
    _show_end(summary, console)


def _show_header(summary: Row, console: Console) -> None:
    known = {"model": summary["model"]["name"], **summary["provenance"]}
    for name, value in known.items():
        if value not in (None, {}, []):
            _say(f"{name:<16} {value}", console)


def _show_path(path: Row, console: Console) -> None:
    facts = [path["runs_on"]]
    if path["weights_bytes"] is not None:
        facts.append(f"a pass reads {path['weights_bytes'] / _MB:,.0f} MB of weights")
    if path["memory_bytes_per_s"] is not None:
        facts.append(f"memory is read at {path['memory_bytes_per_s'] / _GB:.1f} GB/s")
    console.print(f"\n{path['path']}", style="bold", markup=False, highlight=False)
    _say(f"{'; '.join(facts)}.", console)
    if path["passes"]:
        _show_passes(path["passes"], console)


def _show_passes(passes: Sequence[Row], console: Console) -> None:
    from outpace.measure.report.numbers import decimals, percent
    from outpace.measure.statistics import unique

    kinds = unique((row["shape"], row["context_len"]) for row in passes)
    cells = {(r["shape"], r["context_len"], r["num_rows"]): r for r in passes}
    table = _table("rows n", *(f"{shape}, {length} cached" for shape, length in kinds))
    for n in sorted({row["num_rows"] for row in passes}):
        found = [cells.get((*kind, n)) for kind in kinds]
        table.add_row(
            str(n),
            *(
                "-"
                if row is None
                else f"{decimals(row['v'])}  {row['median_ms']:.2f} ms"
                + (f"  {percent(row['limit_fraction'])}" if row["limit_fraction"] else "")
                for row in found
            ),
        )
    _show(
        "v(n): a target pass over n rows, in passes over one",
        table,
        "Then its median time, and the rate of reading weights as a share of the memory's.",
        console,
    )


def _show_columns(path: Row, setting: Row, console: Console) -> None:
    from outpace.measure.statistics import unique

    names = unique(row["column"] for each in setting["methods"] for row in each["columns"])
    if names == [_ALL]:
        return
    table = _table("method", *names)
    for method in setting["methods"]:
        if not method["is_plain"]:
            cells = {row["column"]: row["ratio"] for row in method["columns"]}
            table.add_row(method["method"], *(_ratio(cells.get(name)) for name in names))
    _show(
        f"Speed-up by column: {_where(path, setting)}",
        table,
        "Decoding speed against plain decoding of the same prompts; in brackets the 95 % interval.",
        console,
    )


def _show_methods(path: Row, setting: Row, console: Console) -> None:
    from outpace.measure.report.numbers import decimals, percent

    headings = (
        "method",
        "tokens/s",
        "ratio",
        "predicted",
        "end to end",
        "first token",
        "tokens/pass",
        "alpha",
        "c",
        "rows",
        "step: draft + pass + rest",
        "of memory limit",
        "ids equal",
    )
    table = _table(*headings)
    for method in setting["methods"]:
        row = method["columns"][-1]
        table.add_row(
            method["method"],
            decimals(row["tokens_per_s"], 1),
            "1" if method["is_plain"] else _ratio(row["ratio"]),
            decimals(row["predicted_ratio"]),
            "1" if method["is_plain"] else _ratio(row["end_to_end_ratio"]),
            "-" if row["ttft_ms"] is None else f"{row['ttft_ms']:.0f} ms",
            decimals(row["acceptance_length"]),
            decimals(row["alpha"]),
            decimals(row["c"], 3),
            decimals(row["step"] and row["step"]["num_rows"], 1),
            _step(row["step"]),
            percent(row["limit_fraction"]),
            _equal(row),
        )
    rounds = setting["num_rounds"]
    _show(
        f"Methods over all prompts: {_where(path, setting)}",
        table,
        f"{setting['num_prompts']} prompts, up to {rounds} round{'s' if rounds > 1 else ''}. "
        "Predicted: from tokens per pass, drafting, v(rows) and rest. Step: means, and shares.",
        console,
    )


def _show_acceptance(path: Row, temperature: float, console: Console) -> None:
    """Of the smallest batch: a draft's fate does not depend on who else is decoded."""
    from outpace.measure.report.numbers import percent

    setting = next(s for s in path["settings"] if s["temperature"] == temperature)
    rows = {m["method"]: m["columns"][-1]["conditional_acceptance"] for m in setting["methods"]}
    longest = min(max(map(len, rows.values()), default=0), _MOST_POSITIONS)
    if not longest:
        return
    table = _table("method", *(f"token {i + 1}" for i in range(longest)))
    for name, shares in rows.items():
        if shares:
            cells = [percent(share) for share in shares[:longest]]
            table.add_row(name, *cells, *["-"] * (longest - len(cells)))
    _show(
        f"Acceptance by position: {_where(path, setting)}",
        table,
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
    table = _table("method", *(f"batch {batch}" for batch in batches), "slower from")
    for row in rows:
        cells = {each["batch"]: each["ratio"] for each in row["ratios"]}
        crossover = row["crossover_batch"]
        table.add_row(
            row["method"],
            *(_ratio(cells.get(batch)) for batch in batches),
            "-" if crossover is None else f"batch {crossover}",
        )
    _show(
        f"Speed-up by batch: {path['path']}, {_decoding(temperature)}",
        table,
        "All requests of a batch together, from when each has its first token.",
        console,
    )


def _show_end(summary: Row, console: Console) -> None:
    for note in summary["notes"]:
        _say(f"note: {note}", console)
    minutes, seconds = divmod(round(summary["elapsed_s"]), 60)
    state = "complete" if summary["complete"] else "NOT complete"
    _say(f"{state}, {minutes} min {seconds} s", console)


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


def _step(step: Row | None) -> str:
    if step is None:
        return "-"
    parts = [step["draft_ms"], step["pass_ms"], step["rest_ms"]]
    total = sum(parts) or 1.0
    times = " + ".join(f"{part:.2f}" for part in parts)
    return f"{times} ms ({' '.join(f'{part / total:.0%}' for part in parts)})"


def _equal(row: Row) -> str:
    if not row["num_compared"]:
        return "-"
    text = f"{row['num_equal']}/{row['num_compared']}"
    num_differing = row["num_compared"] - row["num_equal"]
    if not num_differing:
        return text
    text += f" (from token {row['first_difference']}"
    if row["num_ties"] is None:
        return f"{text})"
    if row["num_ties"] == num_differing:
        return f"{text}, all ties)"
    return f"{text}, {num_differing - row['num_ties']} NO tie)"


def _table(*headings: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, heading in enumerate(headings):
        table.add_column(heading, justify="left" if index == 0 else "right", no_wrap=index == 0)
    return table


def _show(title: str, table: Table, how_to_read: str, console: Console) -> None:
    console.print(f"\n{title}", style="bold", markup=False, highlight=False)
    console.print(table, markup=False, highlight=False)
    _say(how_to_read, console)


def _say(text: str, console: Console) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
