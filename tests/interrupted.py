"""Processes killed on purpose, and files torn on purpose, for what has to survive both."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


class KillAfter:
    """Called, it lets that many calls pass and kills its process, unannounced, at the next."""

    def __init__(self, calls: int) -> None:
        self.left = calls

    def __call__(self, *_: object) -> None:
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1


def killed(function: Callable[[], object]) -> bool:
    """Run `function` in a process of its own; whether it was killed. Raises if it failed."""
    pid = os.fork()
    if pid == 0:
        try:
            function()
        except BaseException:
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "the process failed"
    return os.WIFSIGNALED(status)


def prefixes(content: bytes) -> Iterator[bytes]:
    """What may be left of a file that was being written: every beginning of it."""
    return (content[:length] for length in range(len(content) + 1))


def contents(directory: Path) -> dict[str, bytes]:
    """Every file of a directory."""
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


def without_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out waiting for the disk, which a killed process is no test of."""
    monkeypatch.setattr(os, "fsync", lambda file: None)
