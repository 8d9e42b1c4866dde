"""SHA-256 of whole files, remembered for as long as size and time of change stay the same."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

_MEMORY = "hashes.json"
_SETTLED_S = 2.0
"""A file changed more recently than this could change again without its time showing it."""


def file_hash(path: Path, directory: Path) -> str:
    """Hex SHA-256 of a file's content. What was hashed before is looked up in `directory`, by path,
    size and time of change.

    Raises OSError if the file cannot be read; a memory that cannot be read or written is no error.
    """
    path = path.resolve()
    status = path.stat()
    stamp = [status.st_size, status.st_mtime_ns]
    known = _remembered(directory / _MEMORY)
    entry = known.get(str(path))
    if isinstance(entry, list) and entry[:-1] == stamp:
        return str(entry[-1])
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if time.time_ns() - status.st_mtime_ns > _SETTLED_S * 1e9:
        present = {name: value for name, value in known.items() if os.path.exists(name)}
        _remember(directory / _MEMORY, present | {str(path): [*stamp, digest]})
    return digest


def _remembered(memory: Path) -> dict[str, Any]:
    try:
        known = json.loads(memory.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _remember(memory: Path, known: dict[str, Any]) -> None:
    """Replace the file as a whole: of two processes that write at once, one is forgotten."""
    try:
        memory.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(prefix=".hashes-", dir=memory.parent)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(known, file)
            os.replace(temporary, memory)
        except OSError:
            os.unlink(temporary)
            raise
    except OSError:
        return
