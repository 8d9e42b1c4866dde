"""Summaries as `outpace bench` makes them, written down by rule: for tests of what shows them.

`summary()` has everything: two paths, two temperatures, three batches (the larger ones mix all
columns), a peer, values that are not known and an interval that is missing. `one_method()` and
`interrupted()` are what little remains of it after a short run; in `losing()` nothing pays.
"""

from __future__ import annotations

import copy
import math
from typing import Any

Summary = dict[str, Any]

COLUMNS = {"chat": 6, "code": 5, "summarization": 6, "math": 2}
# What they gain at batch 1 and temperature 0: acceptance at the first position by column.
METHODS: dict[str, dict[str, float]] = {
    "suffix K=8": {"chat": 0.42, "code": 0.71, "summarization": 0.78, "math": 0.46},
    "draft_model K=4": {"chat": 0.63, "code": 0.66, "summarization": 0.64, "math": 0.69},
    "auto": {"chat": 0.66, "code": 0.73, "summarization": 0.79, "math": 0.68},
}
_LENGTHS = {"suffix K=8": 8, "draft_model K=4": 4, "auto": 5}
_C = {"suffix K=8": 0.004, "draft_model K=4": 0.09, "auto": 0.05}
_PEER = "transformers prompt lookup"
_PASS_MS = {"native bfloat16": 11.6, "native q4_1": 5.1}
_SLOPE = {"native bfloat16": 0.022, "native q4_1": 0.13}


def summary() -> Summary:
    """A whole run."""
    paths = [_path(name) for name in _PASS_MS]
    return {
        "schema": 1,
        "provenance": _provenance(),
        "model": {"name": "smollm2-135m", "fingerprint": "sha256:5f3c90aa12d4"},
        "options": {
            "methods": list(METHODS),
            "temperatures": [0.0, 0.7],
            "batches": [1, 4, 8],
            "max_tokens": 96,
            "seed": 0,
            "peers": ["transformers"],
        },
        "notes": ["transformers: runs one request at a time, so it is left out of larger batches."],
        "complete": True,
        "elapsed_s": 1204.6,
        "paths": paths,
        "crossover": [
            _crossover(path, method, temperature)
            for path in paths
            for temperature in (0.0, 0.7)
            for method in METHODS
        ],
    }


def one_method() -> Summary:
    """One path, one temperature, one batch, one method over two prompts, without a v(n) curve, a
    memory limit or a timeline."""
    kept = summary()
    path = kept["paths"][0]
    setting = path["settings"][0]
    wanted = ("plain", "suffix K=8")
    setting["methods"] = [each for each in setting["methods"] if each["method"] in wanted]
    setting["num_prompts"] = 2
    for method in setting["methods"]:
        method["columns"] = method["columns"][-1:]
        column = method["columns"][0]
        column["num_prompts"] = 2
        for name in ("ratio", "end_to_end_ratio"):
            if column[name]:
                column[name] = {**column[name], "low": None, "high": None, "num_prompts": 2}
    path.update(
        settings=[setting], passes=[], timelines=[], weights_bytes=None, memory_bytes_per_s=None
    )
    kept.update(paths=[path], crossover=[], notes=[])
    return kept


def interrupted() -> Summary:
    """Ended before the first round was whole: plain decoding alone, and little of that."""
    kept = one_method()
    setting = kept["paths"][0]["settings"][0]
    setting["methods"] = setting["methods"][:1]
    column = setting["methods"][0]["columns"][0]
    column.update(ttft_ms=None, end_to_end_tokens_per_s=None, step=None)
    kept.update(complete=False, elapsed_s=3.2)
    return kept


def losing() -> Summary:
    """Every method is slower than plain decoding, and one greedy answer differs without a tie."""
    kept = copy.deepcopy(summary())
    for path in kept["paths"]:
        for setting in path["settings"]:
            for method in setting["methods"]:
                _slow_down(method)
    column = kept["paths"][0]["settings"][0]["methods"][1]["columns"][-1]
    column.update(num_equal=column["num_compared"] - 3, num_ties=1, first_difference=17)
    return kept


def _slow_down(method: Summary) -> None:
    for column in method["columns"]:
        for name in ("ratio", "end_to_end_ratio"):
            ratio = column[name]
            if ratio and not method["is_plain"]:
                scaled = {
                    key: ratio[key] and round(ratio[key] * 0.45, 4)
                    for key in ("mean", "low", "high")
                }
                column[name] = {**ratio, **scaled}


def _provenance() -> Summary:
    return {
        "date": "2026-12-01T09:30:00+00:00",
        "command": "outpace bench --methods suffix:8,draft_model:4,auto --temperatures 0,0.7",
        "outpace": "0.9.0",
        "commit": "0123456789ab",
        "python": "3.12.4",
        "torch": "2.13.0",
        "numpy": "2.3.1",
        "transformers": None,
        "platform": "Linux-6.1-x86_64",
        "cpu": "Intel(R) Xeon(R) Processor @ 2.60GHz",
        "cores": 2,
        "cores_usable": 2,
        "torch_threads": 2,
        "cpu_capability": "AVX512_AMX",
        "load_average": [0.31, 0.4, 0.22],
        "variables": {"OMP_NUM_THREADS": "2"},
    }


def _path(name: str) -> Summary:
    dtype = name.split()[1]
    return {
        "path": name,
        "dtype": dtype,
        "model_impl": "native",
        "runs_on": f"native step (amx, {dtype} weights)",
        "weights_bytes": 269_000_000 if dtype == "bfloat16" else 94_000_000,
        "memory_bytes_per_s": 23.8e9,
        "passes": [
            *(
                _pass(name, rows, length, "chain")
                for length in (100, 1000)
                for rows in (1, 2, 4, 8, 16)
            ),
            *(_pass(name, rows, 1000, "tree") for rows in (4, 8, 16)),
        ],
        "settings": [
            _setting(name, temperature, batch) for temperature in (0.0, 0.7) for batch in (1, 4, 8)
        ],
        "timelines": [
            _timeline(name, method, temperature)
            for temperature in (0.0, 0.7)
            for method in ("plain", *METHODS)
        ],
    }


def _v(path: str, rows: float) -> float:
    return 1 + _SLOPE[path] * (rows - 1)


def _pass(path: str, rows: int, length: int, shape: str) -> Summary:
    took = (
        _PASS_MS[path] * _v(path, rows) * (1 + length / 20_000) * (1.05 if shape == "tree" else 1)
    )
    limit = 0.98 / _v(path, rows) if length == 100 else None
    return {
        "num_rows": rows,
        "context_len": length,
        "shape": shape,
        "median_ms": round(took, 3),
        "v": round(_v(path, rows) * (1 + (length - 100) * rows / 200_000), 3),
        "limit_fraction": limit and round(limit, 3),
    }


def _setting(path: str, temperature: float, batch: int) -> Summary:
    methods = [_method(path, temperature, batch, name) for name in ("plain", *METHODS)]
    if batch == 1:
        methods.append(_method(path, temperature, batch, _PEER))
    return {
        "temperature": temperature,
        "batch": batch,
        "num_prompts": sum(COLUMNS.values()),
        "num_rounds": 5,
        "methods": methods,
    }


def _method(path: str, temperature: float, batch: int, name: str) -> Summary:
    figures = {column: _column(path, temperature, batch, name, column) for column in COLUMNS}
    shares = [(figures[column], count) for column, count in COLUMNS.items()]
    total = {**_mixed(shares), "column": "all", "num_prompts": sum(COLUMNS.values())}
    num_compared = total["num_prompts"] if temperature == 0 and name != "plain" else 0
    total.update(num_compared=num_compared, num_equal=num_compared - (1 if num_compared else 0))
    if num_compared:
        total.update(first_difference=41, num_ties=1)
    config = {"method": name.split()[0], "num_speculative_tokens": _LENGTHS.get(name)}
    return {
        "method": name,
        "config": config if name in METHODS else None,
        "is_plain": name == "plain",
        "is_peer": name == _PEER,
        "columns": [*(figures.values() if batch == 1 else ()), total],
    }


def _column(path: str, temperature: float, batch: int, name: str, column: str) -> Summary:
    alphas = _alphas(name, column, temperature)
    expected = 1 + sum(math.prod(alphas[: depth + 1]) for depth in range(len(alphas)))
    rows = batch * (len(alphas) + 1)
    pass_ms = _PASS_MS[path] * _v(path, rows)
    plain_ms = _PASS_MS[path] * _v(path, batch)
    draft_ms = _C.get(name, 0.0) * len(alphas) * _PASS_MS[path]
    predicted = expected * plain_ms / (draft_ms + pass_ms + 0.2)
    ratio = _ratio(predicted * 0.97, COLUMNS[column])
    if name == _PEER:
        ratio = _ratio(0.31 + 0.2 * METHODS["suffix K=8"][column], COLUMNS[column])
    speed = 1000 * batch / plain_ms * (ratio["mean"] if name != "plain" else 1.0)
    speculates = name in METHODS
    compared = COLUMNS[column] if temperature == 0 and name != "plain" else 0
    return {
        "column": column,
        "num_prompts": COLUMNS[column],
        "tokens_per_s": round(speed, 2),
        "end_to_end_tokens_per_s": round(speed * 0.88, 2),
        "ttft_ms": None if name == _PEER else round(4.2 * plain_ms, 2),
        "ratio": None if name == "plain" else ratio,
        "end_to_end_ratio": None if name == "plain" else _ratio(0.12 + 0.88 * ratio["mean"], 6),
        "acceptance_length": round(expected, 3) if name != _PEER else None,
        "alpha": round(sum(alphas) / len(alphas), 3) if speculates else None,
        "conditional_acceptance": alphas,
        "reached_per_position": [round(900 * 0.6**depth) for depth in range(len(alphas))],
        "num_compared": compared,
        "num_equal": compared,
        "first_difference": None,
        "num_ties": 0 if compared else None,
        "step": _step(rows, draft_ms, pass_ms) if name != _PEER else None,
        "c": _C[name] if speculates else None,
        "predicted_ratio": round(predicted, 3) if speculates else None,
        "limit_fraction": round(0.97 / _v(path, rows), 3) if name == "plain" else None,
    }


def _step(rows: int, draft_ms: float, pass_ms: float) -> Summary:
    return {
        "num_rows": rows,
        "draft_ms": round(draft_ms, 3),
        "pass_ms": round(pass_ms, 3),
        "rest_ms": 0.2,
    }


def _alphas(name: str, column: str, temperature: float) -> list[float]:
    if name not in METHODS:
        return []
    first = METHODS[name][column] * (1 - 0.25 * temperature)
    return [round(min(0.95, first + 0.015 * depth), 3) for depth in range(_LENGTHS[name])]


def _ratio(mean: float, num_prompts: int) -> Summary:
    spread = 0.16 / math.sqrt(num_prompts)
    known = num_prompts >= 3
    return {
        "mean": round(mean, 4),
        "low": round(mean * (1 - spread), 4) if known else None,
        "high": round(mean * (1 + spread), 4) if known else None,
        "num_prompts": num_prompts,
    }


def _mixed(shares: list[tuple[Summary, int]]) -> Summary:
    """The first column, with its ratios, speeds and lengths replaced by means over prompts."""
    mixed = copy.deepcopy(shares[0][0])
    total = sum(count for _, count in shares)
    for name in ("tokens_per_s", "end_to_end_tokens_per_s", "acceptance_length", "alpha"):
        if mixed[name] is not None:
            mixed[name] = round(sum(each[name] * count for each, count in shares) / total, 3)
    for name in ("ratio", "end_to_end_ratio"):
        if mixed[name] is not None:
            logs = sum(math.log(each[name]["mean"]) * count for each, count in shares)
            mixed[name] = _ratio(math.exp(logs / total), total)
    if mixed["predicted_ratio"] is not None and mixed["ratio"] is not None:
        mixed["predicted_ratio"] = round(mixed["ratio"]["mean"] / 0.97, 3)
    depths = range(len(mixed["conditional_acceptance"]))
    mixed["conditional_acceptance"] = [
        round(sum(each["conditional_acceptance"][depth] * n for each, n in shares) / total, 3)
        for depth in depths
    ]
    return mixed


def _timeline(path: str, method: str, temperature: float) -> Summary:
    """48 tokens, by a rule in place of chance."""
    alphas = _alphas(method, "code", temperature)
    steps, num_tokens = [], 0
    while num_tokens < 48:
        place = len(steps)
        gained = 1 + sum(1 for depth in range(len(alphas)) if (place * 7 + depth * 3) % 11 > depth)
        gained = min(gained, 48 - num_tokens)
        rows = len(alphas) + 1
        wobble = 1 + ((place * 5) % 7) / 60
        steps.append(
            {
                "draft_ms": round(_C.get(method, 0.0) * len(alphas) * _PASS_MS[path], 3),
                "pass_ms": round(_PASS_MS[path] * _v(path, rows) * wobble, 3),
                "rest_ms": 0.2,
                "num_drafted": len(alphas),
                "num_tokens": gained,
            }
        )
        num_tokens += gained
    return {"method": method, "temperature": temperature, "prompt": "code-3", "steps": steps}


def _crossover(path: Summary, method: str, temperature: float) -> Summary:
    ratios = []
    for setting in path["settings"]:
        if setting["temperature"] == temperature:
            found = next(each for each in setting["methods"] if each["method"] == method)
            ratios.append({"batch": setting["batch"], "ratio": found["columns"][-1]["ratio"]})
    below = [each["batch"] for each in ratios if each["ratio"]["mean"] < 1]
    return {
        "path": path["path"],
        "temperature": temperature,
        "method": method,
        "ratios": ratios,
        "crossover_batch": below[0] if below else None,
    }
