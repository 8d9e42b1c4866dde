"""Text from outside in a terminal: shown, not obeyed."""

from __future__ import annotations

import re

_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """The text with control characters that a terminal would obey as their pictures."""
    return _CONTROLS.sub(_picture, text)


def in_one_line(text: str) -> str:
    """The same without line breaks and tabs."""
    return printable(text.replace("\n", " ").replace("\t", " "))


def _picture(found: re.Match[str]) -> str:
    code = ord(found[0])
    return chr(0x2400 + code) if code < 0x20 else "\ufffd"
