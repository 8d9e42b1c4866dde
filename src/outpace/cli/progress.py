"""A download's progress bar on stderr, made only if something is downloaded."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress


class DownloadProgress:
    """Call it with (bytes done, bytes in all; 0 where unknown). Use as a context manager."""

    def __init__(self, description: str) -> None:
        self._description = description
        self._bar: Progress | None = None

    def __call__(self, num_done: int, num_total: int) -> None:
        if self._bar is None:
            self._bar = _make_bar()
            self._bar.start()
            self._bar.add_task(self._description, total=num_total or None)
        self._bar.update(self._bar.task_ids[0], completed=num_done, total=num_total or None)

    def __enter__(self) -> DownloadProgress:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


def _make_bar() -> Progress:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
