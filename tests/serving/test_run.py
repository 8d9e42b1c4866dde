"""A server's life: clients that leave, engines that fail, and an orderly end."""

from __future__ import annotations

import json
import re
import signal
import socket
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest
from servers import (
    WAIT_S,
    HeldEngine,
    RunningServer,
    break_next_step,
    serving,
    slow_llm,
)

from outpace.errors import OptionError
from outpace.serving.run import open_socket, url_of
from outpace.serving.settings import ServerSettings

IDS = [5, 9, 14, 5, 9]


def body(server: RunningServer | None = None, **changes: Any) -> dict[str, Any]:
    """A completions request that goes on for thousands of tokens unless it is ended."""
    model = "tiny" if server is None else server.service.model_names[0]
    values = {"model": model, "prompt": IDS, "max_tokens": 3000, "temperature": 0}
    return values | {"ignore_eos": True} | changes


def request_bytes(content: dict[str, Any]) -> bytes:
    data = json.dumps(content).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


def kill(connection: socket.socket) -> None:
    """Close as the system does for a process that was killed: with a reset."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def events_of(text: str) -> list[Any]:
    found = re.findall(r"data: (.*)\n\n", text)
    return [data if data == "[DONE]" else json.loads(data) for data in found]


@pytest.fixture(scope="module")
def slow() -> Iterator[RunningServer]:
    with serving(slow_llm()) as server:
        yield server


@pytest.mark.parametrize("is_streamed", [True, False])
def test_a_client_that_is_killed_frees_its_row(slow: RunningServer, is_streamed: bool) -> None:
    connection = slow.socket()
    connection.sendall(request_bytes(body(slow, stream=is_streamed, n=3)))
    slow.wait_until(lambda: slow.llm.state().num_running == 3)
    if is_streamed:
        assert connection.recv(20).startswith(b"HTTP/1.1 200")
    kill(connection)
    slow.wait_until_idle()
    assert slow.client.get("/health").json()["num_requests_running"] == 0


def test_a_client_that_is_killed_while_it_waits_for_a_row(slow: RunningServer) -> None:
    connections = [slow.socket() for _ in range(6)]
    for connection in connections:
        connection.sendall(request_bytes(body(slow)))

    def counts() -> tuple[int, int]:
        state = slow.llm.state()
        return state.num_running, state.num_waiting

    slow.wait_until(lambda: counts() == (4, 2))
    # Whoever waits is among the last two only by chance: all but one are killed.
    for connection in connections[:-1]:
        kill(connection)
    slow.wait_until(lambda: counts() == (1, 0))
    kill(connections[-1])
    slow.wait_until_idle()


def test_the_others_do_not_notice(slow: RunningServer) -> None:
    wanted = body(slow, max_tokens=60)
    alone = slow.post("/v1/completions", wanted).json()["choices"][0]["text"]
    with ThreadPoolExecutor() as pool:
        answers = [pool.submit(slow.post, "/v1/completions", wanted) for _ in range(3)]
        connection = slow.socket()
        connection.sendall(request_bytes(body(slow, stream=True)))
        slow.post("/v1/completions", {"model": "tiny", "nonsense": 1})
        slow.wait_until(lambda: slow.llm.state().num_running >= 1)
        kill(connection)
        assert {one.result().json()["choices"][0]["text"] for one in answers} == {alone}
    slow.wait_until_idle()


@pytest.mark.parametrize("is_streamed", [True, False])
def test_a_failed_step(slow: RunningServer, is_streamed: bool, caplog: Any) -> None:
    before = slow.client.get("/health").json()["num_failed_steps"]
    with ThreadPoolExecutor() as pool:
        wanted = body(slow, stream=is_streamed)
        answers = [pool.submit(slow.post, "/v1/completions", wanted) for _ in range(2)]
        slow.wait_until(lambda: slow.llm.state().num_running == 2)
        break_next_step(slow.llm, ZeroDivisionError("text of a request"))
        for answer in answers:
            response = answer.result()
            if is_streamed:
                assert response.status_code == 200
                error = events_of(response.text)[-1]["error"]
            else:
                assert response.status_code == 500
                error = response.json()["error"]
            assert set(error) == {"message", "type", "param", "code"}
            assert error["type"] == "server_error"
            assert "text of a request" not in response.text
    health = slow.client.get("/health")
    assert health.status_code == 200
    assert health.json()["num_failed_steps"] == before + 1
    assert health.json()["last_error"] == "ZeroDivisionError"
    slow.wait_until_idle()
    assert slow.post("/v1/completions", body(slow, max_tokens=3)).status_code == 200


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_dead_engine_shows() -> None:
    with serving(slow_llm()) as server, ThreadPoolExecutor() as pool:
        answer = pool.submit(server.post, "/v1/completions", body(server))
        server.wait_until(lambda: server.llm.state().num_running == 1)
        break_next_step(server.llm, SystemExit())  # type: ignore[arg-type]
        assert answer.result().status_code == 500
        server.wait_until(lambda: server.client.get("/health").status_code == 503)
        assert server.client.get("/health").json()["status"] == "dead"
        assert server.client.get("/ready").status_code == 503
        assert server.post("/v1/completions", body(server)).status_code == 503


def test_a_full_queue_is_429_with_retry_after() -> None:
    engine = HeldEngine(max_num_seqs=1)
    with serving(engine.llm, max_queue=2) as server, ThreadPoolExecutor() as pool:
        with engine.held():
            wanted = body(server, max_tokens=5)
            answers = [pool.submit(server.post, "/v1/completions", wanted) for _ in range(3)]
            server.wait_until(lambda: server.service.admission.num_unfinished == 3)
            refused = [
                server.post("/v1/completions", wanted | {"stream": s}) for s in (0 == 1, True)
            ]
        for response in refused:
            assert response.status_code == 429
            assert int(response.headers["retry-after"]) >= 1
            assert response.json()["error"]["code"] == "queue_full"
        assert [one.result().status_code for one in answers] == [200] * 3
        assert server.post("/v1/completions", wanted).status_code == 200
        server.wait_until_idle()


def test_who_is_still_sending_a_body_is_told_at_once(caplog: pytest.LogCaptureFixture) -> None:
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with serving() as server:
        connection = server.socket()
        connection.sendall(f'{head}Content-Length: 500\r\n\r\n{{"model"'.encode())
        server.wait_until(lambda: bool(server.service.bodies))
        server.server.handle_exit(15, None)
        with connection:
            answer = b"".join(iter(lambda: connection.recv(4096), b""))
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"shutting_down" in answer
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_running_answers_end_and_new_requests_get_503() -> None:
    engine = HeldEngine()
    with serving(engine.llm, shutdown_grace_s=WAIT_S) as server:
        wanted = body(server, max_tokens=20)
        expected = server.post("/v1/completions", wanted).json()["choices"]
        kept = httpx2.Client(base_url=server.url, timeout=WAIT_S)
        assert kept.get("/ready").status_code == 200
        with ThreadPoolExecutor() as pool:
            with engine.held():
                answer = pool.submit(server.post, "/v1/completions", wanted)
                server.wait_until(lambda: server.service.admission.num_unfinished == 1)
                server.server.handle_exit(signal.SIGTERM, None)
                server.wait_until(lambda: server.service.is_draining)
                assert kept.get("/ready").json() == {"status": "shutting_down"}
                refused = kept.post("/v1/completions", json=wanted)
                with pytest.raises(httpx2.ConnectError):
                    httpx2.get(server.url + "/ready")
            assert answer.result().json()["choices"] == expected
        assert refused.status_code == 503
        assert refused.headers["connection"] == "close"
        assert refused.json()["error"]["code"] == "shutting_down"
        server.thread.join(WAIT_S)
        assert not server.thread.is_alive()


@pytest.mark.parametrize("num_signals", [1, 2])
def test_answers_that_do_not_end_get_an_error(num_signals: int) -> None:
    """After the grace, or at a second signal without it."""
    grace_s = 0.2 if num_signals == 1 else 600
    with (
        serving(slow_llm(), shutdown_grace_s=grace_s) as server,
        ThreadPoolExecutor() as pool,
    ):
        streamed = pool.submit(server.post, "/v1/completions", body(server, stream=True))
        whole = pool.submit(server.post, "/v1/completions", body(server))
        server.wait_until(lambda: server.llm.state().num_running == 2)
        for _ in range(num_signals):
            server.server.handle_exit(signal.SIGTERM, None)
        first, *_, last = events_of(streamed.result().text)
        assert first["choices"][0]["text"]
        assert last["error"]["code"] == "shutting_down"
        assert whole.result().status_code == 503
        server.thread.join(WAIT_S)
        assert not server.thread.is_alive()
        server.wait_until_idle()


def test_ports_and_hosts() -> None:
    taken = socket.create_server(("127.0.0.1", 0))
    port = taken.getsockname()[1]
    with taken, pytest.raises(OptionError, match=f"port {port}: Address already in use"):
        open_socket(ServerSettings(port=port))
    with pytest.raises(OptionError, match=r"203\.0\.113\.9"):
        open_socket(ServerSettings(host="203.0.113.9"))
    with pytest.raises(OptionError, match="not known"):
        open_socket(ServerSettings(host="no such host"))
    with open_socket(ServerSettings(port=0)) as sock:
        assert re.fullmatch(r"http://127\.0\.0\.1:[1-9]\d*", url_of(sock))
    if socket.has_ipv6:
        with open_socket(ServerSettings(host="::1", port=0)) as sock:
            assert url_of(sock).startswith("http://[::1]:")
