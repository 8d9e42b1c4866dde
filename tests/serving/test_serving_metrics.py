"""/metrics: Prometheus' own parser reads it, the names are vLLM's, and the numbers add up."""

from __future__ import annotations

from typing import Any

from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families
from servers import RunningServer, break_next_step, serving, slow_llm

PROMPT = [5, 9, 14, 5, 9, 14, 5, 9]


def read(server: RunningServer) -> dict[str, Any]:
    """Values by name, of labelled samples by name and the labels' values."""
    response = server.client.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain; version=")
    return {
        ":".join([sample.name, *sample.labels.values()]).removeprefix("outpace:"): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


def complete(server: RunningServer, **changes: Any) -> dict[str, Any]:
    body = {"model": server.service.model_names[0], "prompt": PROMPT, "max_tokens": 40}
    body |= {"temperature": 0, "ignore_eos": True} | changes
    answer: dict[str, Any] = server.post("/v1/completions", body).json()
    return answer


def test_numbers_add_up() -> None:
    with serving() as server:
        before = read(server)
        assert before["generation_tokens_total"] == before["prompt_tokens_total"] == 0
        usage = complete(server)["usage"]
        usages = [usage, complete(server, n=2, temperature=1, seed=1)["usage"]]
        found = read(server)
    num_output = sum(one["completion_tokens"] for one in usages)
    speculation = [one["speculation"] for one in usages]
    assert found["prompt_tokens_total"] == 2 * len(PROMPT)
    assert found["generation_tokens_total"] == num_output == 120
    assert found["request_success_total:length"] == 3
    for name, key in (("draft", "num_draft_tokens"), ("accepted", "num_accepted_tokens")):
        total = sum(one[key] for one in speculation)
        assert found[f"spec_decode_num_{name}_tokens_total"] == total
        by_position = [
            value
            for sample, value in found.items()
            if sample.startswith(f"spec_decode_num_{name}_tokens_per_pos_total:")
        ]
        assert sum(by_position) == total
        assert by_position == sorted(by_position, reverse=True)
    assert found["spec_decode_num_drafts_total"] <= found["engine_steps_total"] * 2
    assert found["spec_decode_num_draft_tokens_total"] > 0
    for name, count in (
        ("time_to_first_token_seconds", 2),
        ("e2e_request_latency_seconds", 2),
        ("request_queue_time_seconds", 2),
        ("time_per_output_token_seconds", 3),
    ):
        assert found[f"{name}_count"] == count
        assert found[f"{name}_bucket:+Inf"] == count
        assert found[f"{name}_sum"] >= 0
    seconds = [found[f"{name}_seconds_total"] for name in ("draft", "verify", "overhead")]
    assert min(seconds) > 0
    assert found["num_requests_running"] == found["num_requests_waiting"] == 0
    assert found["kv_cache_usage_perc"] == 0


def test_what_is_under_way_and_what_went_wrong() -> None:
    with serving(slow_llm(max_num_seqs=1), max_queue=0) as server:
        body = {"model": server.service.model_names[0], "prompt": PROMPT, "ignore_eos": True}
        body |= {"max_tokens": 3000, "stream": True}
        with server.client.stream("POST", "/v1/completions", json=body) as response:
            parts = response.iter_bytes()  # held on to: without it the connection would be closed
            next(parts)
            assert server.post("/v1/completions", body).status_code == 429
            found = read(server)
        assert found["num_requests_running"] == 1
        assert 0 < found["kv_cache_usage_perc"] < 1
        assert found["requests_rejected_total:queue_full"] == 1
        server.wait_until_idle()
        break_next_step(server.llm, ValueError())
        assert complete(server)["error"]["type"] == "server_error"
        found = read(server)
        assert found["num_failed_steps_total"] == 1
        assert found["request_success_total:abort"] == 1
        assert found["request_success_total:error"] == 1
        assert found["engine_alive"] == 1


def test_two_servers_count_apart_and_nothing_is_global(server: RunningServer) -> None:
    with serving() as other:
        complete(other)
        assert read(other)["prompt_tokens_total"] == len(PROMPT)
        assert read(server)["prompt_tokens_total"] == 0
    assert not [name for name in REGISTRY._names_to_collectors if name.startswith("outpace")]
