"""Files that a user names."""

from __future__ import annotations

import os
from pathlib import Path

from outpace.errors import OptionError


def read_text(path: Path) -> str:
    """The whole file. Raises OptionError for one that cannot be read or is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise OptionError(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise OptionError(
            f"{path} is not UTF-8 text (byte {error.start}); convert it first"
        ) from error


def without_folders(word: str) -> str:
    """A word of a command line with the folders of its path left out; names of models on a hub
    ("owner/name") stay."""
    flag, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
    is_path = value.startswith((os.sep, ".", "~")) or os.path.exists(value) or value.count("/") > 1
    if "/" in value and is_path:
        value = Path(value).name
    return f"{flag}{equals}{value}"
