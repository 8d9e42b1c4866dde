"""Who is let in: names, keys, sites, sizes and speeds."""

from __future__ import annotations

import hmac
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from servers import RunningServer, serving

from outpace.serving.guard import Guard
from outpace.serving.settings import ServerSettings

KEYS = ("first-key", "second-key")
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def keyed() -> Iterator[RunningServer]:
    with serving(api_keys=KEYS) as running:
        yield running


class Answer:
    """What a guard with a small app behind it answers to one request, without a server."""

    def __init__(self, status: int = 0) -> None:
        self.status = status
        self.headers: dict[bytes, bytes] = {}
        self.body = b""

    async def send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = dict(message["headers"])
        self.body += message.get("body", b"")


async def ask(
    settings: ServerSettings, *headers: tuple[bytes, bytes], app: Any = None, **service: Any
) -> Answer:
    """A GET through the guard."""

    async def hello(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"hello"})

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    answer = Answer()
    state = SimpleNamespace(**({"is_draining": False, "bodies": set()} | service))
    guard = Guard(app or hello, settings=settings, service=state)
    scope = {"type": "http", "method": "GET", "path": "/x", "headers": list(headers)}
    await guard(scope, receive, answer.send)  # type: ignore[arg-type]
    return answer


def raw(server: RunningServer, request: bytes) -> bytes:
    """What comes back on a connection of its own until it is closed."""
    with server.socket() as connection:
        connection.sendall(request)
        return read_all(connection)


def read_all(connection: socket.socket) -> bytes:
    data = b""
    while part := connection.recv(65536):
        data += part
    return data


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200),
        ("127.0.0.1:1", 200),
        ("LocalHost:8000", 200),
        ("[::1]:8000", 200),
        ("[::1]", 200),
        ("evil.example", 421),
        ("evil.example:8000", 421),
        ("localhost.evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("localhost.", 421),
        ("10.0.0.1", 421),
        ("127.0.0.1@evil.example", 400),
        ("localhost:8000:1", 400),
        ("localhost:", 400),
        ("localhost:x", 400),
        ("local host", 400),
        ("", 400),
    ],
)
def test_host_header(server: RunningServer, host: str, status: int) -> None:
    response = server.client.get("/health", headers={"host": host})
    assert response.status_code == status
    if status != 200:
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}


def test_no_host_or_two(server: RunningServer) -> None:
    assert raw(server, b"GET /health HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 400")
    two = b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n"
    assert raw(server, two + b"Connection: close\r\n\r\n").startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize(
    ("settings", "host", "status"),
    [
        ({"allowed_hosts": ("my.example",)}, b"my.example:80", 200),
        ({"allowed_hosts": ("my.example",)}, b"evil.example", 421),
        ({"allowed_hosts": ("*",)}, b"evil.example", 200),
        ({"host": "10.1.2.3"}, b"10.1.2.3:8000", 200),
        ({"host": "10.1.2.3"}, b"10.1.2.4", 421),
        ({"host": "0.0.0.0"}, b"10.1.2.4:8000", 200),
        ({"host": "::"}, b"[fe80::1]:8000", 200),
        ({"host": "0.0.0.0"}, b"evil.example", 421),
        ({"host": "0.0.0.0"}, b"10.1.2.4.evil.example", 421),
    ],
)
async def test_allowed_hosts(settings: Any, host: bytes, status: int) -> None:
    assert (await ask(ServerSettings(**settings), (b"host", host))).status == status


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS", "HEAD", "PUT"])
@pytest.mark.parametrize("path", ["/health", "/v1/completions", "/metrics", "/"])
def test_other_sites_get_no_cors_headers(server: RunningServer, method: str, path: str) -> None:
    headers = {
        "origin": "https://evil.example",
        "access-control-request-method": "POST",
        "access-control-request-headers": "content-type",
    }
    response = server.client.request(method, path, headers=headers)
    assert not [name for name in response.headers if name.startswith("access-control-")]
    assert response.headers["x-content-type-options"] == "nosniff"
    assert method != "OPTIONS" or response.status_code == 405


@pytest.mark.parametrize(
    "given",
    [
        None,
        "Bearer wrong",
        "Bearer first-key2",
        "Bearer first-ke",
        "Bearer",
        "first-key",
        "Basic first-key",
        b"Bearer \xff\xfe",
        "Bearer first-key second-key",
    ],
)
@pytest.mark.parametrize("path", ["/metrics", "/openapi.json", "/v1/models", "/none"])
def test_a_wrong_key(keyed: RunningServer, given: Any, path: str) -> None:
    headers = {} if given is None else {"authorization": given}
    response = keyed.client.get(path, headers=headers)
    assert response.status_code == 401
    error = response.json()["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_api_key")
    assert response.headers["www-authenticate"] == "Bearer"
    assert not any(key in response.text for key in KEYS)


@pytest.mark.parametrize("key", KEYS)
def test_a_right_key(keyed: RunningServer, key: str) -> None:
    for scheme in ("Bearer", "bearer"):
        headers = {"authorization": f"{scheme} {key}"}
        assert keyed.client.get("/metrics", headers=headers).status_code == 200


@pytest.mark.parametrize("path", ["/health", "/ready", "/"])
def test_what_needs_no_key(keyed: RunningServer, path: str) -> None:
    assert keyed.client.get(path).status_code == 200


@pytest.mark.parametrize("path", ["/%2fhealth", "/health/", "/health/..%2fmetrics", "/metrics/"])
def test_paths_that_only_look_open(keyed: RunningServer, path: str) -> None:
    assert keyed.client.get(path).status_code == 401


async def test_keys_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    real = hmac.compare_digest

    def compare(left: bytes, right: bytes) -> bool:
        compared.append((len(left), len(right)))
        return real(left, right)

    monkeypatch.setattr("hmac.compare_digest", compare)
    headers = ((b"host", b"localhost"), (b"authorization", b"Bearer first-key"))
    answer = await ask(ServerSettings(api_keys=KEYS), *headers)
    assert answer.status == 200
    assert compared == [(32, 32)] * len(KEYS)  # also after the one that matched


def test_keys_are_not_in_the_settings_text() -> None:
    assert "first-key" not in repr(ServerSettings(api_keys=KEYS))


@pytest.mark.parametrize(
    ("given", "status"),
    [
        ("application/json", 400),
        ("Application/JSON; charset=UTF-8", 400),
        ('application/json; charset="utf-8"', 400),
        ("application/json; charset=latin-1", 415),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("multipart/form-data; boundary=x", 415),
        ("application/jsonp", 415),
        ("", 415),
        (None, 415),
    ],
)
def test_content_type(server: RunningServer, given: str | None, status: int) -> None:
    """400: the body is read, and is not valid."""
    headers = {} if given is None else {"content-type": given}
    response = server.client.post("/v1/completions", content=b"{", headers=headers)
    assert response.status_code == status


def test_compressed_bodies_are_refused(server: RunningServer) -> None:
    headers = JSON | {"content-encoding": "gzip"}
    response = server.client.post("/v1/completions", content=b"{}", headers=headers)
    assert response.status_code == 415


def test_a_large_body_is_refused_before_it_is_sent(server: RunningServer) -> None:
    head = (
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: 99999999\r\nExpect: 100-continue\r\n\r\n"
    )
    with server.socket() as connection:
        connection.sendall(head)
        start = connection.recv(65536)
        assert start.startswith(b"HTTP/1.1 413")
        connection.shutdown(socket.SHUT_WR)
        read_all(connection)


def chunks(num_bytes: int) -> Iterator[bytes]:
    for _ in range(num_bytes // 65536):
        yield b" " * 65536


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_client_that_sends_a_large_body_sees_why_not(
    server: RunningServer, is_chunked: bool
) -> None:
    content: Any = chunks(4 * 2**20) if is_chunked else b" " * (4 * 2**20)
    response = server.client.post("/v1/completions", content=content, headers=JSON)
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "request_too_large"
    assert server.client.get("/health").status_code == 200


def test_a_client_that_sends_everything_before_it_reads(server: RunningServer) -> None:
    size = 4 * 2**20
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    answer = raw(server, head + b"Content-Length: %d\r\n\r\n" % size + b" " * size)
    assert answer.startswith(b"HTTP/1.1 413")


def test_a_body_at_the_limit_is_read() -> None:
    with serving(max_body_bytes=1000) as small:
        for length, status in ((1000, 400), (1001, 413)):
            response = small.client.post("/v1/completions", content=b" " * length, headers=JSON)
            assert response.status_code == status


SLOW = (
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: 100\r\n\r\n{"
)


def test_a_slow_body_is_given_up() -> None:
    with serving(body_timeout_s=0.2) as hasty:
        answer = raw(hasty, SLOW)
        assert answer.startswith(b"HTTP/1.1 408")
        assert b'"error"' in answer


def test_too_many_at_once() -> None:
    with serving(max_connections=2) as narrow, narrow.socket() as one, narrow.socket() as two:
        for connection in (one, two):
            connection.sendall(SLOW)
        narrow.wait_until(lambda: narrow.client.get("/ready").status_code == 503)
        response = narrow.client.get("/health")
        assert response.headers["retry-after"]
        assert response.json()["error"]["code"] == "too_many_connections"
        one.close()
        narrow.wait_until(lambda: narrow.client.get("/health").status_code == 200)


def test_websockets_are_refused(server: RunningServer) -> None:
    head = (
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, close\r\n"
        b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    answer = raw(server, head)
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"websocket" in answer


async def test_a_fault_is_a_500_and_logged_without_its_text(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def broken(scope: Any, receive: Any, send: Any) -> None:
        raise ValueError("the secret prompt")

    answer = await ask(ServerSettings(), (b"host", b"localhost"), app=broken)
    assert answer.status == 500
    assert b'"internal_error"' in answer.body
    assert b"secret" not in answer.body
    assert "ValueError" in caplog.text
    assert "in broken" in caplog.text
    assert "secret" not in caplog.text.replace('raise ValueError("the secret prompt")', "")


async def test_nothing_new_while_the_server_ends() -> None:
    answer = await ask(ServerSettings(), (b"host", b"localhost"), is_draining=True)
    assert answer.status == 503
    assert answer.headers[b"connection"] == b"close"


def test_the_server_does_not_name_itself(server: RunningServer) -> None:
    assert "server" not in server.client.get("/health").headers


def test_a_body_that_is_encoded_otherwise_is_refused(server: RunningServer) -> None:
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with server.socket() as connection:
        connection.sendall(f"{head}Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n".encode())
        assert connection.recv(4096).startswith(b"HTTP/1.1 400")
