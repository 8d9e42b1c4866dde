"""Clients that cost little, because they share the processor with the server they measure.

All of them are in one thread, and read HTTP and its events by hand: a general client would spend
several times as long on every piece of an answer.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Any

from harness.serve.results import Answer
from outpace.measure.prompts import BenchPrompt

PATH = "/v1/completions"
_DONE = b"[DONE]"


class RequestFailedError(RuntimeError):
    """A request that was not answered: a figure from such a run would mean nothing."""


@dataclass(frozen=True, slots=True)
class Job:
    """A prompt, and the request for its answer."""

    prompt: BenchPrompt
    body: Mapping[str, Any]


class Connection:
    """A connection that is kept from request to request. Use as an asynchronous context manager."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port

    async def __aenter__(self) -> Connection:
        self._reader, self._writer = await asyncio.open_connection(self._host, self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()

    async def ask(self, job: Job) -> Answer:
        """The answer to one streamed request, timed. Raises RequestFailedError for others."""
        texts, usage, ttft_s = [], None, None
        started = time.perf_counter()
        try:
            await self._send(job.body)
            async for data in self._events():
                elapsed = time.perf_counter() - started
                event = json.loads(data)
                if "error" in event:
                    raise RequestFailedError(
                        f"the server broke off: {event['error'].get('message')}"
                    )
                usage = event.get("usage") or usage
                for choice in event["choices"]:
                    ttft_s = ttft_s or elapsed
                    texts.append(choice["text"])
        except (OSError, EOFError, ValueError, KeyError) as error:
            raise RequestFailedError(
                f"an answer broke off: {type(error).__name__}: {error}"
            ) from error
        total_s = time.perf_counter() - started
        if usage is None or ttft_s is None:
            raise RequestFailedError("an answer came without text or usage")
        return _answer(job.prompt, "".join(texts), usage, ttft_s, total_s)

    async def _send(self, body: Mapping[str, Any]) -> None:
        data = json.dumps(body).encode()
        head = (
            f"POST {PATH} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        self._writer.write(head.encode() + data)
        await self._writer.drain()

    async def _events(self) -> AsyncIterator[bytes]:
        """The data of each event of the response, up to [DONE]."""
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        if not head.startswith(b"http/1.1 200 ") or b"transfer-encoding: chunked" not in head:
            said = await self._body(head)
            raise RequestFailedError(f"the server refused: {said}")
        left, is_done = b"", False
        async for part in self._chunks():
            *events, left = (left + part).split(b"\n\n")
            for event in events:
                data = event.removeprefix(b"data: ")
                is_done = is_done or data == _DONE
                if not is_done:
                    yield data
        if not is_done:
            raise RequestFailedError("an answer ended without [DONE]")

    async def _chunks(self) -> AsyncIterator[bytes]:
        """The parts of a body of unknown length, to its very end."""
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            yield (await self._reader.readexactly(size + 2))[:-2]
        await self._reader.readexactly(2)

    async def _body(self, head: bytes) -> str:
        """The status of a response that is no answer, and what is said in it."""
        lines = head.decode("latin-1").split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:] if ": " in line)
        said = await self._reader.readexactly(int(headers.get("content-length", "0")))
        return f"{lines[0]} {said.decode('utf-8', 'replace'):.500}"


def _answer(
    prompt: BenchPrompt, text: str, usage: Mapping[str, Any], ttft_s: float, total_s: float
) -> Answer:
    return Answer(
        label=prompt.label,
        category=prompt.category,
        text=text,
        num_prompt=usage["prompt_tokens"],
        num_cached=usage["prompt_tokens_details"]["cached_tokens"],
        num_tokens=usage["completion_tokens"],
        num_passes=usage["speculation"]["num_target_passes"],
        ttft_s=ttft_s,
        total_s=total_s,
    )


async def ask_all(
    address: tuple[str, int], jobs: Sequence[Job], num_clients: int
) -> tuple[list[Answer], float, float]:
    """The answers in the order of the jobs, seconds until all had come, and the seconds of
    processor time that it took here.

    Each client asks for the next answer as soon as it has one (a closed loop), on a connection that
    was open before the clock started. Raises RequestFailedError as soon as one fails.
    """
    answers: dict[int, Answer] = {}
    waiting = iter(enumerate(jobs))

    async def ask_one_by_one(connection: Connection) -> None:
        for place, job in waiting:
            answers[place] = await connection.ask(job)

    async with AsyncExitStack() as stack:
        connections = [
            await stack.enter_async_context(Connection(*address)) for _ in range(num_clients)
        ]
        started, started_cpu = time.perf_counter(), time.process_time()
        try:
            async with asyncio.TaskGroup() as group:
                for connection in connections:
                    group.create_task(ask_one_by_one(connection))
        except* RequestFailedError as failed:
            raise failed.exceptions[0] from None
        total_s, client_s = time.perf_counter() - started, time.process_time() - started_cpu
    return [answers[place] for place in range(len(jobs))], total_s, client_s
