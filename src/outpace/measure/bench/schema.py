"""What a summary must hold to be shown, so that a damaged file is told in one line."""

from __future__ import annotations

from typing import Any

NUMBER = (int, float)

_RATIO: Any = (
    {"mean": NUMBER, "low": NUMBER, "high": NUMBER},
    {"mean": NUMBER, "low": None, "high": None},
    None,
)
_STEP = dict.fromkeys(("num_rows", "draft_ms", "pass_ms", "rest_ms"), NUMBER)
_COLUMN = {
    "column": str,
    "num_prompts": int,
    "tokens_per_s": (*NUMBER, None),
    "end_to_end_tokens_per_s": (*NUMBER, None),
    "ttft_ms": (*NUMBER, None),
    "ratio": _RATIO,
    "end_to_end_ratio": _RATIO,
    "acceptance_length": (*NUMBER, None),
    "alpha": (*NUMBER, None),
    "conditional_acceptance": [(*NUMBER, None)],
    "reached_per_position": [int],
    "num_compared": int,
    "num_equal": int,
    "first_difference": (int, None),
    "num_ties": (int, None),
    "step": (_STEP, None),
    "c": (*NUMBER, None),
    "predicted_ratio": (*NUMBER, None),
    "limit_fraction": (*NUMBER, None),
}
_METHOD = {
    "method": str,
    "config": (dict, None),
    "is_plain": bool,
    "is_peer": bool,
    "columns": [_COLUMN, ...],
}
_SETTING = {
    "temperature": NUMBER,
    "batch": int,
    "num_prompts": int,
    "num_rounds": int,
    "methods": [_METHOD],
}
_PASS = {
    "num_rows": int,
    "context_len": int,
    "shape": str,
    "median_ms": NUMBER,
    "v": NUMBER,
    "limit_fraction": (*NUMBER, None),
}
_DRAWN_STEP = {
    **dict.fromkeys(("draft_ms", "pass_ms", "rest_ms"), NUMBER),
    "num_drafted": int,
    "num_tokens": int,
}
_TIMELINE = {"method": str, "temperature": NUMBER, "prompt": str, "steps": [_DRAWN_STEP]}
_PATH = {
    "path": str,
    "dtype": str,
    "model_impl": str,
    "runs_on": str,
    "threads?": (int, None),
    "weights_bytes": (int, None),
    "memory_bytes_per_s": (*NUMBER, None),
    "passes": [_PASS],
    "settings": [_SETTING],
    "timelines": [_TIMELINE],
    "not_measured?": [str],
}
_CROSSOVER = {
    "path": str,
    "temperature": NUMBER,
    "method": str,
    "ratios": [{"batch": int, "ratio": _RATIO}],
    "crossover_batch": (int, None),
}
SUMMARY: Any = {
    "schema": int,
    "provenance": dict,
    "model": {"name": str, "fingerprint": (str, None)},
    "options": dict,
    "notes": [str],
    "complete": bool,
    "elapsed_s": NUMBER,
    "paths": [_PATH],
    "crossover": [_CROSSOVER],
}


def check_shape(value: object, shape: Any, where: str) -> None:
    """Raise ValueError, with the place, where a value of JSON is not of a shape.

    A shape is a type, None, a mapping of the keys there must be to their shapes (a key that ends
    with a question mark may be missing: earlier versions did not write it), a list of the
    shape of each item (with an Ellipsis if there must be one), or a tuple of shapes of which one
    must fit.
    """
    if isinstance(shape, tuple):
        fitting = [each for each in shape if _fits(value, each)]
        # What is wrong inside is worth telling where only one of them is an object.
        nested = [each for each in shape if isinstance(each, dict)]
        if not fitting and len(nested) == 1 and value is not None:
            check_shape(value, nested[0], where)
        elif not fitting:
            raise _unfit(value, where)
    elif isinstance(shape, dict):
        if not isinstance(value, dict):
            raise _unfit(value, where)
        for key, each in shape.items():
            name = key.removesuffix("?")
            if name in value:
                check_shape(value[name], each, name)
            elif name == key:
                raise ValueError(f"{key} is missing in {where}")
    elif isinstance(shape, list):
        if not isinstance(value, list) or (len(shape) == 2 and not value):
            raise _unfit(value, where)
        for item in value:
            check_shape(item, shape[0], where)
    elif value is not None if shape is None else not _is_a(shape, value):
        raise _unfit(value, where)


def _fits(value: object, shape: Any) -> bool:
    try:
        check_shape(value, shape, "")
    except ValueError:
        return False
    return True


def _is_a(kind: type, value: object) -> bool:
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, kind)


def _unfit(value: object, where: str) -> ValueError:
    return ValueError(f"{where} cannot be {value!r:.40}")
