"""A benchmark's summary as tables."""

from __future__ import annotations

from collections.abc import Sequence

from outpace.files import without_folders
from outpace.measure.report.bench_views import (
    Values,
    column,
    columns,
    ours,
    ratio_text,
    total,
)
from outpace.measure.report.numbers import (
    UNKNOWN,
    count,
    counted,
    decimals,
    milliseconds,
    percent,
    significant,
)
from outpace.measure.report.table import Table


def provenance_facts(summary: Values) -> list[tuple[str, str]]:
    """Everything needed to judge or repeat the run; what is not known is left out."""
    origin, model = summary["provenance"], summary["model"]
    facts: list[tuple[str, object]] = [
        ("command", origin.get("command")),
        ("date", origin.get("date")),
        ("model", model["name"]),
        ("fingerprint", model["fingerprint"]),
        *[(path["path"], _path_fact(path)) for path in summary["paths"]],
        ("processor", origin.get("cpu")),
        ("cores", _cores(origin)),
        ("threads of torch", origin.get("torch_threads")),
        ("instructions", origin.get("cpu_capability")),
        ("system", origin.get("platform")),
        ("load when it began", _listed(origin.get("load_average"))),
        ("variables", _listed(f"{k}={v}" for k, v in (origin.get("variables") or {}).items())),
        ("outpace", _version(origin)),
        *[(name, origin.get(name)) for name in ("python", "torch", "numpy", "transformers")],
        ("options", _options(summary["options"])),
        ("took", f"{summary['elapsed_s'] / 60:.1f} minutes"),
    ]
    return [(name, str(value)) for name, value in facts if value not in (None, "")]


def speedup_table(setting: Values) -> Table:
    """Times plain decoding's tokens per second, by column, with intervals."""
    names = columns(setting)
    shown = [each for each in setting["methods"] if not each["is_plain"]]
    rows = [
        [
            method["method"],
            *(ratio_text((column(method, name) or {}).get("ratio")) for name in names),
        ]
        for method in shown
    ]
    return Table(["times plain", *names], rows)


def figures_table(setting: Values) -> Table:
    """Everything of every method and column but the times of steps."""
    headings = [
        "method",
        "column",
        "prompts",
        "tokens/s",
        "times plain",
        "tokens/s, prompts included",
        "times plain, prompts included",
        "time to first token",
        "acceptance length",
        "alpha",
        "of plain decoding's memory limit",
        "ids equal",
    ]
    rows = [
        [
            method["method"],
            each["column"],
            count(each["num_prompts"]),
            significant(each["tokens_per_s"]),
            ratio_text(each["ratio"]),
            significant(each["end_to_end_tokens_per_s"]),
            ratio_text(each["end_to_end_ratio"]),
            milliseconds(each["ttft_ms"]),
            decimals(each["acceptance_length"]),
            percent(each["alpha"]),
            percent(each["limit_fraction"]),
            _equal(each),
        ]
        for method in setting["methods"]
        for each in method["columns"]
    ]
    return Table(headings, rows, num_names=2)


def acceptance_table(setting: Values) -> Table:
    """Conditional acceptance by position over all prompts, and how often a draft got there."""
    methods = [(each["method"], total(each)) for each in ours(setting)]
    known = [(name, values) for name, values in methods if values]
    depth = max((len(values["conditional_acceptance"]) for _, values in known), default=0)
    headings = ["method", "alpha", *(f"position {place}" for place in range(1, depth + 1))]
    rows = [
        [name, percent(values["alpha"]), *_padded(_positions(values), depth)]
        for name, values in known
    ]
    return Table(headings, rows)


def steps_table(setting: Values) -> Table:
    """Mean times of a step and what follows from them."""
    headings = [
        "method",
        "rows",
        "draft",
        "pass",
        "rest",
        "c",
        "acceptance length",
        "times plain, predicted",
        "measured",
    ]
    rows = [
        [
            method["method"],
            decimals(values["step"]["num_rows"], 1),
            milliseconds(values["step"]["draft_ms"]),
            milliseconds(values["step"]["pass_ms"]),
            milliseconds(values["step"]["rest_ms"]),
            significant(values["c"]),
            decimals(values["acceptance_length"]),
            decimals(values["predicted_ratio"]),
            ratio_text(values["ratio"]),
        ]
        for method in setting["methods"]
        for values in [total(method)]
        if values and values["step"]
    ]
    return Table(headings, rows)


def timelines_table(timelines: Sequence[Values]) -> Table:
    """One line for every generation whose steps are drawn."""
    rows = []
    for each in timelines:
        steps = each["steps"]
        times = [sum(step[part] for step in steps) for part in ("draft_ms", "pass_ms", "rest_ms")]
        gained = sum(step["num_tokens"] for step in steps)
        cells = [count(len(steps)), count(gained), *map(milliseconds, times)]
        rows.append([each["method"], *cells, milliseconds(sum(times))])
    return Table(["method", "steps", "tokens", "draft", "pass", "rest", "together"], rows)


def passes_table(path: Values) -> Table:
    """v(n): a pass over n rows."""
    rows = [
        [
            count(each["context_len"]),
            each["shape"],
            count(each["num_rows"]),
            milliseconds(each["median_ms"]),
            decimals(each["v"]),
            percent(each["limit_fraction"]),
        ]
        for each in path["passes"]
    ]
    headings = ["cached tokens", "shape", "rows n", "median", "v(n)", "of the memory limit"]
    return Table(headings, rows, num_names=2)


def crossover_table(entries: Sequence[Values]) -> Table:
    """Times plain decoding by batch, of entries that share path and temperature."""
    batches = sorted({each["batch"] for entry in entries for each in entry["ratios"]})
    rows = []
    for entry in entries:
        by_batch = {each["batch"]: each["ratio"] for each in entry["ratios"]}
        crossing = entry["crossover_batch"]
        rows.append(
            [
                entry["method"],
                *(ratio_text(by_batch.get(batch)) for batch in batches),
                "none measured" if crossing is None else count(crossing),
            ]
        )
    names = [f"batch {batch}" for batch in batches]
    return Table(["times plain", *names, "slower from batch"], rows)


def peers_table(setting: Values) -> Table:
    """Other engines beside ours, over all prompts."""
    headings = [
        "engine or method",
        "tokens/s",
        "times our plain decoding",
        "tokens/s, prompts included",
        "time to first token",
        "ids equal",
    ]
    rows = [
        [
            method["method"],
            significant(values["tokens_per_s"]),
            ratio_text(values["ratio"]) if values["ratio"] else UNKNOWN,
            significant(values["end_to_end_tokens_per_s"]),
            milliseconds(values["ttft_ms"]),
            _equal(values),
        ]
        for method in setting["methods"]
        for values in [total(method)]
        if values
    ]
    return Table(headings, rows)


def sameness_table(settings: Sequence[tuple[str, Values]]) -> Table:
    """Greedy answers against plain decoding's; `settings` with the names of their places."""
    rows = [
        [
            place,
            method["method"],
            count(values["num_compared"]),
            count(values["num_equal"]),
            count(values["num_ties"]),
            count(values["first_difference"]),
        ]
        for place, setting in settings
        for method in setting["methods"]
        for values in [total(method)]
        if values and values["num_compared"] and not method["is_plain"]
    ]
    headings = [
        "where",
        "method",
        "answers compared",
        "equal",
        "rounding ties",
        "first difference at token",
    ]
    return Table(headings, rows, num_names=2)


def _equal(values: Values) -> str:
    if not values["num_compared"]:
        return UNKNOWN
    return f"{values['num_equal']} of {values['num_compared']}"


def _positions(values: Values) -> list[str]:
    reached = values["reached_per_position"]
    return [
        f"{percent(share)} of {count(times)}" if times else UNKNOWN
        for share, times in zip(values["conditional_acceptance"], reached, strict=False)
    ]


def _padded(cells: list[str], length: int) -> list[str]:
    return cells + [""] * (length - len(cells))


def _path_fact(path: Values) -> str:
    said = str(path["runs_on"])
    if path.get("threads") is not None:
        said += f"; {counted(path['threads'], 'thread')}"
    if path["weights_bytes"] is not None:
        said += f"; a pass reads {path['weights_bytes'] / 1e6:,.0f} MB of weights"
    if path["memory_bytes_per_s"] is not None:
        said += f"; memory is read at {path['memory_bytes_per_s'] / 1e9:.1f} GB/s"
    return said


def _cores(origin: Values) -> str | None:
    cores, usable = origin.get("cores"), origin.get("cores_usable")
    if cores is None or usable in (None, cores):
        return None if cores is None else str(cores)
    return f"{cores}, {usable} of them usable"


def _version(origin: Values) -> str | None:
    version, commit = origin.get("outpace"), origin.get("commit")
    return f"{version}, commit {commit}" if version and commit else version


def _options(options: Values) -> str:
    said = [
        f"{name} {_option(value)}" for name, value in options.items() if value not in (None, [])
    ]
    return "; ".join(said)


def _option(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_option, value))
    if isinstance(value, dict):
        return " ".join(f"{key}={_option(each)}" for key, each in value.items())
    if isinstance(value, float):
        return f"{value:g}"
    return without_folders(value) if isinstance(value, str) else str(value)


def _listed(values: object) -> str:
    return ", ".join(map(str, values)) if values else ""  # type: ignore[call-overload]
