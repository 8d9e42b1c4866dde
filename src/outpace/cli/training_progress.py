"""How far a training run is, on stderr: a bar for each stage, in turn."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.progress import TaskID

    from outpace.training.options import Progress

_NAMES = {
    "prompts": "inventing prompts",
    "answers": "answers",
    "features": "features",
    "general features": "features of the general prompts",
    "evaluation": "evaluation",
}
_PLAIN_SECONDS = 30.0
"""Where there is no terminal, a line at most so often for each stage."""


class TrainingProgress:
    """An observer of `training.recipe`. Use as a context manager.

    quiet: for programs: lines only, and only those of the run's notes.
    """

    def __init__(self, *, quiet: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars

        self._console = Console(stderr=True)
        self._has_bars = self._console.is_terminal and not quiet
        self._quiet = quiet
        self._bars = Bars(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[detail]}", markup=False),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._has_bars,
        )
        self._stage = ""
        self._task: TaskID | None = None
        self._began, self._at_start, self._told = 0.0, 0, 0.0

    def counted(self, stage: str, done: int, total: int, detail: str = "") -> None:
        self._enter(stage, done)
        elapsed = time.perf_counter() - self._began
        rate = (done - self._at_start) / elapsed if elapsed > 1 else None
        shown = f"{done:,} of {total:,}" + (f", {detail}" if detail else "")
        if rate is not None:
            shown += f", {rate:,.1f}/s"
        self._show(done, total, shown, is_last=done >= total)

    def trained(self, progress: Progress) -> None:
        self._enter("training", progress.step)
        rates = " ".join(f"{a:.2f}" for a in progress.acceptance)
        planned = "?" if progress.steps is None else f"{progress.steps:,}"
        shown = (
            f"step {progress.step:,} of {planned}, {progress.tokens_per_second:,.0f} tokens/s, "
            f"loss {progress.loss:.3f}, accepted {rates}"
        )
        if progress.seconds_left is not None:
            shown += f", {_duration(progress.seconds_left)} left"
        is_last = progress.step == progress.steps
        if progress.evaluation is not None:
            lengths = " ".join(f"{n:.2f}" for n in progress.evaluation.tokens_per_cycle)
            self.note(f"step {progress.step:,}: held-out tokens per pass {lengths} (K = 1, 2, ..)")
        self._show(progress.step, progress.steps, shown, is_last=is_last)

    def note(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def interrupted(self) -> None:
        """Say how to go on."""
        self._bars.stop()
        self.note(
            "Interrupted. What is done so far is kept: give the same command again to go on. "
            "(Training goes on from its last checkpoint, --checkpoint-minutes old at most.)"
        )

    def __enter__(self) -> TrainingProgress:
        self._bars.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bars.stop()

    def _enter(self, stage: str, done: int) -> None:
        if stage == self._stage:
            return
        self._stage, self._began, self._at_start = stage, time.perf_counter(), done
        self._told = 0.0
        if self._task is not None:
            self._bars.stop_task(self._task)
        name = _NAMES.get(stage, stage)
        self._task = self._bars.add_task(name, total=None, detail="")

    def _show(self, done: int, total: int | None, shown: str, *, is_last: bool) -> None:
        assert self._task is not None
        self._bars.update(self._task, completed=done, total=total, detail=shown)
        now = time.perf_counter()
        is_due = is_last or now - self._told >= _PLAIN_SECONDS
        if not self._has_bars and not self._quiet and is_due:
            self._told = now
            click.echo(f"{_NAMES.get(self._stage, self._stage)}: {shown}", err=True)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"
