"""Server-sent events, and answers that end when nobody is there to read them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing, suppress
from typing import Any, TypeVar

from fastapi import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from outpace.serving.errors import ApiError, ClientDisconnected, log_fault, server_error

T = TypeVar("T")

DONE = b"data: [DONE]\n\n"


def encode_event(data: dict[str, Any]) -> bytes:
    """One event whose data is a JSON object."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return b"data: " + text.encode("utf-8") + b"\n\n"


class EventStreamResponse(Response):
    """The objects that `chunks` yields as events, then [DONE].

    The response starts with the first of them: what `chunks` raises before it is an ordinary
    response with that error's status; later it is an event `{"error": ...}`, the last one, without
    [DONE]. A client that leaves, or leaves its events unread for `send_timeout_s` seconds, closes
    `chunks`, wherever it waits.
    """

    media_type = "text/event-stream"

    def __init__(
        self, chunks: AsyncGenerator[dict[str, Any], None], *, send_timeout_s: float
    ) -> None:
        super().__init__(status_code=200, headers={"Cache-Control": "no-store"})
        # Set for a body that is known; this one is not.
        del self.headers["content-length"]
        self._chunks = chunks
        self._send_timeout_s = send_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(ClientDisconnected):
            await until_disconnect(receive, self._stream(send))

    async def _stream(self, send: Send) -> None:
        is_started = False
        async with aclosing(self._chunks) as chunks:
            try:
                async for chunk in chunks:
                    if not is_started:
                        await self._start(send)
                        is_started = True
                    await self._send(send, encode_event(chunk))
            except ApiError as error:
                if not is_started:
                    raise
                await self._send(send, encode_event(error.body()), is_last=True)
                return
            except Exception as error:
                if not is_started or isinstance(error, ClientDisconnected):
                    raise
                log_fault(error)
                await self._send(send, encode_event(server_error().body()), is_last=True)
                return
        if not is_started:
            await self._start(send)
        await self._send(send, DONE, is_last=True)

    async def _start(self, send: Send) -> None:
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )

    async def _send(self, send: Send, body: bytes, *, is_last: bool = False) -> None:
        try:
            async with asyncio.timeout(self._send_timeout_s):
                await send({"type": "http.response.body", "body": body, "more_body": not is_last})
        except TimeoutError as error:
            raise ClientDisconnected from error


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the request's client leaves.

    The body must have been read before. Raises ClientDisconnected then, and what `work` raises.
    """
    return await until_disconnect(request.receive, work)


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, or ClientDisconnected if `receive` tells of that first; `work` has
    ended then, its own cleaning up included."""
    task = asyncio.create_task(work)
    watch = asyncio.create_task(_disconnect(receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnected
        return task.result()
    finally:
        watch.cancel()
        await _cancelled(task)


async def _cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
