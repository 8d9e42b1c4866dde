"""/health and /ready: what they say, and when they change their mind. See test_run.py for a dead
engine and for a server that ends."""

from __future__ import annotations

from servers import RunningServer, serving, slow_llm


def test_a_fresh_server(server: RunningServer) -> None:
    health = server.client.get("/health")
    assert health.status_code == 200
    assert health.json() == {
        "status": "ok",
        "num_requests_running": 0,
        "num_requests_waiting": 0,
        "num_failed_steps": 0,
        "last_error": None,
    }
    ready = server.client.get("/ready")
    assert (ready.status_code, ready.json()) == (200, {"status": "ready"})


def test_a_busy_server() -> None:
    with serving(slow_llm(max_num_seqs=2)) as server:
        model = server.service.model_names[0]
        body = {"model": model, "prompt": [5], "n": 3, "temperature": 1, "ignore_eos": True}
        with server.client.stream(
            "POST", "/v1/completions", json=body | {"max_tokens": 3000, "stream": True}
        ) as response:
            assert response.status_code == 200
            health = server.client.get("/health").json()
            assert (health["num_requests_running"], health["num_requests_waiting"]) == (2, 1)
            assert server.client.get("/ready").status_code == 200
        server.wait_until_idle()
