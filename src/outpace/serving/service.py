"""What the endpoints share: requests checked off the event loop, admitted, run and let go."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from fastapi import Request

from outpace.engine.llm import LLM
from outpace.engine.request import RequestGroup
from outpace.engine.stream import AsyncStream
from outpace.errors import OutpaceError
from outpace.outputs import Event, RequestOutput
from outpace.params import SamplingParams
from outpace.serving.admission import Admission, shutting_down
from outpace.serving.errors import ApiError, from_outpace_error, log_fault, server_error
from outpace.serving.metrics import ServerMetrics
from outpace.serving.settings import ServerSettings
from outpace.serving.workers import Workers

Prompt = str | Mapping[str, Any]


class RunningStream(AsyncIterator[Event]):
    """The events of one prompt's answers, in the order they happen; see `AsyncStream`.

    Raises ApiError: 500 for an engine that failed, 503 at the end of the server, 400 for what only
    turned out to be impossible when it was tried.
    """

    def __init__(self, stream: AsyncStream, group: RequestGroup) -> None:
        self._stream = stream
        self._failure: ApiError | None = None
        self.group = group

    @property
    def output(self) -> RequestOutput:
        """The output so far; complete once the stream has ended."""
        return self._stream.output

    async def __anext__(self) -> Event:
        try:
            event = await anext(self._stream)
        except StopAsyncIteration:
            raise
        except OutpaceError as error:
            raise from_outpace_error(error) from error
        except Exception as error:
            log_fault(error)
            raise server_error(
                f"the engine failed ({type(error).__name__}); the request may be sent again"
            ) from error
        if self._failure is not None and event.finish_reason == "abort":
            raise self._failure
        return event

    def fail(self, failure: ApiError) -> None:
        """End the answers that have not ended; their reader gets `failure`."""
        self._failure = failure
        self.cancel()

    def cancel(self) -> None:
        """End the answers that have not ended."""
        self._stream.cancel()

    async def aclose(self) -> None:
        """End the answers that have not ended, and wait until their places are free."""
        await self._stream.aclose()


class Service:
    """An LLM behind limits. All methods belong to the event loop's thread."""

    def __init__(self, llm: LLM, settings: ServerSettings) -> None:
        llm.get_default_sampling_params()  # a model whose own are not possible serves nobody
        self.llm = llm
        self.settings = settings
        self.admission = Admission(llm.state().num_rows, settings.max_queue)
        self.metrics = ServerMetrics(self)
        self.is_draining = False
        self.bodies: set[asyncio.Timeout] = set()  # time limits of those that are being read
        self._running: set[RunningStream] = set()
        # Apart, so that grammars which take long delay only other grammars.
        num_threads = max(2, min(4, (os.cpu_count() or 2) // 2))
        self._workers = Workers("prepare", num_threads)
        self._compilers = Workers("compile", 2)

    @property
    def model_names(self) -> tuple[str, ...]:
        """What requests may call the model."""
        return self.settings.served_model_names or (self.llm.model_name,)

    async def prepare(
        self,
        prompt: Prompt,
        params: SamplingParams,
        speculative: bool | Mapping[str, Any] = True,
        *,
        api_key: str | None = None,
    ) -> RequestGroup:
        """Check and tokenise one prompt in a thread, without starting it.

        prompt: as `LLM.prepare` takes it; a mapping may hold a `cache_salt`. api_key: what
        `api_key_of` says of the request: those of different keys share no cache and no drafter's
        store. Raises ApiError: 400 for what cannot be honoured, 429 or 503 where `running` would.
        """
        self.admission.check()
        salted = self._salted(prompt, api_key)
        is_grammar = params.structured_outputs is not None
        workers = self._compilers if is_grammar else self._workers
        timeout_s = self.settings.grammar_timeout_s if is_grammar else None
        try:
            return await workers.run(
                lambda: self.llm.prepare(salted, params, speculative=speculative), timeout_s
            )
        except OutpaceError as error:
            raise from_outpace_error(error) from error
        except TimeoutError as error:
            self.admission.rejected["grammar_timeout"] += 1
            raise ApiError(
                400,
                f"the grammar was not compiled within {self.settings.grammar_timeout_s:g} s; "
                "make it smaller",
                code="grammar_timeout",
            ) from error

    @asynccontextmanager
    async def running(self, groups: Sequence[RequestGroup]) -> AsyncIterator[list[RunningStream]]:
        """Admit and start what `prepare` returned: one stream for each, in order.

        Whichever way the block is left, what has not ended is cancelled and its place is free.
        Raises ApiError: 429 with Retry-After when the queue is full, 503 at the server's end.
        """
        streams: list[RunningStream] = []
        with self.admission.admitted(list(groups)):
            try:
                for group in groups:
                    streams.append(RunningStream(self._submit(group), group))
                self._running.update(streams)
                yield streams
            finally:
                self._running.difference_update(streams)
                # All are told to end before the first is waited for: a cancelled task may be
                # cancelled again at any wait.
                for stream in streams:
                    stream.cancel()
                for stream in streams:
                    await stream.aclose()
                    self.metrics.record(stream.group)

    def _submit(self, group: RequestGroup) -> AsyncStream:
        try:
            return self.llm.submit(group)
        except OutpaceError as error:
            raise ApiError(503, "the engine has ended; the server must be restarted") from error

    def _salted(self, prompt: Prompt, api_key: str | None) -> Prompt:
        """The prompt with a salt of the caller's own where several keys share the server."""
        if api_key is None or len(self.settings.api_keys) < 2:
            return prompt
        fields = {"prompt": prompt} if isinstance(prompt, str) else dict(prompt)
        own = fields.get("cache_salt", "")
        if not isinstance(own, str):
            raise ApiError(400, "cache_salt must be a text", param="cache_salt")
        return fields | {"cache_salt": f"{api_key}:{own}"}

    async def drain(self, grace_s: float, *, is_forced: asyncio.Event) -> None:
        """Admit nothing more and let running answers end; after `grace_s` seconds, or at once when
        `is_forced` is set, end them with an error."""
        self.is_draining = True
        self.admission.close()
        for limit in self.bodies:
            with suppress(RuntimeError):  # one that has just expired
                limit.reschedule(asyncio.get_running_loop().time())
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                while self._running and not is_forced.is_set():
                    await asyncio.sleep(0.02)
        for stream in list(self._running):
            stream.fail(shutting_down())

    def close(self) -> bool:
        """End the threads; False if one is still busy."""
        workers_ended = [self._workers.close(), self._compilers.close()]
        return all(workers_ended)


def service_of(request: Request) -> Service:
    """The service of the app that a request came to."""
    service: Service = request.app.state.service
    return service


def api_key_of(request: Request) -> str | None:
    """What tells a request's API key from others without being it; None where none is needed."""
    found: str | None = request.scope.get("state", {}).get("api_key")
    return found


async def merged(streams: Sequence[RunningStream]) -> AsyncIterator[tuple[int, Event]]:
    """The events of several streams as they happen, each with its stream's position."""
    if len(streams) == 1:
        async for event in streams[0]:
            yield 0, event
        return
    events: asyncio.Queue[tuple[int, Event | None]] = asyncio.Queue()

    async def forward(position: int) -> None:
        async for event in streams[position]:
            events.put_nowait((position, event))

    tasks = [asyncio.create_task(forward(i)) for i in range(len(streams))]
    for task in tasks:
        task.add_done_callback(lambda _: events.put_nowait((-1, None)))
    try:
        num_left = len(streams)
        while num_left:
            position, newest = await events.get()
            if newest is not None:
                yield position, newest
                continue
            num_left -= 1
            for task in tasks:
                if task.done():
                    task.result()  # raises what ended it
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
