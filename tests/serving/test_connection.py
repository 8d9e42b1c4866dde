"""Connections that do not say what they want are closed; what is said on them by hand is heard."""

from __future__ import annotations

import socket
import threading

import pytest
from servers import WAIT_S, RunningServer, serving, slow_llm

from outpace.serving import connection
from outpace.serving.connection import MAX_HEADER_BYTES

HEAD = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"


def read_all(server: RunningServer, *parts: bytes) -> bytes:
    """What comes back until the server closes the connection."""
    with server.socket() as sock:
        for part in parts:
            sock.sendall(part)
        data = b""
        try:
            while more := sock.recv(65536):
                data += more
        except ConnectionResetError:
            pass  # it was closed before all of a flood was read
        return data


@pytest.mark.parametrize("sent", [b"", b"GET /health HT", HEAD, HEAD + b"X-Slow: "])
def test_slow_headers(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(connection, "HEADER_TIMEOUT_S", 0.1)
    with serving() as hasty:
        assert read_all(hasty, sent) == b""


def test_slow_headers_of_a_second_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEADER_TIMEOUT_S", 0.1)
    with serving() as hasty, hasty.socket() as sock:
        sock.sendall(HEAD + b"\r\n")
        assert sock.recv(65536).startswith(b"HTTP/1.1 200")
        sock.sendall(b"GET /he")
        while sock.recv(65536):
            pass  # the rest of the first answer


def test_long_answers_and_bodies_have_their_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEADER_TIMEOUT_S", 0.1)
    body = b'{"model": "tiny", "prompt": [5], "max_tokens": 40, "ignore_eos": true}'
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    head += b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    with serving(slow_llm(0.01), served_model_names=("tiny",)) as hasty, hasty.socket() as sock:
        sock.sendall(head + body[:-1])
        threading.Event().wait(0.2)
        sock.sendall(body[-1:])
        answer = b""
        while more := sock.recv(65536):
            answer += more
    assert answer.startswith(b"HTTP/1.1 200")
    assert b'"completion_tokens":40' in answer


def test_idle_connections_are_closed() -> None:
    with serving(keep_alive_s=0.1) as hasty:
        assert read_all(hasty, HEAD + b"\r\n").count(b"HTTP/1.1 200") == 1


@pytest.mark.parametrize(
    "flood",
    [
        b"X-Long: " + b"a" * (4 * MAX_HEADER_BYTES),
        b"X-Many: b\r\n" * (MAX_HEADER_BYTES // 4),
    ],
)
def test_large_headers(
    server: RunningServer, flood: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "HEADER_TIMEOUT_S", 1000)
    answer = read_all(server, HEAD, flood)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 400")
    assert server.client.get("/health").status_code == 200


def test_large_addresses(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEADER_TIMEOUT_S", 1000)
    answer = read_all(server, b"GET /" + b"a" * (4 * MAX_HEADER_BYTES))
    assert answer == b"" or answer.startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"hello\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"CONNECT evil.example:443 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost : localhost\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n",
    ],
)
def test_what_is_not_http_is_closed(server: RunningServer, garbage: bytes) -> None:
    answer = read_all(server, garbage)
    assert answer.startswith(b"HTTP/1.1 400")
    assert server.client.get("/health").status_code == 200


def test_pipelined_requests_are_answered_in_order(server: RunningServer) -> None:
    last = b"GET /none HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    answer = read_all(server, (HEAD + b"\r\n") * 2 + last)
    statuses = [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [b"200", b"200", b"404"]


ANSWERS = 300
"""More of the schema than what is between two sockets can hold."""


def asked_for_much(server: RunningServer) -> socket.socket:
    """A connection with a small window, on which many long answers were asked for."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.settimeout(WAIT_S)
    sock.connect(("127.0.0.1", server.port))
    one = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n"
    sock.sendall((one + b"\r\n") * (ANSWERS - 1) + one + b"Connection: close\r\n\r\n")
    return sock


def test_answers_that_nobody_reads_are_let_go() -> None:
    """Their connection would otherwise stay, and with it what was written, as long as the client
    likes."""
    with serving(send_timeout_s=0.2) as hasty, asked_for_much(hasty):
        connections = hasty.server.server_state.connections
        hasty.wait_until(lambda: bool(connections))
        hasty.wait_until(lambda: not connections)


def test_who_reads_slowly_gets_everything() -> None:
    with serving(send_timeout_s=0.5) as patient, asked_for_much(patient) as sock:
        num_read = num_answers = 0
        rest = b""
        while more := sock.recv(65536):
            num_read += len(more)
            if num_read // 10**6 > (num_read - len(more)) // 10**6:
                threading.Event().wait(0.1)
            rest += more
            num_answers += rest.count(b"HTTP/1.1 200 OK")
            rest = rest[rest.rfind(b"HTTP/1.1 200 OK") + 1 :][-100:]
    assert num_answers == ANSWERS
