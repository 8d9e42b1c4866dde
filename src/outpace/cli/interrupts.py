"""Ctrl-C as something to look at between steps, and SIGTERM as Ctrl-C."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def terminate_as_interrupt() -> Iterator[None]:
    """SIGTERM ends what runs as Ctrl-C does, so that what there is by then is shown."""

    def on_terminate(signum: int, frame: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield  # handlers can only be set in the main thread
        return
    previous = signal.signal(signal.SIGTERM, on_terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


@contextmanager
def interrupt_flag() -> Iterator[threading.Event]:
    """Ctrl-C sets the flag, so that no step is cut in the middle; a second one interrupts."""
    flag = threading.Event()

    def on_interrupt(signum: int, frame: object) -> None:
        if flag.is_set():
            raise KeyboardInterrupt
        flag.set()

    if threading.current_thread() is not threading.main_thread():
        yield flag  # handlers can only be set in the main thread
        return
    previous = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield flag
    finally:
        signal.signal(signal.SIGINT, previous)
