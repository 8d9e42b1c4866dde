"""Drafts that come with this package, found by the target they were trained for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from outpace.errors import OptionError
from outpace.heads.binding import read_binding
from outpace.heads.files import CONFIG, read_config

if TYPE_CHECKING:
    from outpace.heads.target_parts import TargetParts

DRAFTS = Path(__file__).parent.parent / "drafts"
"""A directory for each, named after the target's alias and the method."""


def find_draft(name: str) -> Path:
    """The directory of this name, or else of the bundled draft that is called so. A directory wins,
    so that what a user made is never passed over. Raises OptionError where there is neither."""
    path = Path(name)
    if name and path.is_dir():  # "" would be the current directory
        return path
    if name and path.exists():
        raise OptionError(f"{name!r} is a file; a draft is a directory, as `outpace train` makes")
    bundled = sorted(path.parent.name for path in DRAFTS.glob(f"*/{CONFIG}"))
    if name not in bundled:
        raise OptionError(
            f"{name!r} does not exist: there is no such directory, nor a draft that comes with "
            f"this package (those are: {', '.join(bundled)})"
        )
    return DRAFTS / name


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
