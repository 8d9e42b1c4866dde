"""How reports look at a benchmark's summary: which settings belong together, and in what colour."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from outpace.measure.report.numbers import decimals, interval
from outpace.measure.report.svg import PLAIN, Estimate

Values = Mapping[str, Any]


def single(path: Values) -> list[Values]:
    """The settings of the smallest batch, one for each temperature: what a single user sees."""
    smallest = min((setting["batch"] for setting in path["settings"]), default=0)
    return [setting for setting in path["settings"] if setting["batch"] == smallest]


def singles(summary: Values) -> Iterator[tuple[Values, Values]]:
    """Every path with each of its settings of the smallest batch."""
    for path in summary["paths"]:
        for setting in single(path):
            yield path, setting


def ours(setting: Values) -> list[Values]:
    """The methods that draft, without plain decoding and other engines."""
    return [each for each in setting["methods"] if not each["is_plain"] and not each["is_peer"]]


def plain(setting: Values) -> Values | None:
    """Plain decoding, if it was measured."""
    return next((each for each in setting["methods"] if each["is_plain"]), None)


def total(method: Values) -> Values | None:
    """The method's column over all prompts; it comes last."""
    return method["columns"][-1] if method["columns"] else None


def columns(setting: Values) -> list[str]:
    """The names of the setting's columns, in order."""
    names = [column["column"] for each in setting["methods"] for column in each["columns"]]
    return sorted(dict.fromkeys(names), key=lambda name: name == "all")


def column(method: Values, name: str) -> Values | None:
    return next((each for each in method["columns"] if each["column"] == name), None)


def place_name(summary: Values, path: Values, temperature: float | None = None) -> str:
    """What distinguishes a setting of the smallest batch from the others of this summary."""
    several = len(summary["paths"]) > 1
    names = [path["path"]] if several or temperature is None else []
    if temperature is not None:
        names.append(f"temperature {temperature:g}")
    return ", ".join(names)


def tones(summary: Values) -> dict[str, int]:
    """A tone for every method, the same in all charts."""
    names = [
        method["method"]
        for path in summary["paths"]
        for setting in path["settings"]
        for method in setting["methods"]
        if not method["is_plain"]
    ]
    plains = {
        method["method"]: PLAIN
        for path in summary["paths"]
        for setting in path["settings"]
        for method in setting["methods"]
        if method["is_plain"]
    }
    return plains | {name: index for index, name in enumerate(dict.fromkeys(names))}


def estimate(ratio: Values | None) -> Estimate:
    """The ratio as charts take it."""
    return Estimate(ratio["mean"], ratio["low"], ratio["high"]) if ratio else Estimate(None)


def ratio_text(ratio: Values | None) -> str:
    """The ratio with its interval; "(n = 2)" in its place where there are too few prompts."""
    if ratio is None:
        return decimals(None)
    if ratio["low"] is None or ratio["high"] is None:
        return f"{decimals(ratio['mean'])} (n = {ratio['num_prompts']})"
    return interval(ratio["mean"], ratio["low"], ratio["high"])
