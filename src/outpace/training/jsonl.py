"""JSON lines: read with the number of each line, and grown so that an interruption costs a line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from outpace.errors import OptionError
from outpace.files import read_text

SYNC_EVERY = 16
"""Rows that a power cut may cost."""


def read_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """("FILE, line N", object) of every line that is not blank.

    Raises OptionError for a line that is no JSON object.
    """
    # Not splitlines: JSON may hold U+2028 and the like unescaped.
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise OptionError(f"{where}: not JSON ({error})") from error
        if not isinstance(row, dict):
            raise OptionError(f"{where}: expected a JSON object, got {line:.60}")
        yield where, row


def optional_text(row: dict[str, Any], key: str, where: str) -> str:
    """A string field, "" where there is none. Raises OptionError for anything else."""
    value = row.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise OptionError(f"{where}: {key} must be a string, got {value!r:.60}")
    return value


class GrowingFile:
    """JSON lines that a run appends to; use as a context manager. What an interruption tore off is
    dropped on opening.

    rows: what the file held, oldest first. Raises OptionError for a damaged line before the last.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pending: list[str] = []
        self.rows: list[dict[str, Any]] = []
        path.parent.mkdir(parents=True, exist_ok=True)
        content = path.read_bytes() if path.exists() else b""
        complete = content.rfind(b"\n") + 1
        if complete < len(content):
            os.truncate(path, complete)
        if complete:
            self.rows = [row for _, row in read_rows(path)]

    def add(self, row: dict[str, Any]) -> None:
        """Append a row; it survives a power cut at the latest when `SYNC_EVERY` have come."""
        self._pending.append(json.dumps(row) + "\n")
        if len(self._pending) >= SYNC_EVERY:
            self.flush()

    def flush(self) -> None:
        lines, self._pending = "".join(self._pending), []
        with self._path.open("a", encoding="utf-8") as file:
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())

    def __enter__(self) -> GrowingFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.flush()
