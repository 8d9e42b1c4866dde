"""What stands before every endpoint: who may ask, under which name, and how much at once."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import re
from collections.abc import Mapping
from typing import Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outpace.serving.admission import RETRY_AFTER_S, shutting_down
from outpace.serving.errors import ApiError, log_fault, server_error
from outpace.serving.settings import ServerSettings

OPEN_PATHS = frozenset({"/health", "/ready"})
"""Answered without a key: they hold nothing of anybody's."""
WHILE_DRAINING = frozenset({"/health", "/ready", "/metrics"})
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
# What a client that was refused may still send before its connection is closed: closed at once,
# it might never see the answer.
_DISCARD_FACTOR = 4
_DISCARD_S = 2.0
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


class _Draining(Protocol):
    is_draining: bool
    bodies: set[asyncio.Timeout]


class Guard:
    """ASGI middleware. Refuses, in this order: another host's name, a missing or wrong API key,
    websockets, anything new while the server ends, too many requests at once, bodies that are not
    JSON, too large, or too slow. The app behind it gets the body whole.

    Other sites' scripts get nothing: no CORS header is ever sent, and what needs none (a form, a
    request without CORS) has no JSON content type.

    open_paths: what is answered without an API key.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        settings: ServerSettings,
        service: _Draining,
        open_paths: frozenset[str] = OPEN_PATHS,
    ) -> None:
        self._app = app
        self._open_paths = open_paths
        self._settings = settings
        self._service = service
        self._digests = [_digest(key.encode("ascii")) for key in settings.api_keys]
        self._num_requests = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        response = _Response(send)
        self._num_requests += 1
        try:
            await self._guarded(scope, receive, response)
        except ApiError as error:
            await error.response()(scope, receive, response.send)
        except Exception as error:
            # Caught here, where nothing logs the error's text.
            log_fault(error)
            if not response.is_started:
                await server_error().response()(scope, receive, response.send)
        finally:
            self._num_requests -= 1

    async def _guarded(self, scope: Scope, receive: Receive, response: _Response) -> None:
        headers = _by_name(scope)
        path = scope["path"]
        _check_host(headers, self._settings)
        if path not in self._open_paths:
            self._check_key(headers, scope)
        if b"websocket" in headers.get(b"upgrade", b"").lower():
            raise ApiError(400, "this server has no websockets; streams are server-sent events")
        if self._service.is_draining and path not in WHILE_DRAINING:
            raise shutting_down()
        if self._num_requests > self._settings.max_connections:
            raise ApiError(
                503,
                f"{self._settings.max_connections} requests are under way already; try again later",
                code="too_many_connections",
                headers={"Retry-After": str(RETRY_AFTER_S)},
            )
        try:
            body = await self._body(scope, headers, receive)
        except _TooLarge:
            await self._refuse_large(scope, receive, response)
            return
        if body is not None:
            await self._app(scope, _replay(body, receive), response.send)

    def _check_key(self, headers: Mapping[bytes, bytes], scope: Scope) -> None:
        """Raise ApiError 401 unless a known key is given; note which in the scope's state.

        Takes the same time whichever keys are compared: equal lengths, all of them.
        """
        if not self._digests:
            return
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        digest = _digest(given.strip())
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        if scheme.lower() != b"bearer" or not any(matches):
            raise ApiError(
                401,
                "the API key is missing or not one of this server's; send it as "
                '"Authorization: Bearer KEY"',
                type="invalid_request_error",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        scope.setdefault("state", {})["api_key"] = digest.hex()

    async def _body(
        self, scope: Scope, headers: Mapping[bytes, bytes], receive: Receive
    ) -> bytes | None:
        """The request's whole body; None if the client left before its end."""
        length = headers.get(b"content-length", b"0")
        if length == b"0" and b"transfer-encoding" not in headers:
            return b""
        _check_content_type(headers)
        if headers.get(b"transfer-encoding", b"chunked").strip().lower() != b"chunked":
            raise ApiError(400, "a body must come as it is or in chunks, not encoded otherwise")
        # The parser has refused lengths that are no number.
        if int(length) > self._settings.max_body_bytes:
            raise _TooLarge
        limit = asyncio.timeout(self._settings.body_timeout_s)
        self._service.bodies.add(limit)
        try:
            async with limit:
                return await _read(receive, self._settings.max_body_bytes)
        except TimeoutError as error:
            if self._service.is_draining:
                raise shutting_down() from error
            raise ApiError(
                408,
                f"the body did not arrive within {self._settings.body_timeout_s:g} s",
                headers={"Connection": "close"},
            ) from error
        finally:
            self._service.bodies.discard(limit)

    async def _refuse_large(self, scope: Scope, receive: Receive, response: _Response) -> None:
        """Answer 413, then read on for a moment: the client sees the answer only if it gets rid of
        what it is sending."""
        limit = self._settings.max_body_bytes
        error = ApiError(
            413,
            f"the body is larger than {limit} bytes",
            code="request_too_large",
            headers={"Connection": "close"},
        )
        last: list[Message] = []

        async def hold_back_the_end(message: Message) -> None:
            if message["type"] == "http.response.body":
                last.append({"type": "http.response.body", "body": b"", "more_body": False})
                message = {**message, "more_body": True}
            await response.send(message)

        await error.response()(scope, receive, hold_back_the_end)
        try:
            async with asyncio.timeout(_DISCARD_S):
                await _discard(receive, _DISCARD_FACTOR * limit)
        except TimeoutError:
            pass
        for message in last:
            await response.send(message)


class _TooLarge(Exception):  # noqa: N818 (becomes a response at once)
    pass


class _Response:
    """The way to the client: adds what every response has, and knows whether one has begun."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.is_started = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.is_started = True
            given = list(message.get("headers", ()))
            names = {name for name, _ in given}
            more = [header for header in _HEADERS if header[0] not in names]
            message = {**message, "headers": given + more}
        await self._send(message)


def _by_name(scope: Scope) -> dict[bytes, bytes]:
    """Headers by name. Raises ApiError 400 for one given twice where that has no meaning."""
    headers: dict[bytes, bytes] = {}
    once = (b"host", b"authorization", b"content-type", b"content-length")
    for name, value in scope["headers"]:
        if name in headers and name in once:
            raise ApiError(400, f"the header {name.decode('ascii')} is given twice")
        headers[name] = value
    return headers


def _check_host(headers: Mapping[bytes, bytes], settings: ServerSettings) -> None:
    """Raise ApiError unless the Host header names this server: a page whose name was made to lead
    here could otherwise talk to it as if it were its own server."""
    given = headers.get(b"host", b"").decode("latin-1").lower()
    found = re.fullmatch(r"(?:\[([0-9a-f:.]+)\]|([^\[\]:/@\s]+))(?::[0-9]{1,5})?", given)
    if found is None:
        raise ApiError(400, "the Host header is missing or is not a name with an optional port")
    name = found[1] or found[2]
    allowed = {host.lower().strip("[]") for host in (settings.host, *settings.allowed_hosts)}
    if "*" in allowed or name in LOOPBACK_NAMES or name in allowed:
        return
    if _is_wildcard(settings.host) and _is_address(name):
        return  # reached by an address; only names can be made to lead elsewhere
    raise ApiError(
        421,
        f"this server does not answer for the host {name!r:.100}; it is to be started with "
        "--allowed-host for each name it is known by",
        code="host_not_allowed",
    )


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_wildcard(host: str) -> bool:
    return _is_address(host) and ipaddress.ip_address(host).is_unspecified


def _check_content_type(headers: Mapping[bytes, bytes]) -> None:
    given = headers.get(b"content-type", b"").decode("latin-1").lower()
    kind, _, parameters = given.partition(";")
    charset = parameters.replace(" ", "").replace('"', "")
    if kind.strip() != "application/json" or charset not in ("", "charset=utf-8"):
        raise ApiError(
            415, f"the body must have the content type application/json, got {given!r:.100}"
        )
    encoding = headers.get(b"content-encoding", b"identity").decode("latin-1")
    if encoding.lower() != "identity":
        raise ApiError(415, f"bodies must not be compressed, got {encoding!r:.100}")


async def _read(receive: Receive, limit: int) -> bytes | None:
    """The body, or None if the client leaves. Raises _TooLarge past `limit` bytes."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if len(body) > limit:
            raise _TooLarge
        if not message.get("more_body", False):
            return bytes(body)


async def _discard(receive: Receive, limit: int) -> None:
    """Read the rest of a body away, up to `limit` bytes."""
    num_read = 0
    while num_read <= limit:
        message = await receive()
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            return
        num_read += len(message.get("body", b""))


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives the body that was read already, then what really comes."""
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return first.pop() if first else await receive()

    return replay


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
