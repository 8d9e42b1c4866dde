"""From an LLM to a listening server, and its orderly end."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from outpace.engine.llm import LLM
from outpace.errors import OptionError
from outpace.serving.app import create_app
from outpace.serving.connection import connection_class
from outpace.serving.service import Service
from outpace.serving.settings import ServerSettings

_CLOSING_S = 5
"""Seconds in which connections are to close once their answers have ended."""
_ABORT_S = 0.5


def open_socket(settings: ServerSettings) -> socket.socket:
    """A socket bound to the host and port of `settings`, which does not listen yet.

    Raises OptionError for a host that is none of this machine's and a port that is taken.
    """
    host, port = settings.host, settings.port
    try:
        found = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV
        )
    except (OSError, UnicodeError) as error:
        raise OptionError(f"host {host!r} is not known: {error}") from error
    family, kind, protocol, _, address = found[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise _cannot_listen(settings, error) from error
    return sock


def run_server(
    llm: LLM,
    settings: ServerSettings,
    sock: socket.socket,
    on_ready: Callable[[str], None] = lambda url: None,
) -> bool:
    """Serve until SIGTERM or SIGINT, then end gracefully; a second signal ends at once.

    sock: from `open_socket`; closed in the end. on_ready: called with the server's URL when it
    answers. The LLM stays the caller's to close. Raises OptionError if the port was taken
    meanwhile.

    False if a thread is busy that nothing can end; see `end_process`.
    """
    try:
        sock.listen(2048)
    except OSError as error:
        sock.close()
        raise _cannot_listen(settings, error) from error
    server = Server(create_app(llm, settings), settings, on_ready=lambda: on_ready(url_of(sock)))
    server.run(sockets=[sock])
    return server.has_ended


def url_of(sock: socket.socket) -> str:
    """The URL of a server that listens here; that of this machine where it listens everywhere."""
    host, port = sock.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Server(uvicorn.Server):
    """uvicorn's server, but for its end: new connections are refused at once, requests on old
    ones get 503, and running answers have `shutdown_grace_s` seconds to end.

    app: from `create_app`. on_ready: called when connections are accepted.
    """

    def __init__(
        self, app: FastAPI, settings: ServerSettings, *, on_ready: Callable[[], None] = lambda: None
    ) -> None:
        config = uvicorn.Config(
            app,
            http=connection_class(settings.send_timeout_s),
            ws="none",
            loop="asyncio",
            lifespan="off",
            log_level="error",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=settings.keep_alive_s,  # type: ignore[arg-type]
            timeout_graceful_shutdown=_CLOSING_S,
        )
        super().__init__(config)
        self._service: Service = app.state.service
        self._grace_s = settings.shutdown_grace_s
        self._on_ready = on_ready
        self._is_forced = asyncio.Event()
        self.has_ended = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal to stop. uvicorn would raise it again in the end, which is no clean exit."""
        if self.should_exit:
            self.force_exit = True
            self._is_forced.set()
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for listener in self.servers:
            listener.close()
        await self._service.drain(self._grace_s, is_forced=self._is_forced)
        if self.force_exit:
            await self._abort()
        else:
            await super().shutdown(sockets)
        self.has_ended = self._service.close()

    async def _abort(self) -> None:
        """Leave no time but what it takes to write that the answers have ended."""
        tasks = list(self.server_state.tasks)
        if tasks:
            await asyncio.wait(tasks, timeout=_ABORT_S)
        for connection in list(self.server_state.connections):
            connection.transport.close()


def end_process(status: int = 0) -> None:
    """End the process though a thread is busy and will not listen."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)


def _cannot_listen(settings: ServerSettings, error: OSError) -> OptionError:
    reason = error.strerror or str(error)
    return OptionError(
        f"cannot listen at host {settings.host!r}, port {settings.port}: {reason}; choose another "
        "with --host and --port (0 takes a free port)"
    )
