"""How an audit tells what it is doing."""

from __future__ import annotations

from typing import Protocol


class AuditProgress(Protocol):
    """Called in the thread that runs the audit."""

    def stage(self, name: str, total: int) -> None:
        """Something begins that has `total` steps."""

    def tick(self, count: int = 1) -> None:
        """So many of them are done."""

    def say(self, text: str) -> None:
        """What can be said before the results are there."""
