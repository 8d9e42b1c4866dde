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


def check_writable(path: Path, *, regular: bool = False) -> None:
    """Raise OptionError where nothing can be written, as far as that is known beforehand.

    regular: devices and pipes, which cannot be kept from others' eyes, will not do.
    """
    target = path.resolve()
    if target.is_dir():
        raise OptionError(f"{path} cannot be written: it is a folder")
    if regular and _is_stream(target):
        raise OptionError(f"{path} is not a regular file; name another one to write to")
    if not target.parent.is_dir():
        raise OptionError(f"{path} cannot be written: there is no folder {path.parent}")
    if not _is_stream(target) and not os.access(target.parent, os.W_OK):
        raise OptionError(f"{path} cannot be written: its folder does not allow it")


def write_whole(path: Path, text: str) -> None:
    """Write a file whole or not at all; what was there is replaced. A device or a pipe is written
    to as it is. Raises OptionError where that is impossible."""
    check_writable(path)
    target = path.resolve()
    temporary = target.with_name(f".{os.getpid()}.part")
    try:
        if _is_stream(target):
            target.write_text(text, encoding="utf-8")
            return
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(target)
    except OSError as error:
        raise OptionError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def _is_stream(target: Path) -> bool:
    """Whether there is something that is no file, such as a device or a pipe."""
    return target.exists() and not target.is_file()


def without_folders(word: str) -> str:
    """A word of a command line with the folders of its path left out; names of models on a hub
    ("owner/name") stay."""
    flag, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
    is_path = value.startswith((os.sep, ".", "~")) or os.path.exists(value) or value.count("/") > 1
    if "/" in value and is_path:
        value = Path(value).name
    return f"{flag}{equals}{value}"
