"""Calls out of an answer's text, while it comes."""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Callable, Collection, Sequence

from outpace.engine.fold import len_possible_stop
from outpace.serving.tools.events import ArgumentsDelta, ContentDelta, ToolCallStart, ToolEvent
from outpace.serving.tools.header import (
    SPACE,
    IncompleteError,
    MalformedError,
    read_header,
    read_one,
    read_tail,
)
from outpace.serving.tools.syntax import Syntax

_ALPHABET = string.ascii_letters + string.digits
_OUTSIDE_STRING = re.compile(r'["{}\[\]]')
_INSIDE_STRING = re.compile(r'["\\]')


class ToolParser:
    """Splits one answer's text into content and calls.

    syntax: how calls are written; of a list without an opener ("required") it begins the answer.
    names: the functions there are. What names another is no call.
    only: the function whose arguments alone the answer is ("" otherwise).

    The events that `feed` and `finish` return, joined, do not depend on how the text was cut into
    deltas. What cannot be the beginning of a call is passed on at once. A call starts when its name
    and the brace that opens its arguments are there; from then on its arguments are passed on as
    the model writes them, valid or cut off though they may be. Whatever is no call up to that brace
    is content, with its markers. Of the text nothing is lost but markers, the object around name
    and arguments, and space around calls.
    """

    def __init__(self, syntax: Syntax, names: Collection[str], only: str = "") -> None:
        self._syntax = syntax
        self._names = tuple(names)
        self._only = only
        self._text = ""  # what has not been made events of yet
        self._space = ""  # ends the content so far; part of it only if more content follows
        self._events: list[ToolEvent] = []
        self._depth = 0
        self._in_string = False
        self._is_escaped = False
        self._is_final = False
        self._before: Sequence[str] = ()
        self.num_calls = 0
        self._state: Callable[[], bool] = self._first_state()

    def feed(self, delta: str) -> list[ToolEvent]:
        """The events that the text so far decides and no earlier call returned."""
        self._text += delta
        while self._text and self._state():
            pass
        return self._take()

    def finish(self) -> list[ToolEvent]:
        """The events of what was held back. Nothing may be fed afterwards."""
        self._is_final = True
        while self._text and self._state():
            pass
        if self._space and not self.num_calls:
            self._events.append(ContentDelta(self._space))
        return self._take()

    def _take(self) -> list[ToolEvent]:
        events, self._events = self._events, []
        return events

    # Each state takes something off the front of the text, or changes the state, and returns True;
    # or returns False where it needs more text. At the end every state goes on without more.

    def _first_state(self) -> Callable[[], bool]:
        if self._only:
            return self._only_arguments
        if not self._syntax.opener:
            return self._before_header("[")
        return self._at_start if self._syntax.is_bare else self._in_content

    def _only_arguments(self) -> bool:
        if not self.num_calls:
            self._start_call(self._only)
        self._pass_arguments(len(self._text))
        return True

    def _at_start(self) -> bool:
        """Before the first word of an answer that may begin with a call."""
        self._pass_content(len(self._text) - len(self._text.lstrip(SPACE)))
        if self._text:
            self._state = self._before_header() if self._text[0] == "{" else self._in_content
        return bool(self._text)

    def _in_content(self) -> bool:
        opener = self._syntax.opener
        place = self._text.find(opener) if opener else -1
        if place >= 0:
            self._pass_content(place)
            start = ("[",) if self._syntax.is_list else ()
            self._state = self._before_header(opener, *start)
            return True
        held = 0 if self._is_final or not opener else len_possible_stop(self._text, (opener,))
        self._pass_content(len(self._text) - held)
        return False

    def _before_header(self, *before: str) -> Callable[[], bool]:
        self._before = before
        return self._in_header

    def _in_header(self) -> bool:
        try:
            name, place = read_header(self._text, self._before, self._names)
        except (IncompleteError, MalformedError) as error:
            if isinstance(error, IncompleteError) and not self._is_final:
                return False
            self._refuse_call()
        else:
            self._drop(place)
            self._start_call(name)
            self._state = self._in_arguments
        return True

    def _in_arguments(self) -> bool:
        self._pass_arguments(self._end_of_arguments())
        if not self._depth:
            self._state = self._in_tail
        return True

    def _in_tail(self) -> bool:
        """After the arguments, before the end of the call's object."""
        try:
            self._drop(read_tail(self._text))
        except IncompleteError:
            return self._drop_at_end()
        except MalformedError:  # a brace too few: what follows the call may be as it should
            pass
        self._state = self._after_call
        return True

    def _after_call(self) -> bool:
        """After the call's object: its end, or another call."""
        try:
            found, place = read_one(self._text, *self._syntax.after_call)
        except IncompleteError:
            return self._drop_at_end()
        except MalformedError:
            self._state = self._in_content
            return True
        if found == "{":
            self._state = self._before_header()
        elif found in (",", ";"):
            self._state = self._before_header(found)
        else:
            self._drop(place)
            self._state = self._in_content
        return True

    def _drop_at_end(self) -> bool:
        """At the end of the answer: drop what may be half of a call's own punctuation."""
        if self._is_final:
            self._text = ""
        return False

    def _end_of_arguments(self) -> int:
        """How much of the text is arguments: through the brace that closes them, or all of it."""
        text, place = self._text, 0
        while place < len(text):
            if self._is_escaped:
                self._is_escaped = False
                place += 1
                continue
            match = (_INSIDE_STRING if self._in_string else _OUTSIDE_STRING).search(text, place)
            if match is None:
                return len(text)
            place = match.end()
            if match[0] == "\\":
                self._is_escaped = True
            elif match[0] == '"':
                self._in_string = not self._in_string
            else:
                self._depth += 1 if match[0] in "{[" else -1
                if not self._depth:
                    return place
        return place

    def _start_call(self, name: str) -> None:
        length = self._syntax.id_length
        call_id = _random(length) if length else f"call_{_random(24)}"
        self._events.append(ToolCallStart(self.num_calls, call_id, name))
        self.num_calls += 1
        self._depth, self._in_string, self._is_escaped = 0, False, False

    def _refuse_call(self) -> None:
        """What began like a call is content; but a call may begin right behind its opener."""
        opener = self._syntax.opener
        start = len(self._text) - len(self._text.lstrip(SPACE))
        is_opened = bool(opener) and self._text.startswith(opener, start)
        self._pass_content(start + (len(opener) if is_opened else 1))
        self._state = self._in_content

    def _pass_arguments(self, length: int) -> None:
        if length:
            self._events.append(ArgumentsDelta(self.num_calls - 1, self._text[:length]))
            self._drop(length)

    def _pass_content(self, length: int) -> None:
        text = self._text[:length]
        said = text.rstrip()
        if said:
            self._events.append(ContentDelta(self._space + said))
            self._space = ""
        self._space += text[len(said) :]
        self._drop(length)

    def _drop(self, length: int) -> None:
        self._text = self._text[length:]


def _random(length: int) -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(length))
