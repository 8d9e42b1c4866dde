"""The draft that a command is given: a directory, or the name of one of this package's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


class DraftDirectory(click.ParamType[Path]):
    """Converts to the path of a draft's directory. A directory of that name wins over a bundled
    draft, so that what a user made is never passed over."""

    name = "directory"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        from outpace.heads.bundled import bundled_names, named_draft

        path = Path(value)
        if str(value) and path.is_dir():  # "" would be the current directory
            return path
        if str(value) and path.exists():
            self.fail(
                f"{str(value)!r} is a file; a draft is a directory, as `outpace train` makes."
            )
        bundled = named_draft(str(value))
        if bundled is None:
            names = ", ".join(bundled_names())
            self.fail(
                f"directory {str(value)!r} does not exist, nor is it a draft that comes with this "
                f"package (those are: {names})."
            )
        return bundled
