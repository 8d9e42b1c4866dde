"""From raw results to what is shown. Pure: the same results give the same summary.

Two methods are compared pair by pair: the runs of one group in one round, made right after each
other. The median over rounds is a group's ratio; over groups, which differ in earnest, the
geometric mean is taken, with an interval that says how much it hangs on the choice of prompts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from statistics import median
from typing import Any

from outpace.errors import OptionError
from outpace.files import read_text, without_folders
from outpace.measure.bench.columns import Ground, Row, column_row
from outpace.measure.bench.costs import pass_curves, relative_costs
from outpace.measure.bench.groups import ALL
from outpace.measure.bench.results import BenchResults, BenchRun, MethodInfo, PathResults
from outpace.measure.bench.schema import SUMMARY, check_shape
from outpace.measure.statistics import unique
from outpace.strict_json import without_duplicates

SCHEMA = 1
MOST_STEPS = 200
"""Of a timeline."""


def summarise(results: BenchResults) -> dict[str, Any]:
    """Everything that tables, reports and files show, in values that JSON has."""
    paths = [_path(found) for found in results.paths if found.runs or found.passes]
    return {
        "schema": SCHEMA,
        "provenance": dict(results.provenance),
        "model": {
            "name": without_folders(results.model_name),
            "fingerprint": results.model_fingerprint,
        },
        "options": _plain_values(results.options),
        "notes": list(results.notes),
        "complete": results.complete,
        "elapsed_s": results.elapsed_s,
        "paths": paths,
        "crossover": [row for path in paths for row in crossover_rows(path)],
    }


def read_summary(path: Path) -> dict[str, Any]:
    """A summary that was written as JSON. Raises OptionError for a file that is something else."""
    text = read_text(path)
    try:
        summary = json.loads(text, object_pairs_hook=without_duplicates)
        # Neither numbers that are none nor halves of characters can be written again.
        json.dumps(summary, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise OptionError(f"{path} is not JSON: {str(error).partition(';')[0]}") from error
    if not isinstance(summary, dict) or not {"paths", "crossover"} <= summary.keys():
        raise OptionError(f"{path} is not what `outpace bench --json {path.name}` writes")
    if summary.get("schema") != SCHEMA:
        raise OptionError(
            f"{path} has schema {summary.get('schema')!r:.20}, and this version reads {SCHEMA}; "
            "measure again, or use the version that wrote it"
        )
    try:
        check_shape(summary, SUMMARY, "the summary")
    except ValueError as error:
        raise OptionError(f"{path} is damaged: {error}; measure again") from error
    return summary


def _path(found: PathResults) -> Row:
    limit = None
    if found.memory_bytes_per_s is not None and found.weights_bytes:
        limit = found.memory_bytes_per_s / found.weights_bytes
    ground = Ground(pass_curves(found.passes), limit, found.prompt_lens, found.classified)
    settings = sorted(unique((run.temperature, run.batch) for run in found.runs))
    return {
        "path": found.path,
        "dtype": found.dtype,
        "model_impl": found.model_impl,
        "runs_on": found.runs_on,
        "threads": found.threads,
        "weights_bytes": found.weights_bytes,
        "memory_bytes_per_s": found.memory_bytes_per_s,
        "passes": _passes(found, limit),
        "settings": [_setting(found, *setting, ground) for setting in settings],
        "timelines": _timelines(found),
        "not_measured": _not_measured(found),
    }


def _not_measured(found: PathResults) -> list[str]:
    """Methods of which there is no run at all."""
    measured = {run.method for run in found.runs}
    return [info.name for info in found.methods if info.name not in measured]


def _passes(found: PathResults, limit: float | None) -> list[Row]:
    """limit: passes per second, if only weights were read."""
    return [
        {
            "num_rows": times.num_rows,
            "context_len": times.context_len,
            "shape": times.shape,
            "median_ms": 1e3 * median(times.seconds),
            "v": v,
            "limit_fraction": 1 / (limit * median(times.seconds)) if limit else None,
        }
        for times, v in relative_costs(found.passes)
    ]


def _setting(found: PathResults, temperature: float, batch: int, ground: Ground) -> Row:
    here = [run for run in found.runs if (run.temperature, run.batch) == (temperature, batch)]
    methods = [_method(info, here, found.methods, ground) for info in found.methods]
    return {
        "temperature": temperature,
        "batch": batch,
        "num_prompts": len(unique(label for run in here for label in run.prompts)),
        "num_rounds": 1 + max(run.round for run in here),
        "methods": [row for row in methods if row["columns"]],
    }


def _method(
    info: MethodInfo, here: Sequence[BenchRun], infos: Sequence[MethodInfo], ground: Ground
) -> Row:
    plain_name = next(other.name for other in infos if other.is_plain)
    columns = unique(run.column for run in here if run.column != ALL)
    rows = []
    for column in (*columns, ALL):
        part = [run for run in here if column in (ALL, run.column)]
        mine = [run for run in part if run.method == info.name]
        if mine:
            plain = [run for run in part if run.method == plain_name]
            rows.append(column_row(info, column, mine, plain, ground))
    return {
        "method": info.name,
        "config": None if info.config is None else _plain_values(info.config),
        "is_plain": info.is_plain,
        "is_peer": info.is_peer,
        "columns": rows,
    }


def _timelines(found: PathResults) -> list[Row]:
    """The steps of the first run of every method, at every temperature, of the smallest batch."""
    smallest = min((run.batch for run in found.runs), default=0)
    first: dict[tuple[str, float], BenchRun] = {}
    for run in found.runs:
        if run.batch == smallest and run.steps:
            first.setdefault((run.method, run.temperature), run)
    return [
        {
            "method": method,
            "temperature": temperature,
            "prompt": run.group,
            "steps": [
                {
                    "draft_ms": 1e3 * step.draft_s,
                    "pass_ms": 1e3 * step.pass_s,
                    "rest_ms": 1e3 * step.rest_s,
                    "num_drafted": step.num_drafted,
                    "num_tokens": step.num_tokens,
                }
                for step in run.steps[:MOST_STEPS]
            ],
        }
        for (method, temperature), run in first.items()
    ]


def crossover_rows(path: Row) -> list[Row]:
    """For every method and temperature its ratio to plain decoding by batch, and the batch from
    which on plain decoding was faster; None where it was not at the largest one."""
    by_method: dict[tuple[float, str], list[Row]] = {}
    for setting in path["settings"]:
        for method in setting["methods"]:
            if not method["is_plain"]:
                ratio = method["columns"][-1]["ratio"]
                key = (setting["temperature"], method["method"])
                by_method.setdefault(key, []).append({"batch": setting["batch"], "ratio": ratio})
    return [
        {
            "path": path["path"],
            "temperature": temperature,
            "method": method,
            "ratios": ratios,
            "crossover_batch": _crossover([row for row in ratios if row["ratio"]]),
        }
        for (temperature, method), ratios in by_method.items()
    ]


def _crossover(ratios: list[Row]) -> int | None:
    """ratios: by batch, ascending."""
    slower = takewhile(lambda row: row["ratio"]["mean"] < 1, reversed(ratios))
    return next((int(row["batch"]) for row in reversed(list(slower))), None)


def _plain_values(values: Any) -> Any:
    """In values that JSON has; of paths the names, since folders are nobody else's business."""
    if isinstance(values, Mapping):
        return {key: _plain_values(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [_plain_values(value) for value in values]
    return without_folders(str(values)) if isinstance(values, Path | str) else values
