"""A request seen from its caller: events as they come, the output at the end."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator, Callable, Iterator

from outpace.engine.loop import EngineLoop
from outpace.engine.request import RequestGroup
from outpace.outputs import Event, RequestOutput


class _Subscription:
    """What both kinds of stream share: starting, ending and reading the output."""

    def __init__(self, loop: EngineLoop, group: RequestGroup) -> None:
        self._loop = loop
        self._group = group

    def _start(self, deliver: Callable[[Event | None], None]) -> None:
        """Run what is to be run. `deliver` gets every event, then None when all answers ended."""
        num_left = len(self._group.requests)

        def listener(event: Event) -> None:
            nonlocal num_left
            deliver(event)
            if event.finish_reason is not None:
                num_left -= 1
                if num_left == 0:
                    deliver(None)

        running = []
        for request in self._group.requests:
            reason = request.fold.finish_reason
            if reason is None:
                running.append(request)
            else:
                # Nothing to generate (max_tokens=0): the answer is complete already.
                seq = request.seq
                listener(Event(seq.seq_id, (), "", finish_reason=reason, index=seq.choice))
        if running:
            self._loop.submit(running, listener)

    @property
    def output(self) -> RequestOutput:
        """The output so far; complete once the stream has ended."""
        return self._group.output()

    def cancel(self) -> None:
        """End what has not ended, without waiting for it: last events with the finish reason
        "abort" will come."""
        self._loop.cancel(self._group.requests)


class Stream(_Subscription, Iterator[Event]):
    """Iterator over a request's events. The request runs whether or not it is read.

    Of several answers the events come as they happen, each with its answer's index; the stream
    ends when all answers have ended. `close()` (also at the end of a `with` block) cancels what has
    not ended, frees its place at once, and leaves what was generated in `output`.
    """

    def __init__(self, loop: EngineLoop, group: RequestGroup) -> None:
        super().__init__(loop, group)
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._start(self._events.put)

    def __next__(self) -> Event:
        event = self._take()
        if event is None:
            raise StopIteration
        if event.error is not None:
            raise event.error
        return event

    def drain(self) -> RequestOutput:
        """Wait for the end and return the output."""
        for _ in self:
            pass
        return self.output

    def close(self) -> None:
        self.cancel()
        while self._take() is not None:
            pass

    def _take(self) -> Event | None:
        event = self._events.get()
        if event is None:
            # Put back for whoever waits in another thread: `close` while this one iterates.
            self._events.put(None)
        return event

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncStream(_Subscription, AsyncIterator[Event]):
    """Asynchronous iterator over a request's events; see `Stream`.

    Cancelling the task that iterates cancels the request.
    """

    def __init__(self, loop: EngineLoop, group: RequestGroup) -> None:
        super().__init__(loop, group)
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()
        event_loop = asyncio.get_running_loop()

        def deliver(event: Event | None) -> None:
            try:
                event_loop.call_soon_threadsafe(self._events.put_nowait, event)
            except RuntimeError:
                if not event_loop.is_closed():
                    raise
                self.cancel()  # nobody is left to read, which is how an interruption may end

        self._start(deliver)

    async def __anext__(self) -> Event:
        try:
            event = await self._take()
        except asyncio.CancelledError:
            self.cancel()
            raise
        if event is None:
            raise StopAsyncIteration
        if event.error is not None:
            raise event.error
        return event

    async def aclose(self) -> None:
        """Cancel what has not ended, and wait until its place is free."""
        self.cancel()
        while await self._take() is not None:
            pass

    async def _take(self) -> Event | None:
        event = await self._events.get()
        if event is None:
            # Put back for whoever waits in another task: `aclose` while this one iterates.
            self._events.put_nowait(None)
        return event

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
