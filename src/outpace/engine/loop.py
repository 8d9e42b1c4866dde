"""A thread that owns an engine, so that any number of callers, sync or async, can share it."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

from outpace.engine.engine import Engine
from outpace.engine.request import Request
from outpace.errors import OutpaceError
from outpace.types import Event

logger = logging.getLogger(__name__)

Listener = Callable[[Event], None]


class EngineLoop:
    """Runs an engine in its own thread. Every method may be called from any thread.

    A step that raises ends the requests that were running, with that error; the loop goes on.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._listeners: dict[int, Listener] = {}
        self._closed = False
        self._fault: AssertionError | None = None
        self._thread = threading.Thread(target=self._run, name="outpace-engine", daemon=True)
        self._thread.start()

    def submit(self, request: Request, listener: Listener) -> None:
        """Start a request. `listener` is called in the engine's thread, for each of its events;
        the last one has a finish reason. Raises OutpaceError after `close`."""
        if self._closed:
            raise OutpaceError("this LLM was closed; make a new one to generate more")

        def command() -> None:
            self._listeners[request.seq.seq_id] = listener
            self._engine.add(request)

        self._commands.put(command)

    def cancel(self, request: Request) -> None:
        """End a request early; nothing happens if it has ended. Its listener gets a last event
        with the finish reason "abort"."""

        def command() -> None:
            event = self._engine.cancel(request)
            if event is not None:
                self._dispatch([event])

        self._commands.put(command)

    def close(self) -> None:
        """Cancel what runs and stop the thread. Safe to call twice.

        Raises AssertionError if an integrity check failed at some idle moment: a bug of ours,
        which did not disturb the requests but must not go unseen.
        """
        self._closed = True
        self._commands.put(None)
        self._thread.join()
        if self._fault is not None:
            raise self._fault

    def _run(self) -> None:
        while self._obey_commands():
            try:
                events = self._engine.step()
            except Exception as error:
                logger.exception("a step failed; the requests that were running end with its error")
                events = self._engine.fail_all(error)
            self._dispatch(events)

    def _obey_commands(self) -> bool:
        """Carry out waiting commands; without work, wait for one. False when told to stop."""
        while True:
            idle = not self._engine.has_work
            if idle and self._commands.empty():
                self._check_integrity()
            try:
                command = self._commands.get(block=idle)
            except queue.Empty:
                return True
            if command is None:
                self._dispatch(self._engine.cancel_all())
                self._check_integrity()
                return False
            command()

    def _check_integrity(self) -> None:
        try:
            self._engine.check_integrity()
        except AssertionError as fault:
            logger.critical("integrity check failed", exc_info=fault)
            self._fault = self._fault or fault

    def _dispatch(self, events: list[Event]) -> None:
        for event in events:
            listener = self._listeners[event.seq_id]
            if event.finish_reason is not None:
                del self._listeners[event.seq_id]
            try:
                listener(event)
            except Exception:
                # A listener whose event loop is gone must not stop the other requests.
                logger.exception("a listener failed")
