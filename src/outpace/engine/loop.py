"""A thread that owns an engine, so that any number of callers, sync or async, can share it."""

from __future__ import annotations

import atexit
import logging
import os
import queue
import threading
from collections.abc import Callable
from collections.abc import Sequence as List
from dataclasses import replace

import torch

from outpace.engine.engine import Engine
from outpace.engine.metrics import EngineState
from outpace.engine.request import Request
from outpace.errors import OutpaceError
from outpace.outputs import Event

logger = logging.getLogger(__name__)

Listener = Callable[[Event], None]


class EngineLoop:
    """Runs an engine in its own thread. Every method may be called from any thread.

    A step that raises ends the requests that were running, with that error; the loop goes on.
    Whatever ends the thread itself ends all requests with an error first: nobody waits for ever.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._listeners: dict[int, Listener] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._fault: Exception | None = None
        self._num_failed_steps = 0
        self._last_error: str | None = None
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._run, name="outpace-engine", daemon=True)
        self._thread.start()
        # Killed inside a kernel, as the interpreter leaves, the thread would abort the process.
        atexit.register(self._stop)

    def submit(self, requests: List[Request], listener: Listener) -> None:
        """Start requests that share a listener, which is called in the engine's thread for each
        of their events; the last one of each has a finish reason. Raises OutpaceError after
        `close`."""

        def command() -> None:
            for request in requests:
                self._listeners[request.seq.seq_id] = listener
                self._engine.add(request)

        self._check_caller()
        # The lock keeps a command from being queued behind the one that stops the thread.
        with self._lock:
            if self._closed:
                raise OutpaceError("this LLM was closed; make a new one to generate more")
            self._commands.put(command)

    def cancel(self, requests: List[Request]) -> None:
        """End requests early; nothing happens to those that have ended. Their listener gets a
        last event for each, with the finish reason "abort"."""

        def command() -> None:
            events = [self._engine.cancel(request) for request in requests]
            self._dispatch([event for event in events if event is not None])

        self._commands.put(command)

    def _check_caller(self) -> None:
        if os.getpid() != self._process:
            raise OutpaceError(
                "this LLM belongs to the process that made it: its thread does not exist in a "
                "forked one; make the LLM there"
            )
        if threading.current_thread() is self._thread:
            raise OutpaceError(
                "an LLM cannot be used from inside one of its own requests (a logits processor, "
                "say): the engine would wait for itself; use another LLM there"
            )

    def state(self) -> EngineState:
        """What is going on; may be asked at any time, and is approximate while a step runs."""
        return replace(
            self._engine.state(),
            num_failed_steps=self._num_failed_steps,
            last_error=self._last_error,
            is_alive=self._thread.is_alive() and not self._closed,
        )

    def close(self) -> None:
        """Cancel what runs and stop the thread. Safe to call twice.

        Raises the error of an integrity check that failed at some idle moment: a bug of ours or
        of a drafter, which did not disturb the requests but must not go unseen.
        """
        self._check_caller()
        atexit.unregister(self._stop)
        self._stop()
        if self._fault is not None:
            raise self._fault

    def _stop(self) -> None:
        with self._lock:
            self._closed = True
            self._commands.put(None)
        self._thread.join()

    # Once for all steps: entering and leaving it takes tens of microseconds each time.
    @torch.inference_mode()
    def _run(self) -> None:
        try:
            while self._obey_commands():
                self._dispatch(self._step())
        except BaseException as error:
            logger.critical("the engine's thread ends", exc_info=error)
            self._die(error)

    def _step(self) -> list[Event]:
        try:
            return self._engine.step()
        except Exception as error:
            logger.exception("a step failed; the requests that were running end with its error")
            self._num_failed_steps += 1
            self._last_error = type(error).__name__
            return self._engine.fail_running(error)

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
        except Exception as fault:
            logger.critical("integrity check failed", exc_info=fault)
            self._fault = self._fault or fault

    def _die(self, cause: BaseException) -> None:
        """End everything with an error: running requests, and those whose commands wait."""
        with self._lock:
            self._closed = True
        while not self._commands.empty():
            command = self._commands.get()
            if command is not None:
                command()
        error = RuntimeError(f"the engine's thread ended: {cause!r}")
        error.__cause__ = cause
        for seq_id in list(self._listeners):
            self._dispatch([Event(seq_id, (), "", finish_reason="error", error=error)])

    def _dispatch(self, events: list[Event]) -> None:
        for event in events:
            listener = self._listeners.get(event.seq_id)
            if listener is None:
                continue
            if event.finish_reason is not None:
                del self._listeners[event.seq_id]
            try:
                listener(event)
            except Exception:
                # Its asyncio loop is gone, say: nobody reads on, and the others must not suffer.
                logger.warning("a listener failed; its request is dropped", exc_info=True)
                kept = {i: other for i, other in self._listeners.items() if other is not listener}
                self._listeners = kept
                self._engine.cancel_id(event.seq_id)
