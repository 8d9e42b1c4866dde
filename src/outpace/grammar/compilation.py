"""Compiling in a thread with a deep stack."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from outpace.errors import OptionError
from outpace.grammar.source import unusable

if TYPE_CHECKING:
    from llguidance import LLMatcher

STACK_BYTES = 512 * 1024 * 1024
"""For compiling: the library descends into rules that name one another, one call for each, and a
few thousand of them would overflow a usual stack, which ends the process. Only what is used of it
takes memory."""


class Compilation:
    """Something that compiles, in a thread with a deep stack."""

    _starting = threading.Lock()  # the size of stacks is set for the whole process

    def __init__(self, work: Callable[[], LLMatcher]) -> None:
        self._work = work
        self._made: LLMatcher | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="outpace-grammar", daemon=True)
        with self._starting:
            before = threading.stack_size(STACK_BYTES)
            try:
                self._thread.start()
            finally:
                threading.stack_size(before)

    def _run(self) -> None:
        try:
            self._made = self._work()
        except BaseException as error:  # also the library's panics, for whoever waits
            self._error = error

    def result(self, kind: str, timeout_s: float | None) -> LLMatcher:
        """Wait for it. Raises OptionError for what cannot be compiled, or not in time."""
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise unusable(kind, f"compiling takes longer than {timeout_s:g} s; simplify it")
        if isinstance(self._error, OptionError):
            raise self._error
        if self._error is not None:
            raise unusable(kind, str(self._error)) from self._error
        assert self._made is not None
        return self._made
