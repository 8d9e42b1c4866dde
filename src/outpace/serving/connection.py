"""A connection that has only so long, and so many bytes, to say what it wants."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEADER_TIMEOUT_S = 20.0
MAX_HEADER_BYTES = 64 * 2**10


class GuardedConnection(HttpToolsProtocol):
    """uvicorn's connection with limits for what comes before a body, and for what is left unread:
    without them a client that sends headers slowly, or without end, or never reads its answer,
    would hold a connection or memory for ever.

    send_timeout_s: seconds in which a client must read something of what waits for it.
    """

    send_timeout_s = 60.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._deadline: asyncio.TimerHandle | None = None
        self._num_header_bytes = 0
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # Told of whatever waits to be read, however little: also a close waits for that.
        transport.set_write_buffer_limits(high=0)
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._headers_are_here()
        self._all_is_read()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # Counted after the parser's own word on whether they are complete.
        if self._deadline is not None and not self.transport.is_closing():
            self._num_header_bytes += len(data)
            if self._num_header_bytes > MAX_HEADER_BYTES:
                self.send_400_response("The headers are too large.")

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_reading()

    def resume_writing(self) -> None:
        self._all_is_read()
        super().resume_writing()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._expect_headers()

    def on_headers_complete(self) -> None:
        self._headers_are_here()
        super().on_headers_complete()

    def _expect_headers(self) -> None:
        if self._deadline is None:
            self._num_header_bytes = 0
            self._deadline = self.loop.call_later(HEADER_TIMEOUT_S, self._give_up)

    def _headers_are_here(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        self.transport.close()

    def _expect_reading(self) -> None:
        waiting = self.transport.get_write_buffer_size()
        self._unread = self.loop.call_later(self.send_timeout_s, self._check_reading, waiting)

    def _check_reading(self, waited: int) -> None:
        """Go on waiting while anything is read. What is unread is lost then: to close would be to
        wait for it."""
        if self.transport.get_write_buffer_size() < waited:
            self._expect_reading()
        else:
            self._unread = None
            self.transport.abort()

    def _all_is_read(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None


def connection_class(send_timeout_s: float) -> type[GuardedConnection]:
    """The kind of connection whose clients have so long to read."""
    return type("Connection", (GuardedConnection,), {"send_timeout_s": send_timeout_s})
