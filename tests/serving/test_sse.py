"""Event streams: how they start, how they end, and that nobody works for a reader who has gone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from outpace.serving.errors import ApiError, ClientDisconnected
from outpace.serving.sse import DONE, EventStreamResponse, encode_event, until_disconnect

Chunks = AsyncGenerator[dict[str, Any], None]


class Client:
    """The other side of one response. `leave` makes it go away; `stall` makes it stop reading."""

    def __init__(self) -> None:
        self.leave = asyncio.Event()
        self.stall = False
        self.status = 0
        self.data = b""
        self.is_complete = False

    async def receive(self) -> dict[str, Any]:
        await self.leave.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = dict(message["headers"])
            return
        if self.stall:
            await asyncio.Event().wait()
        self.data += message["body"]
        self.is_complete = not message["more_body"]

    async def read(self, chunks: Chunks, send_timeout_s: float = 30) -> None:
        response = EventStreamResponse(chunks, send_timeout_s=send_timeout_s)
        await response({"type": "http"}, self.receive, self.send)  # type: ignore[arg-type]


async def numbers(count: int, then: BaseException | None = None) -> Chunks:
    for i in range(count):
        yield {"number": i}
    if then is not None:
        raise then


async def test_a_whole_stream() -> None:
    client = Client()
    await client.read(numbers(2))
    assert client.data == b'data: {"number":0}\n\ndata: {"number":1}\n\ndata: [DONE]\n\n'
    assert (client.status, client.is_complete) == (200, True)
    assert client.headers[b"content-type"].startswith(b"text/event-stream")
    assert client.headers[b"cache-control"] == b"no-store"
    assert b"content-length" not in client.headers


async def test_an_empty_stream() -> None:
    client = Client()
    await client.read(numbers(0))
    assert (client.status, client.data, client.is_complete) == (200, DONE, True)


@pytest.mark.parametrize("text", ["line\nbreak\r\u2028", "ä€😀", '"quoted"', "data: x\n\n"])
def test_texts_stay_within_their_event(text: str) -> None:
    event = encode_event({"text": text})
    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    assert event.count(b"\n") == 2
    assert b"\r" not in event
    assert json.loads(event[6:]) == {"text": text}


async def test_an_error_before_the_first_chunk_is_a_status() -> None:
    client = Client()
    with pytest.raises(ApiError):
        await client.read(numbers(0, ApiError(429, "full")))
    assert (client.status, client.data) == (0, b"")


@pytest.mark.parametrize(
    ("error", "message"),
    [(ApiError(503, "ending", code="shutting_down"), "ending"), (ValueError("secret"), "fault")],
)
async def test_a_later_error_is_the_last_event(error: Exception, message: str) -> None:
    client = Client()
    await client.read(numbers(1, error))
    first, last, rest = client.data.split(b"\n\n")
    assert first == b'data: {"number":0}'
    assert message in json.loads(last[6:])["error"]["message"]
    assert rest == b""
    assert b"secret" not in client.data
    assert client.is_complete


async def test_a_client_that_leaves_closes_the_generator_wherever_it_waits() -> None:
    closed = asyncio.Event()

    async def endless() -> Chunks:
        try:
            yield {"number": 0}
            await asyncio.Event().wait()
        finally:
            closed.set()

    client = Client()
    reading = asyncio.create_task(client.read(endless()))
    while not client.data:
        await asyncio.sleep(0)
    client.leave.set()
    await asyncio.wait_for(reading, 10)
    assert closed.is_set()
    assert not client.is_complete


async def test_a_client_that_does_not_read_is_left() -> None:
    client = Client()
    client.stall = True
    await asyncio.wait_for(client.read(numbers(3), send_timeout_s=0.05), 10)
    assert not client.is_complete


async def test_work_ends_with_its_client() -> None:
    ended = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)  # cleaning up may wait
            ended.set()

    client = Client()
    waiting = asyncio.create_task(until_disconnect(client.receive, work()))  # type: ignore[arg-type]
    await asyncio.sleep(0.01)
    client.leave.set()
    with pytest.raises(ClientDisconnected):
        await waiting
    assert ended.is_set()


async def test_work_that_ends_first() -> None:
    async def work() -> int:
        return 5

    assert await until_disconnect(Client().receive, work()) == 5  # type: ignore[arg-type]
