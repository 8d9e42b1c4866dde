"""Several answers to one prompt: fed once, different under one seed, ended together."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from engine_cases import (
    PROMPT,
    TARGET,
    VOCAB,
    count_fed_tokens,
    feed_in_chunks,
    run,
    speculating,
)
from plain import plain_llm
from scripted import random_tokens
from tiny import tiny_model

from outpace import LLM, SamplingParams
from outpace.engine.stream import AsyncStream
from outpace.errors import OptionError
from outpace.outputs import RequestOutput

GIVEN = {"prompt_token_ids": PROMPT}
LONG = [2 + i % 90 for i in range(100)]


def sampling(n: int, **changes: Any) -> SamplingParams:
    values = {"temperature": 1.3, "seed": 7, "max_tokens": 12, "ignore_eos": True}
    return SamplingParams(n=n, **(values | changes))


def answers_of(output: RequestOutput) -> list[list[int]]:
    assert [answer.index for answer in output.outputs] == list(range(len(output.outputs)))
    return [answer.token_ids for answer in output.outputs]


@pytest.fixture(scope="module")
def alone() -> list[list[int]]:
    """Five answers under one seed, computed plainly in a cache of one row."""
    with plain_llm(TARGET, max_num_seqs=1) as llm:
        return answers_of(run(llm, sampling(5), [PROMPT])[0])


@pytest.mark.parametrize("method", [None, "random", "ngram", "draft_model"])
@pytest.mark.parametrize("rows", [1, 2, 8])
def test_an_answer_depends_on_its_index_and_nothing_else(
    method: str | None, rows: int, alone: list[list[int]]
) -> None:
    assert len({tuple(ids) for ids in alone}) == 5
    with drafting_by(method, max_num_seqs=rows) as llm:
        for n in (5, 2, 1):
            assert answers_of(run(llm, sampling(n), [PROMPT])[0]) == alone[:n]
        beside = run(llm, [sampling(3), sampling(2, seed=8)], [PROMPT, LONG])
        assert answers_of(beside[0]) == alone[:3]
        assert beside[0].finished


def drafting_by(method: str | None, **options: Any) -> LLM:
    if method == "random":
        return speculating(random_tokens(VOCAB), 3, **options)
    config: dict[str, Any] | None = None
    if method is not None:
        config = {"method": method, "num_speculative_tokens": 3}
    if config is not None and method == "draft_model":
        config["model"] = tiny_model(seed=2, num_layers=1)
    return LLM(TARGET, speculative_config=config, **options)


def test_unseeded_answers_are_independent_and_greedy_ones_equal() -> None:
    with speculating(random_tokens(VOCAB), 3) as llm:
        drawn = answers_of(run(llm, sampling(6, seed=None), [PROMPT])[0])
        equal = answers_of(run(llm, sampling(3, temperature=0), [PROMPT])[0])
        (single,) = answers_of(run(llm, sampling(1, temperature=0), [PROMPT])[0])
    assert len({tuple(ids) for ids in drawn}) == 6
    assert equal == [single] * 3


@pytest.mark.parametrize(("n", "rows"), [(1, 4), (4, 4), (4, 1), (6, 2), (40, 3)])
@pytest.mark.parametrize("chunk", [16, 512])
def test_the_prompt_is_fed_once(n: int, rows: int, chunk: int, monkeypatch: Any) -> None:
    """Each further answer feeds the prompt's last token again, and what it writes itself."""
    fed = count_fed_tokens(monkeypatch)
    feed_in_chunks(chunk, monkeypatch)
    with plain_llm(TARGET, max_num_seqs=rows) as llm:
        (output,) = run(llm, sampling(n, max_tokens=3), [LONG])
    assert sum(fed) == len(LONG) + 2 + (n - 1) * 3
    assert output.metrics.num_cached_tokens == 0


def test_other_requests_may_take_the_rows_in_between(alone: list[list[int]]) -> None:
    with plain_llm(TARGET, max_num_seqs=2) as llm:
        prompts = [LONG, PROMPT, [9, 8], PROMPT, LONG[::-1]]
        params = [sampling(n) for n in (3, 4, 1, 2, 3)]
        outputs = run(llm, params, prompts)
        assert [len(output.outputs) for output in outputs] == [3, 4, 1, 2, 3]
        assert answers_of(outputs[1]) == alone[:4]
        assert answers_of(outputs[3]) == alone[:2]


def test_statistics_are_sums_and_times_span_all_answers() -> None:
    with plain_llm(TARGET, max_num_seqs=2) as llm:
        (output,) = run(llm, sampling(3), [PROMPT])
    assert output.stats.num_output_tokens == 36 == output.stats.num_steps
    assert 0 < output.metrics.queued_s < output.metrics.ttft_s < output.metrics.total_s


def test_statistics_of_drafts_add_up_by_position() -> None:
    with speculating(random_tokens(VOCAB), 3) as llm:
        stats = run(llm, sampling(3), [PROMPT])[0].stats
    assert sum(stats.drafted_per_position) == stats.num_draft_tokens > 0
    assert sum(stats.accepted_per_position) == stats.num_accepted_tokens
    assert stats.num_output_tokens == 36


def test_streamed_deltas_join_to_each_answer() -> None:
    params = sampling(3, logprobs=1, stop=["e", "at"], max_tokens=30)
    with speculating(random_tokens(VOCAB), 3, max_num_seqs=2) as llm:
        with llm.stream(GIVEN, params) as stream:
            events = list(stream)
        assert_events_make_the_output(events, stream.output)
        assert list(stream) == []
        async_events = asyncio.run(collect(llm, params))
        assert len(async_events) >= 3


async def collect(llm: LLM, params: SamplingParams) -> list[Any]:
    stream = llm.astream(GIVEN, params)
    events = [event async for event in stream]
    assert_events_make_the_output(events, stream.output)
    return events


def assert_events_make_the_output(events: list[Any], output: RequestOutput) -> None:
    for answer in output.outputs:
        mine = [event for event in events if event.index == answer.index]
        assert "".join(event.text for event in mine) == answer.text
        assert [token for event in mine for token in event.token_ids] == answer.token_ids
        assert [row for event in mine for row in event.logprobs or ()] == (answer.logprobs or [])
        assert [event.finish_reason for event in mine[:-1]] == [None] * (len(mine) - 1)
        assert mine[-1].finish_reason == answer.finish_reason is not None
    assert output.finished


@pytest.mark.parametrize("read", [0, 1, 5])
def test_closing_a_stream_ends_all_answers(read: int, alone: list[list[int]]) -> None:
    endless = sampling(5, max_tokens=None)
    with plain_llm(TARGET, max_num_seqs=2) as llm:
        stream = llm.stream(GIVEN, endless)
        for _ in range(read):
            next(stream)
        stream.close()
        assert {answer.finish_reason for answer in stream.output.outputs} <= {"abort", "length"}
        assert stream.output.finished
        for answer, wanted in zip(stream.output.outputs, alone, strict=True):
            shared = min(len(answer.token_ids), len(wanted))
            assert answer.token_ids[:shared] == wanted[:shared]
        assert answers_of(run(llm, sampling(3), [PROMPT])[0]) == alone[:3]


def test_an_error_in_one_answer_ends_the_request(alone: list[list[int]]) -> None:
    """The processor fails where only the answer that starts with a known token can be."""
    first = alone[1][0]

    def fragile(prompt: list[int], output: list[int], logits: Any) -> Any:
        if output[:1] == [first] and len(output) == 3:
            raise RuntimeError("boom")
        return logits

    params = sampling(3, max_tokens=None, logits_processors=[fragile])
    with plain_llm(TARGET) as llm:
        stream = llm.stream(GIVEN, params)
        with pytest.raises(OptionError, match="boom"):
            stream.drain()
        stream.close()
        reasons = [answer.finish_reason for answer in stream.output.outputs]
        assert reasons == ["abort", "error", "abort"]
        with pytest.raises(OptionError, match="boom"):
            run(llm, params, [PROMPT])
        assert answers_of(run(llm, sampling(2), [PROMPT])[0]) == alone[:2]


def test_a_listener_that_fails_drops_all_answers(alone: list[list[int]], caplog: Any) -> None:
    """As when the event loop that reads a stream is gone."""
    with plain_llm(TARGET, max_num_seqs=2) as llm:
        group = llm.prepare(GIVEN, sampling(4, max_tokens=None))

        def gone(event: Any) -> None:
            raise RuntimeError("the event loop is closed")

        llm._loop.submit(group.requests, gone)
        assert answers_of(run(llm, sampling(3), [PROMPT])[0]) == alone[:3]
        assert {request.fold.finish_reason for request in group.requests} == {"abort"}
        assert not llm._loop._listeners
    assert caplog.text.count("a listener failed") == 1


def test_a_stream_whose_event_loop_is_gone_is_dropped_in_silence(caplog: Any) -> None:
    """What an interruption leaves: nobody reads on, which is nobody's fault."""

    async def leave(llm: LLM) -> AsyncStream:
        return llm.astream(GIVEN, sampling(1, max_tokens=None))

    with plain_llm(TARGET) as llm:
        asyncio.run(leave(llm))
        run(llm, sampling(1, max_tokens=4), [PROMPT])
        assert not llm._loop._listeners
    assert not caplog.records


def test_no_tokens_asked_for() -> None:
    with plain_llm(TARGET) as llm:
        (output,) = run(llm, sampling(3, max_tokens=0), [PROMPT])
        with llm.stream(GIVEN, sampling(2, max_tokens=0)) as stream:
            assert [event.index for event in stream] == [0, 1]
    assert answers_of(output) == [[], [], []]
    assert {answer.finish_reason for answer in output.outputs} == {"length"}


def test_random_requests_with_random_cancellation_leak_nothing() -> None:
    """`close` raises if anything was still held for a request at an idle moment."""
    rng = random.Random(0)
    draft = tiny_model(seed=2, num_layers=1)
    config = {"method": "draft_model", "model": draft, "num_speculative_tokens": 2}
    with LLM(TARGET, speculative_config=config, max_num_seqs=3) as llm:
        for _ in range(20):
            streams = []
            for _ in range(10):
                prompt = [rng.randrange(2, VOCAB) for _ in range(rng.randrange(1, 20))]
                params = sampling(
                    rng.randrange(1, 5),
                    max_tokens=rng.randrange(0, 6),
                    prompt_logprobs=rng.choice([None, None, 1]),
                    stop=rng.choice([(), ("e",)]),
                    seed=rng.choice([None, 3]),
                )
                streams.append(llm.stream({"prompt_token_ids": prompt}, params))
            rng.shuffle(streams)
            for stream in streams:
                for _ in range(rng.choice([0, 1, 4, 100])):
                    if next(stream, None) is None:
                        break
                stream.close()
                assert stream.output.finished
