"""How figures are written, in every report alike; `-` where nothing is known."""

from __future__ import annotations

import math

UNKNOWN = "-"


def count(value: int | None) -> str:
    """12345 -> "12,345"."""
    return UNKNOWN if value is None else f"{value:,}"


def counted(number: int, name: str) -> str:
    """ "1 prompt", "3 prompts"."""
    return f"{number} {name}" if number == 1 else f"{number} {name}s"


def decimals(value: float | None, places: int = 2) -> str:
    """1.8371 -> "1.84"."""
    return UNKNOWN if value is None or not math.isfinite(value) else f"{value:,.{places}f}"


def significant(value: float | None) -> str:
    """Three figures, no exponent, all of them before the point where there are more: 0.0213,
    3.47, 48.1, 12,345."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if value == 0:
        return "0"
    size = f"{abs(value):.2e}"
    places = max(0, 2 - int(size.partition("e")[2]))
    return f"{value:,.{places}f}"


def milliseconds(value: float | None) -> str:
    """12.345 -> "12.3 ms"."""
    text = significant(value)
    return text if text == UNKNOWN else f"{text} ms"


def percent(fraction: float | None) -> str:
    """0.873 -> "87 %"."""
    text = decimals(None if fraction is None else 100 * fraction, 0)
    return text if text == UNKNOWN else f"{text} %"


def interval(value: float | None, low: float | None, high: float | None, *, places: int = 2) -> str:
    """ "1.84 (1.71 to 1.98)", or the value alone where there is no interval."""
    if value is None or low is None or high is None:
        return decimals(value, places)
    return f"{decimals(value, places)} ({decimals(low, places)} to {decimals(high, places)})"
