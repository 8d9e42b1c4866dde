"""A connection that has only so long, and so many bytes, to say what it wants."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEADER_TIMEOUT_S = 20.0
MAX_HEADER_BYTES = 64 * 2**10


class GuardedConnection(HttpToolsProtocol):
    """uvicorn's connection with limits for what comes before a body: without them a client that
    sends headers slowly, or without end, would hold a connection or memory for ever."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._deadline: asyncio.TimerHandle | None = None
        self._num_header_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._headers_are_here()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # Counted after the parser's own word on whether they are complete.
        if self._deadline is not None and not self.transport.is_closing():
            self._num_header_bytes += len(data)
            if self._num_header_bytes > MAX_HEADER_BYTES:
                self.send_400_response("The headers are too large.")

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
