"""Requests of every kind for a server under load, what becomes of them, and clients on bare sockets
that can leave at any moment."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
LETTERS = "etaoinshrdlu .,\né€😀"
TIMEOUT_S = 30.0
NUM_ENDLESS = 3500
"""Tokens of an answer that nobody waits for; the model must have room for them."""

MALFORMED: tuple[tuple[bytes, int], ...] = (
    (b"{", 400),
    (b"", 400),
    (b"[]", 400),
    (b'{"model": "tiny"}', 400),
    (b'{"model": "tiny", "prompt": "a", "messages": [], "stream": "yes"}', 400),
    (b'{"model": "tiny", "prompt": "\xff\xfe"}', 400),
    (b'{"model": "tiny", "prompt": [-1], "messages": [{"role": "user"}]}', 400),
    (b'{"model": "tiny", "prompt": "a", "messages": "a", "max_tokens": 1e999}', 400),
    (b'{"model": "tiny", "prompt": "a", "messages": [], "temprature": 0}', 400),
    (b"[" * 100_000, 400),
)
"""Bodies that neither endpoint takes, with the status that tells."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked, without how it is to be delivered."""

    path: str
    fields: dict[str, Any]

    def body(self, **more: Any) -> dict[str, Any]:
        return {"model": "tiny", **self.fields, **more}


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer, however it came. error: of a body or an event that is one."""

    status: int
    text: str = ""
    finish_reason: str | None = None
    num_tokens: int = 0
    error: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Task:
    """One request of a load. `leave_after`: of which part the client closes its connection: "half"
    of the request, the "whole" request, or so many events of the answer."""

    question: Question
    is_streamed: bool
    leave_after: str | int | None = None
    is_abrupt: bool = False
    malformed: tuple[bytes, int] | None = None


@dataclass(slots=True)
class Outcome:
    """What became of a load: the replies by task, as far as there was one."""

    replies: list[tuple[Task, Reply | None]] = field(default_factory=list)

    def count(self, *, is_cancelled: bool) -> int:
        return sum((reply is None) == is_cancelled for _, reply in self.replies)

    def faults(self, expected: Mapping[int, Reply]) -> list[str]:
        """What is wrong: replies that are not those expected for their question (by its id), and
        malformed requests that were not told apart."""
        found = []
        for task, reply in self.replies:
            if reply is None:
                continue
            if task.malformed is not None:
                is_told = reply.status == task.malformed[1] and reply.error is not None
                if not (is_told and reply.error and reply.error.get("message")):
                    found.append(f"{task.malformed[0][:60]!r}: {reply}")
            elif reply != expected[id(task.question)]:
                found.append(f"{task}: {reply} instead of {expected[id(task.question)]}")
        return found


def questions(count: int, seed: int) -> list[Question]:
    """Of mixed lengths, for both endpoints, with repetitions that drafts can be copied from; greedy
    ones, and seeded ones, whose answers have to be the same in any batch too."""
    rng = random.Random(seed)
    found = []
    for number in range(count):
        piece = "".join(rng.choices(LETTERS, k=rng.randint(2, 30)))
        text = (piece * rng.randint(1, 4))[:110]
        fields: dict[str, Any] = {"max_tokens": rng.choice((1, 2, 7, 20, 60)), "temperature": 0}
        if number % 5 == 4:
            fields |= {"temperature": 0.8, "seed": number}
        if number % 3 == 2:
            methods: Sequence[dict[str, Any]] = (
                {"method": "none"},
                {"num_speculative_tokens": 1},
            )
            fields["speculative_config"] = rng.choice(methods)
        if number % 2:
            messages = [{"role": "user", "content": text}]
            found.append(Question(CHAT, fields | {"messages": messages}))
        else:
            found.append(Question(COMPLETIONS, fields | {"prompt": text}))
    return found


def load(asked: Sequence[Question], seed: int) -> list[Task]:
    """200 requests in random order, half of them streamed: 10 malformed ones among them, and 40
    whose client leaves early. Nobody would wait for the end of those: one that is not cancelled
    holds its place for minutes."""
    rng = random.Random(seed)
    tasks = []
    for number in range(200):
        question, is_streamed = rng.choice(asked), bool(number % 2)
        if number < 10:
            task = Task(question, is_streamed, malformed=MALFORMED[number])
        elif number < 50:
            endless = {"max_tokens": NUM_ENDLESS, "ignore_eos": True}
            question = Question(question.path, question.fields | endless)
            leave_after = rng.randint(1, 30) if is_streamed else rng.choice(("half", "whole"))
            task = Task(question, is_streamed, leave_after, is_abrupt=bool(number % 4 // 2))
        else:
            task = Task(question, is_streamed)
        tasks.append(task)
    rng.shuffle(tasks)
    return tasks


async def run_load(port: int, tasks: Sequence[Task], num_clients: int) -> Outcome:
    """So many clients work through the tasks, one after another each."""
    outcome, waiting = Outcome(), iter(tasks)

    async def client() -> None:
        for task in waiting:
            async with asyncio.timeout(TIMEOUT_S):
                outcome.replies.append((task, await perform(port, task)))

    async with asyncio.TaskGroup() as group:
        for _ in range(num_clients):
            group.create_task(client())
    return outcome


async def perform(port: int, task: Task) -> Reply | None:
    """The reply to a request; None if the client left before it was whole."""
    if task.malformed is not None:
        data = task.malformed[0]
    else:
        more: dict[str, Any] = {}
        if task.is_streamed:
            more = {"stream": True, "stream_options": {"include_usage": True}}
        data = json.dumps(task.question.body(**more)).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        request = _head(port, task.question.path, len(data)) + data
        writer.write(request[: -len(data) // 2] if task.leave_after == "half" else request)
        await writer.drain()
        if task.leave_after is None:
            return reply_of(await reader.read())
        if isinstance(task.leave_after, int):
            await _read_events(reader, task.leave_after)
        return None
    finally:
        if task.is_abrupt:
            writer.transport.abort()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


def _head(port: int, path: str, length: int) -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {length}\r\nConnection: close\r\n\r\n"
    ).encode()


async def _read_events(reader: asyncio.StreamReader, count: int) -> None:
    for _ in range(count):
        event = await reader.readuntil(b"\n\n")
        assert b"data: " in event
        assert b"[DONE]" not in event


def reply_of(response: bytes) -> Reply:
    """Of everything that came over a connection until the server closed it."""
    head, _, body = response.partition(b"\r\n\r\n")
    status = int(head.split()[1])
    if b"transfer-encoding: chunked" in head.lower():
        body = b"".join(_chunks(body))
    if not body.startswith(b"data: "):
        whole = json.loads(body)
        return Reply(status, error=whole["error"]) if "error" in whole else _reply(status, [whole])
    *events, end, nothing = body.split(b"\n\n")
    assert (end, nothing) == (b"data: [DONE]", b"")
    return _reply(status, [json.loads(event.removeprefix(b"data: ")) for event in events])


def _chunks(body: bytes) -> Iterator[bytes]:
    while body:
        size, _, body = body.partition(b"\r\n")
        yield body[: int(size, 16)]
        body = body[int(size, 16) + 2 :]


def _reply(status: int, parts: Sequence[Mapping[str, Any]]) -> Reply:
    """The parts of an answer put together; an answer that came whole is one part."""
    texts, reason = [], None
    for choice in (choice for part in parts for choice in part["choices"]):
        message = choice.get("message") or choice.get("delta")
        texts.append(choice["text"] if message is None else message.get("content") or "")
        reason = choice["finish_reason"] or reason
    (usage,) = [part["usage"] for part in parts if part.get("usage")]
    return Reply(status, "".join(texts), reason, usage["completion_tokens"])


async def ask_alone(port: int, asked: Sequence[Question]) -> dict[int, Reply]:
    """The plain answers by id of the question, one at a time, nothing being cached."""
    replies = {}
    for number, question in enumerate(asked):
        alone = {"cache_salt": f"alone {number}", "speculative_config": {"method": "none"}}
        plain = Question(question.path, question.fields | alone)
        reply = await perform(port, Task(plain, is_streamed=False))
        assert reply is not None
        replies[id(question)] = reply
    return replies
