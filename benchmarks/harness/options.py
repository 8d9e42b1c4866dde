"""Values that the command lines of several benchmarks take."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def as_count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return value


def as_list_of(convert: Callable[[str], T]) -> Callable[[str], tuple[T, ...]]:
    def parse(text: str) -> tuple[T, ...]:
        return tuple(dict.fromkeys(convert(part.strip()) for part in text.split(",")))

    parse.__name__ = "list separated by commas"
    return parse


def as_ranges(text: str) -> tuple[int, ...]:
    values: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        values.update(range(as_count(first), as_count(last or first) + 1))
    return tuple(sorted(values))
