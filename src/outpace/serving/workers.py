"""A few threads for what would block the event loop."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")
_Job = tuple[Callable[[], object], "Future[object]"]


class Workers:
    """Threads that run calls one after another, in the order they came.

    Unlike those of a ThreadPoolExecutor they do not keep the process alive: a call that hangs in a
    compiler of grammars must not keep the server from ending.
    """

    def __init__(self, name: str, num_threads: int) -> None:
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, name=f"outpace-{name}-{i}", daemon=True)
            for i in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()

    async def run(self, call: Callable[[], T], timeout_s: float | None = None) -> T:
        """The call's result, or what it raised.

        Raises TimeoutError when it took longer, its wait for a thread included. A call that has
        begun goes on in its thread; one that has not begun never does.
        """
        future: Future[T] = Future()
        self._jobs.put((call, future))  # type: ignore[arg-type]
        async with asyncio.timeout(timeout_s):
            return await asyncio.wrap_future(future)

    def close(self, timeout_s: float = 1.0) -> bool:
        """Tell the threads to end; False if one is still busy after `timeout_s`."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join(timeout_s)
        return not any(thread.is_alive() for thread in self._threads)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            call, future = job
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)
            # Kept, they would hold a request's texts until the next one comes.
            del job, call, future
