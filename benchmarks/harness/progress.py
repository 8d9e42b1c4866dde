"""How far a benchmark is, on stderr."""

from __future__ import annotations

import sys
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


class BenchProgress:
    """A bar in units of work, with the time left. Use as a context manager.

    Work is announced before it is done, so that the time left is an estimate from the start.
    """

    def __init__(self) -> None:
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            # Prompts differ in length: an estimate over a few seconds would jump about.
            TimeRemainingColumn(),
            console=Console(file=sys.stderr),
            # Drawing takes time from what is being measured.
            refresh_per_second=1,
            speed_estimate_period=120,
        )
        self._task = self._progress.add_task("starting", total=0)
        self._total = 0.0

    def expect(self, units: float) -> None:
        """Announce more work (or, below zero, less)."""
        self._total += units
        self._progress.update(self._task, total=self._total)

    def describe(self, what: str) -> None:
        self._progress.update(self._task, description=what)

    def tick(self, units: float = 1) -> None:
        self._progress.advance(self._task, units)

    def at(self, what: str, done: float, total: float | None) -> None:
        """Say where things stand, for work that counts by itself."""
        self._progress.update(self._task, description=what, completed=done, total=total)

    def __enter__(self) -> BenchProgress:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._progress.stop()
