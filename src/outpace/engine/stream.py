"""A request seen from its caller: events as they come, the output at the end."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator, Iterator

from outpace.engine.loop import EngineLoop, Listener
from outpace.engine.request import Request
from outpace.types import Event, RequestOutput


class _Subscription:
    """What both kinds of stream share: starting, ending and reading the output."""

    def __init__(self, loop: EngineLoop, request: Request) -> None:
        self._loop = loop
        self._request = request
        self._ended = False

    def _start(self, listener: Listener) -> None:
        reason = self._request.fold.finish_reason
        if reason is None:
            self._loop.submit(self._request, listener)
        else:
            # Nothing to generate (max_tokens=0): the answer is complete already.
            listener(Event(self._request.seq.seq_id, (), "", finish_reason=reason))

    def _checked(self, event: Event) -> Event:
        self._ended = event.finish_reason is not None
        if event.error is not None:
            raise event.error
        return event

    @property
    def output(self) -> RequestOutput:
        """The output so far; complete once the stream has ended."""
        return self._request.output()

    def _cancel(self) -> None:
        if not self._ended:
            self._loop.cancel(self._request)


class Stream(_Subscription, Iterator[Event]):
    """Iterator over a request's events. The request runs whether or not it is read.

    `close()` (also at the end of a `with` block) cancels it if it has not ended, frees its place
    at once, and leaves what was generated in `output`.
    """

    def __init__(self, loop: EngineLoop, request: Request) -> None:
        super().__init__(loop, request)
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._start(self._events.put)

    def __next__(self) -> Event:
        if self._ended:
            raise StopIteration
        event = self._events.get()
        if event.finish_reason is not None:
            # Put back for whoever waits in another thread: `close` while this one iterates.
            self._events.put(event)
            if self._ended:
                raise StopIteration
        return self._checked(event)

    def drain(self) -> RequestOutput:
        """Wait for the end and return the output."""
        for _ in self:
            pass
        return self.output

    def close(self) -> None:
        self._cancel()
        while not self._ended:
            event = self._events.get()
            if event.finish_reason is not None:
                self._ended = True
                self._events.put(event)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncStream(_Subscription, AsyncIterator[Event]):
    """Asynchronous iterator over a request's events; see `Stream`.

    Cancelling the task that iterates cancels the request.
    """

    def __init__(self, loop: EngineLoop, request: Request) -> None:
        super().__init__(loop, request)
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        event_loop = asyncio.get_running_loop()

        def listener(event: Event) -> None:
            event_loop.call_soon_threadsafe(self._events.put_nowait, event)

        self._start(listener)

    async def __anext__(self) -> Event:
        if self._ended:
            raise StopAsyncIteration
        try:
            event = await self._events.get()
        except asyncio.CancelledError:
            self._cancel()
            raise
        if event.finish_reason is not None:
            # Put back for whoever waits in another task: `aclose` while this one iterates.
            self._events.put_nowait(event)
            if self._ended:
                raise StopAsyncIteration
        return self._checked(event)

    async def aclose(self) -> None:
        """Cancel the request if it has not ended, and wait until its place is free."""
        self._cancel()
        while not self._ended:
            event = await self._events.get()
            if event.finish_reason is not None:
                self._ended = True
                self._events.put_nowait(event)

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
