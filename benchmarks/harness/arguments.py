"""What the command lines of all benchmarks have in common."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

Add = Callable[[argparse.ArgumentParser], None]


class BenchParser(argparse.ArgumentParser):
    """A parser whose options are added by `parts`, one for each group of them.

    quick: defaults where --quick is given, which must be among the options then.
    """

    def __init__(
        self, description: str, *parts: Add, quick: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(
            description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
        )
        self._quick = quick
        for add in parts:
            add(self)

    def values(self, arguments: Sequence[str] | None) -> dict[str, Any]:
        """What was given, by name. Exits with a message, as the methods below do, for values that
        make no sense."""
        if self._quick is not None and self.parse_known_args(arguments)[0].quick:
            self.set_defaults(**self._quick)
        return vars(self.parse_args(arguments))

    def check_known(self, name: str, given: Collection[str], known: Collection[str]) -> None:
        unknown = [value for value in given if value not in known]
        if unknown:
            self.error(f"unknown {unknown[0]!r} in {name}; known: {', '.join(known)}")

    def check_rows(self, rows: Collection[int]) -> None:
        if 1 not in rows:
            self.error("--rows must include 1: v(n) is relative to it")

    def check_place(self, flag: str, path: Path | None) -> None:
        """A file that is to be written: not after half an hour it turns out that it cannot be."""
        if path is not None and not path.absolute().parent.is_dir():
            self.error(f"{flag}: there is no directory {path.parent}")
