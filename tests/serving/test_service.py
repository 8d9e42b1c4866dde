"""The service without HTTP: requests are checked in threads, run, and leave nothing behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from servers import HeldEngine, break_next_step, slow_llm, tiny_llm

from outpace import LLM, SamplingParams
from outpace.errors import OptionError
from outpace.serving.errors import ApiError
from outpace.serving.service import Service, merged
from outpace.serving.settings import ServerSettings

PROMPT = {"prompt_token_ids": [5, 9, 14, 5, 9]}
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
ENDLESS = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)

Make = Callable[..., Service]


@pytest.fixture
def make() -> Iterator[Make]:
    """Services whose engines are closed, and so checked, in the end."""
    made: list[Service] = []

    def make_one(llm: LLM | None = None, **settings: Any) -> Service:
        made.append(Service(llm or tiny_llm(), ServerSettings(**settings)))
        return made[-1]

    yield make_one
    for service in made:
        assert service.close()
        service.llm.close()


async def idle(llm: LLM) -> None:
    async with asyncio.timeout(30):
        while llm.state().num_running or llm.state().num_waiting:
            await asyncio.sleep(0.005)
    assert llm.state().num_cached_tokens == 0


async def read(events: AsyncIterator[Any]) -> list[Any]:
    return [event async for event in events]


async def text_of(service: Service, prompt: Any = PROMPT, params: SamplingParams = GREEDY) -> str:
    group = await service.prepare(prompt, params)
    async with service.running([group]) as (stream,):
        text = "".join([event.text async for event in stream])
    assert stream.output.outputs[0].text == text
    return text


def test_a_model_whose_own_sampling_is_impossible_is_not_served(make: Make) -> None:
    """Every request would be refused for it, and the server would say that it is ready."""
    llm = tiny_llm()

    def impossible() -> SamplingParams:
        raise OptionError("temperature must be at least 0, got -1")

    llm.get_default_sampling_params = impossible  # type: ignore[method-assign]
    with pytest.raises(OptionError, match="temperature"):
        make(llm)
    llm.close()


async def test_an_answer_is_the_engines(make: Make) -> None:
    service = make()
    (expected,) = service.llm.generate(PROMPT, GREEDY)
    assert await text_of(service) == expected.outputs[0].text


@pytest.mark.parametrize(
    ("prompt", "code"),
    [
        ({"prompt_token_ids": [5] * 400}, "context_length_exceeded"),
        ({"prompt_token_ids": [-1]}, None),
        ({"nothing": 1}, None),
    ],
)
async def test_bad_prompts_are_the_callers_fault(make: Make, prompt: Any, code: str | None) -> None:
    with pytest.raises(ApiError) as caught:
        await make().prepare(prompt, GREEDY)
    assert (caught.value.status, caught.value.code) == (400, code)
    assert caught.value.type == "invalid_request_error"


async def test_preparing_does_not_block_the_event_loop(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, go_on = make(), threading.Event()
    real = service.llm.prepare

    def slowly(*args: Any, **kwargs: Any) -> Any:
        go_on.wait(30)
        return real(*args, **kwargs)

    monkeypatch.setattr(service.llm, "prepare", slowly)
    tasks = [asyncio.create_task(service.prepare(PROMPT, GREEDY)) for _ in range(9)]
    await asyncio.sleep(0.02)
    assert not any(task.done() for task in tasks)
    names = [thread.name for thread in threading.enumerate()]
    assert len([name for name in names if name.startswith("outpace-prepare")]) <= 4
    go_on.set()
    await asyncio.gather(*tasks)


async def test_a_grammar_that_takes_too_long(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    service, go_on = make(grammar_timeout_s=0.05), threading.Event()
    real = service.llm.prepare

    def prepare(prompt: Any, params: SamplingParams, **kwargs: Any) -> Any:
        if params.structured_outputs is not None:
            go_on.wait(30)
        return real(prompt, params, **kwargs)

    monkeypatch.setattr(service.llm, "prepare", prepare)
    slow = SamplingParams(structured_outputs={"choice": ["a", "b"]})
    with pytest.raises(ApiError, match=r"not compiled within 0\.05 s") as caught:
        await service.prepare(PROMPT, slow)
    assert caught.value.status == 400
    await service.prepare(PROMPT, GREEDY)  # others do not wait for it
    go_on.set()


@pytest.mark.parametrize(
    "prompt",
    ["the text", PROMPT, {"messages": [{"role": "user", "content": "hello"}]}],
    ids=["text", "ids", "messages"],
)
async def test_callers_with_different_keys_share_nothing(make: Make, prompt: Any) -> None:
    several, alone = make(api_keys=("one", "two")), make(api_keys=("one",))

    async def salt(service: Service, prompt: Any, key: str | None) -> str:
        group = await service.prepare(prompt, GREEDY, api_key=key)
        return group.requests[0].seq.cache_salt

    salts = [await salt(several, prompt, key) for key in ("digest-1", "digest-2", "digest-1")]
    assert salts[0] != salts[1]
    assert salts[0] == salts[2] != ""
    own = {"prompt": prompt} if isinstance(prompt, str) else prompt
    mine = await salt(several, {**own, "cache_salt": "mine"}, "digest-1")
    assert mine not in salts
    assert mine != await salt(several, {**own, "cache_salt": "mine"}, "digest-2")
    assert await salt(alone, prompt, "digest-1") == ""


async def test_leaving_early_frees_everything(make: Make) -> None:
    service = make(slow_llm())
    group = await service.prepare(PROMPT, SamplingParams(n=3, max_tokens=None, ignore_eos=True))
    async with service.running([group]) as (stream,):
        await anext(stream)
    assert service.admission.num_unfinished == 0
    await idle(service.llm)
    assert {answer.finish_reason for answer in stream.output.outputs} == {"abort"}


async def test_a_cancelled_task_frees_everything_running_or_waiting(make: Make) -> None:
    service = make(slow_llm())
    tasks = [asyncio.create_task(text_of(service, PROMPT, ENDLESS)) for _ in range(7)]
    while service.llm.state().num_running < 4:
        await asyncio.sleep(0.005)
    assert service.llm.state().num_waiting == 3
    for task in tasks:
        task.cancel()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(one, asyncio.CancelledError) for one in ended)
    assert service.admission.num_unfinished == 0
    await idle(service.llm)


async def test_a_full_queue(make: Make) -> None:
    engine = HeldEngine(max_num_seqs=1)
    service = make(engine.llm, max_queue=2)
    groups = [await service.prepare(PROMPT, GREEDY) for _ in range(5)]
    with engine.held():
        async with service.running(groups[:3]):
            with pytest.raises(ApiError) as caught:
                async with service.running(groups[3:4]):
                    pytest.fail("admitted")
            assert caught.value.status == 429
            with pytest.raises(ApiError) as caught:
                await service.prepare(PROMPT, GREEDY)  # no work is done for nothing
            assert caught.value.status == 429
            # Leaving waits for the engine, which must go on.
            engine.release()
    assert service.admission.rejected["queue_full"] == 2
    async with service.running(groups[4:]) as (stream,):
        assert [event async for event in stream]


async def test_a_failed_step_is_an_error_and_the_next_request_runs(make: Make) -> None:
    service = make(slow_llm())
    expected = await text_of(service)
    group = await service.prepare(PROMPT, ENDLESS)
    async with service.running([group]) as (stream,):
        await anext(stream)
        break_next_step(service.llm, ValueError("quotes a secret prompt"))
        with pytest.raises(ApiError) as caught:
            await read(stream)
    assert (caught.value.status, caught.value.code) == (500, "internal_error")
    assert "ValueError" in caught.value.message
    assert "secret" not in caught.value.message
    assert service.llm.state().num_failed_steps == 1
    assert await text_of(service) == expected


async def test_a_closed_engine(make: Make) -> None:
    service = make()
    group = await service.prepare(PROMPT, GREEDY)
    service.llm.close()
    with pytest.raises(ApiError) as caught:
        async with service.running([group]):
            pass
    assert caught.value.status == 503


async def test_several_streams_as_one(make: Make) -> None:
    service = make()
    prompts = [{"prompt_token_ids": [i, 7, i]} for i in range(5, 11)]
    params = SamplingParams(temperature=0.9, seed=3, n=2, max_tokens=20, ignore_eos=True)
    expected = service.llm.generate(prompts, params)
    groups = [await service.prepare(prompt, params) for prompt in prompts]
    texts: dict[tuple[int, int], str] = {}
    async with service.running(groups) as streams:
        async for position, event in merged(streams):
            key = (position, event.index)
            texts[key] = texts.get(key, "") + event.text
    for position, output in enumerate(expected):
        for answer in output.outputs:
            assert texts[position, answer.index] == answer.text
    assert len(texts) == 12


async def test_an_error_in_one_of_several_streams(make: Make) -> None:
    service = make(slow_llm())
    groups = [await service.prepare(PROMPT, ENDLESS) for _ in range(3)]
    async with service.running(groups) as streams:
        break_next_step(service.llm, ValueError())
        with pytest.raises(ApiError):
            await read(merged(streams))
    await idle(service.llm)


async def test_draining_lets_answers_end(make: Make) -> None:
    service = make(slow_llm(0.001))
    answer = asyncio.create_task(text_of(service))
    while not service.llm.state().num_running:
        await asyncio.sleep(0.001)
    await service.drain(30, is_forced=asyncio.Event())
    assert len(await answer) > 10
    with pytest.raises(ApiError) as caught:
        await service.prepare(PROMPT, GREEDY)
    assert caught.value.status == 503


@pytest.mark.parametrize("is_forced", [False, True])
async def test_draining_ends_what_does_not_end(make: Make, is_forced: bool) -> None:
    service = make(slow_llm())
    answer = asyncio.create_task(text_of(service, PROMPT, ENDLESS))
    while not service.llm.state().num_running:
        await asyncio.sleep(0.001)
    forced = asyncio.Event()
    if is_forced:
        forced.set()
    await service.drain(30 if is_forced else 0.05, is_forced=forced)
    with pytest.raises(ApiError) as caught:
        await answer
    assert (caught.value.status, caught.value.code) == (503, "shutting_down")
    await idle(service.llm)
