"""Drafts that come with this package, found by the target they were trained for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from outpace.heads.binding import read_binding
from outpace.heads.files import CONFIG, read_config

if TYPE_CHECKING:
    from outpace.heads.target_parts import TargetParts

DRAFTS = Path(__file__).parent.parent / "drafts"
"""A directory for each, named after the target's alias and the method."""


def bundled_names() -> list[str]:
    """The names of all of them."""
    return sorted(path.parent.name for path in DRAFTS.glob(f"*/{CONFIG}"))


def named_draft(name: str) -> Path | None:
    """The directory of the draft of this name, if there is one."""
    return DRAFTS / name if name in bundled_names() else None


def bundled_draft(parts: TargetParts, algorithm: str) -> Path | None:
    """The directory of the draft for this target, if there is one."""
    return bundled_for(parts.fingerprint, algorithm)


def bundled_for(fingerprint: str, algorithm: str) -> Path | None:
    """The directory of the draft for the target with this fingerprint, if there is one."""
    for path in sorted(DRAFTS.glob(f"*/{CONFIG}")):
        values = read_config(path.parent)
        binding = read_binding(values, str(path.parent))
        assert binding is not None, f"{path} is not bound to a target"
        if (
            values.get("speculators_model_type") == algorithm
            and binding.target_fingerprint == fingerprint
        ):
            return path.parent
    return None
