"""How far a benchmark is, on stderr: by the clock, as benchmarks are planned by it."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING

from outpace.cli.printable import in_one_line

if TYPE_CHECKING:
    from rich.progress import Progress

_DRAWN_EVERY_S = 1.0
"""Drawing takes time from what is being measured."""


class BenchBar:
    """What is being done, and how much of the promised time is over. Use as a context manager."""

    def __init__(self, title: str, minutes: float) -> None:
        self._progress = _make_progress(60 * minutes)
        self._task = self._progress.add_task(title, total=60 * minutes)
        self._started = time.perf_counter()
        self._drawn_at = 0.0

    def describe(self, what: str) -> None:
        now = time.perf_counter()
        if now - self._drawn_at >= _DRAWN_EVERY_S:
            self._drawn_at = now
            self._progress.update(
                self._task, description=in_one_line(what), completed=now - self._started
            )
            self._progress.refresh()

    def __enter__(self) -> BenchBar:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._progress.stop()


def _make_progress(promised_s: float) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn(f"of about {promised_s // 60:.0f}:{promised_s % 60:02.0f}"),
        console=Console(stderr=True),
        auto_refresh=False,
        transient=True,
    )
