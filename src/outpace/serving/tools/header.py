"""The ends of a call's JSON object: what stands before its arguments, and what after."""

from __future__ import annotations

from collections.abc import Iterable

# A header or tail longer than this is none; so little text is ever held back or read twice.
MAX_LENGTH = 512
SPACE = " \t\r\n"
_ARGUMENTS_KEYS = ('"arguments"', '"parameters"')
# Some models write these too; they say nothing that we do not know or choose ourselves.
_OTHER_KEYS = ('"type"', '"id"')


class IncompleteError(Exception):
    """The text ends where it could still go on as expected."""


class MalformedError(Exception):
    """The text is not what was expected, however it may go on."""


class _Cursor:
    """A place in a text. `expect` and its kin move it, or raise."""

    def __init__(self, text: str) -> None:
        self._text = text[:MAX_LENGTH]
        self._is_cut = len(text) >= MAX_LENGTH
        self.place = 0

    def expect(self, *literals: str) -> str:
        """Space, then one of the literals, which is returned."""
        rest = self._text[self.place :].lstrip(SPACE)
        for literal in literals:
            if rest.startswith(literal):
                self.place = len(self._text) - len(rest) + len(literal)
                return literal
        if any(literal.startswith(rest) for literal in literals):
            self._fail_at_end()
        raise MalformedError

    def skip_string(self) -> None:
        """A JSON string."""
        self.expect('"')
        place = self.place
        while place < len(self._text):
            if self._text[place] == '"':
                self.place = place + 1
                return
            place += 2 if self._text[place] == "\\" else 1
        self._fail_at_end()

    def _fail_at_end(self) -> None:
        raise MalformedError if self._is_cut else IncompleteError


def read_header(text: str, before: Iterable[str], names: Iterable[str]) -> tuple[str, int]:
    """Read up to the brace that opens a call's arguments.

    before: literals that come before the call's object, in order. names: the functions there are.

    Returns (name, place of the brace). Raises IncompleteError or MalformedError.
    """
    quoted = [f'"{name}"' for name in names]
    cursor = _Cursor(text)
    for literal in (*before, "{"):
        cursor.expect(literal)
    name = None
    while True:
        known = ('"name"',) if name is None else _ARGUMENTS_KEYS
        key = cursor.expect(*known, *_OTHER_KEYS)
        cursor.expect(":")
        if key in _ARGUMENTS_KEYS:
            assert name is not None, "the arguments are expected after the name only"
            cursor.expect("{")
            return name, cursor.place - 1
        if key == '"name"':
            name = cursor.expect(*quoted)[1:-1]
        else:
            cursor.skip_string()
        cursor.expect(",")


def read_tail(text: str) -> int:
    """Read what follows a call's arguments, through the brace that closes its object.

    Returns the place after it. Raises IncompleteError or MalformedError.
    """
    cursor = _Cursor(text)
    while cursor.expect("}", ",") == ",":
        cursor.expect(*_OTHER_KEYS)
        cursor.expect(":")
        cursor.skip_string()
    return cursor.place


def read_one(text: str, *literals: str) -> tuple[str, int]:
    """Read space and one of the literals: (which, the place after it). Raises as the others do."""
    cursor = _Cursor(text)
    found = cursor.expect(*literals)
    return found, cursor.place
