"""The draft that a command is given: a directory, or the name of one of this package's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from outpace.errors import OptionError


class DraftDirectory(click.ParamType[Path]):
    """Converts to the path of a draft's directory: see `heads.bundled.find_draft`."""

    name = "directory"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        from outpace.heads.bundled import find_draft

        try:
            return find_draft(str(value))
        except OptionError as error:
            self.fail(f"{error}.")
