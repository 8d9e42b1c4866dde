"""Real servers on loopback with tiny random models; engines that are slow, held or broken."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest
from tiny import tiny_model

from outpace import LLM
from outpace.outputs import Event
from outpace.serving.app import create_app
from outpace.serving.run import Server, open_socket, url_of
from outpace.serving.service import Service
from outpace.serving.settings import ServerSettings

WAIT_S = 30.0


@dataclass
class RunningServer:
    """A server in a thread of this process, with its insides in reach.

    client: an httpx2 client whose base URL it is.
    """

    url: str
    llm: LLM
    service: Service
    server: Server
    thread: threading.Thread
    client: httpx2.Client

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def post(self, path: str, body: Any, **headers: str) -> httpx2.Response:
        """The response to a JSON body."""
        return self.client.post(path, json=body, headers=headers)

    def socket(self) -> socket.socket:
        """A connection of its own, to be written on by hand."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=WAIT_S)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Return when `condition` holds; fail after WAIT_S seconds."""
        pause = threading.Event()
        for _ in range(int(WAIT_S / 0.01)):
            if condition():
                return
            pause.wait(0.01)
        pytest.fail("what was waited for did not come")

    def wait_until_idle(self) -> None:
        """Return when no answer runs or waits and all cache rows are free."""

        def is_idle() -> bool:
            state = self.llm.state()
            return not (
                state.num_running or state.num_waiting or self.service.admission.num_unfinished
            )

        self.wait_until(is_idle)
        assert self.llm.state().num_cached_tokens == 0

    def stop(self) -> None:
        self.client.close()
        self.server.handle_exit(15, None)
        self.thread.join(WAIT_S)
        assert not self.thread.is_alive()


def tiny_llm(**options: Any) -> LLM:
    """A tiny random model in float64 with a vocabulary of 96; drafts with n-grams unless told
    otherwise. Its greedy answers hardly ever end by themselves."""
    values: dict[str, Any] = {
        "max_num_seqs": 4,
        "speculative_config": {"method": "ngram", "num_speculative_tokens": 3},
    }
    return LLM(options.pop("model", None) or tiny_model(), **(values | options))


@contextmanager
def serving(llm: LLM | None = None, **settings: Any) -> Iterator[RunningServer]:
    """A server for a tiny model, or for `llm`; `settings` are those of ServerSettings.

    The LLM is closed with the server, which checks that nothing is held for ended requests.
    """
    llm = tiny_llm() if llm is None else llm
    values = ServerSettings(**({"port": 0, "shutdown_grace_s": 0.2} | settings))
    sock = open_socket(values)
    app = create_app(llm, values)
    is_ready = threading.Event()
    server = Server(app, values, on_ready=is_ready.set)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, name="test-server")
    thread.start()
    assert is_ready.wait(WAIT_S)
    url = url_of(sock)
    client = httpx2.Client(base_url=url, timeout=WAIT_S)
    running = RunningServer(url, llm, app.state.service, server, thread, client)
    try:
        yield running
    finally:
        running.stop()
        llm.close()


def slow_llm(step_s: float = 0.005, **options: Any) -> LLM:
    """A tiny plain engine whose steps take at least so long: its answers can be left, killed and
    overtaken. They have up to 4,000 tokens."""
    llm = tiny_llm(model=tiny_model(max_len=4096), speculative_config={"method": "none"}, **options)
    step = llm._engine.step

    def slowly() -> list[Event]:
        time.sleep(step_s)
        return step()

    llm._engine.step = slowly  # type: ignore[method-assign]
    return llm


class HeldEngine:
    """A tiny plain engine that makes no step while it is held."""

    def __init__(self, **options: Any) -> None:
        self.llm = tiny_llm(speculative_config={"method": "none"}, **options)
        self._go_on = threading.Event()
        self._go_on.set()
        step = self.llm._engine.step

        def when_let() -> list[Event]:
            self._go_on.wait(WAIT_S)
            return step()

        self.llm._engine.step = when_let  # type: ignore[method-assign]

    def release(self) -> None:
        self._go_on.set()

    @contextmanager
    def held(self) -> Iterator[None]:
        self._go_on.clear()
        try:
            yield
        finally:
            self._go_on.set()


def break_next_step(llm: LLM, error: Exception) -> None:
    """The next step of the engine raises, once."""
    step = llm._engine.step

    def broken() -> list[Event]:
        llm._engine.step = step  # type: ignore[method-assign]
        raise error

    llm._engine.step = broken  # type: ignore[method-assign]
