"""What the standard library's JSON reader lets pass and no reader here does."""

from __future__ import annotations

from typing import Any


def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """For `json.loads`, as its object_pairs_hook: raises ValueError for a key that is given twice,
    of which it would take the last."""
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            raise ValueError(f"the key {key!a:.100} is given twice")
        values[key] = value
    return values
