"""The server under load: 200 requests, 16 at a time, of which some are left and some malformed."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from load_requests import (
    NUM_ENDLESS,
    Outcome,
    Question,
    Reply,
    Task,
    ask_alone,
    load,
    questions,
    run_load,
)
from servers import RunningServer, serving, tiny_llm
from tiny import tiny_model

from outpace import LLM, SamplingParams
from outpace.engine.request import RequestGroup
from outpace.engine.stream import AsyncStream
from outpace.outputs import Event

NUM_CLIENTS = 16
# Fewer rows than clients, so that some always wait.
NUM_ROWS = 6
# Of a second load against the first: 20 kB for each request would be seen.
MOST_GROWTH_BYTES = 4 * 2**20


@pytest.fixture(scope="module", autouse=True)
def _unchecked_shapes(unchecked_shapes_in_module: None) -> None:
    """Checks would take most of the time."""


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with new_server() as running:
        yield running


def new_server() -> AbstractContextManager[RunningServer]:
    llm = tiny_llm(model=tiny_model(max_len=4096), max_num_seqs=NUM_ROWS)
    return serving(llm, served_model_names=("tiny",))


@pytest.fixture(scope="module")
def asked() -> list[Question]:
    return questions(40, seed=1)


@pytest.fixture(scope="module")
def alone(server: RunningServer, asked: list[Question]) -> dict[int, Reply]:
    """The plain answer to each question, by id, when nothing else runs."""
    replies = asyncio.run(ask_alone(server.port, asked))
    assert {reply.status for reply in replies.values()} == {200}
    # Or any answer could stand for any other.
    assert len({reply.text for reply in replies.values()}) > 0.8 * len(asked)
    return replies


@pytest.fixture(scope="module")
def outcome(server: RunningServer, asked: list[Question], alone: dict[int, Reply]) -> Outcome:
    """Of the first load, after everything was asked alone."""
    return run(server, asked, seed=2)


def run(server: RunningServer, asked: list[Question], seed: int) -> Outcome:
    outcome = asyncio.run(run_load(server.port, load(asked, seed), NUM_CLIENTS))
    server.wait_until_idle()
    return outcome


def metric(server: RunningServer, name: str) -> float:
    """The value of a line in /metrics."""
    lines = server.client.get("/metrics").text.splitlines()
    (value,) = [line.split()[-1] for line in lines if line.startswith(f"outpace:{name} ")]
    return float(value)


def test_answers_under_load_are_those_of_requests_alone(
    server: RunningServer, alone: dict[int, Reply], outcome: Outcome
) -> None:
    assert outcome.faults(alone) == []
    assert outcome.count(is_cancelled=True) == 40
    assert outcome.count(is_cancelled=False) == 160
    statuses = [reply.status for _, reply in outcome.replies if reply is not None]
    assert sorted(set(statuses)) == [200, 400]
    # Some of those whose client left were being answered, and had not gone on to their end.
    assert metric(server, 'request_success_total{finished_reason="abort"}') > 0
    assert metric(server, "generation_tokens_total") < 10 * NUM_ENDLESS
    assert metric(server, "spec_decode_num_accepted_tokens_total") > 0
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        assert metric(server, name) == 0
    assert metric(server, "num_failed_steps_total") == 0
    assert server.client.get("/health").json()["status"] == "ok"


def resident_bytes() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def num_held() -> int:
    """Requests that something still refers to."""
    gc.collect()
    return sum(type(one) in (RequestGroup, AsyncStream) for one in gc.get_objects())


def test_nothing_is_kept_of_what_has_ended(
    server: RunningServer, asked: list[Question], alone: dict[int, Reply], outcome: Outcome
) -> None:
    before = resident_bytes()
    num_files, num_threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    assert run(server, asked, seed=3).faults(alone) == []
    assert resident_bytes() - before < MOST_GROWTH_BYTES
    assert len(os.listdir("/proc/self/fd")) <= num_files
    # Threads are made when they are first needed; one for each request would be seen.
    assert threading.active_count() < num_threads + 20
    assert num_held() == 0
    kept = server.llm.prepare("a", SamplingParams())
    assert num_held() == 1
    del kept


def test_faults_would_be_seen(asked: list[Question], alone: dict[int, Reply]) -> None:
    task = Task(asked[0], is_streamed=True)
    right = alone[id(asked[0])]
    bad = replace(task, malformed=(b"{", 400))
    told: dict[str, Any] = {"message": "no JSON"}
    for wrong in (
        (task, replace(right, text=right.text + "x")),
        (task, replace(right, finish_reason="abort")),
        (task, replace(right, num_tokens=right.num_tokens - 1)),
        (task, Reply(500, error=told)),
        (bad, Reply(500, error=told)),
        (bad, Reply(400)),
        (bad, right),
    ):
        assert len(Outcome([wrong]).faults(alone)) == 1
    for fine in ((task, right), (bad, Reply(400, error=told)), (task, None)):
        assert Outcome([fine]).faults(alone) == []


def break_running_step(llm: LLM) -> None:
    """The next step with requests that run raises, once."""
    step = llm._engine.step

    def broken() -> list[Event]:
        if not llm.state().num_running:
            return step()
        llm._engine.step = step  # type: ignore[method-assign]
        raise RuntimeError("out of luck")

    llm._engine.step = broken  # type: ignore[method-assign]


def test_a_step_that_fails_is_seen_under_load(
    asked: list[Question], alone: dict[int, Reply]
) -> None:
    with new_server() as other:
        break_running_step(other.llm)
        tasks = [Task(question, is_streamed=False) for question in asked]
        outcome = asyncio.run(run_load(other.port, tasks, NUM_CLIENTS))
        other.wait_until_idle()
        failed = [reply.status for _, reply in outcome.replies if reply and reply.status != 200]
        assert failed
        assert set(failed) == {500}
        # Only those that ran then: the engine goes on with the others.
        assert len(failed) <= NUM_ROWS
        assert len(outcome.faults(alone)) == len(failed)
        assert metric(other, "num_failed_steps_total") == 1
        assert other.client.get("/health").json()["status"] == "ok"
