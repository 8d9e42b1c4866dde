"""POST /v1/completions against the engine it stands on, through the official client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from servers import RunningServer

from outpace import SamplingParams

NAME = "tiny-96-0-2-1.0"
PROMPTS = ["the sea", "a", "two stones, é €"]
GREEDY = {"temperature": 0, "max_tokens": 20}
EXTRA = ("return_token_ids", "prompt_logprobs", "speculative_config")


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as made:
        yield made


def complete(client: openai.OpenAI, **fields: Any) -> Any:
    extra = {key: fields.pop(key) for key in list(fields) if key in EXTRA}
    values = {"model": NAME, "prompt": PROMPTS[0], "extra_body": extra} | fields
    return client.completions.create(**values)


def joined(chunks: list[Any], index: int) -> dict[str, Any]:
    """What a stream's chunks say of one choice."""
    choices = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
    lists: dict[str, list[Any]] = {}
    for choice in choices:
        for key, values in choice.logprobs.model_dump().items() if choice.logprobs else ():
            lists.setdefault(key, []).extend(values)
    reasons = [choice.finish_reason for choice in choices]
    assert set(reasons[:-1]) <= {None}
    return {
        "text": "".join(choice.text for choice in choices),
        "logprobs": lists,
        "token_ids": [one for c in choices for one in getattr(c, "token_ids", None) or ()],
        "finish_reason": reasons[-1],
    }


def test_prompts_run_together_and_keep_their_places(
    server: RunningServer, client: openai.OpenAI
) -> None:
    params = SamplingParams(temperature=1.0, seed=3, n=2, max_tokens=20)
    expected = server.llm.generate(PROMPTS, params)
    response = complete(
        client, prompt=PROMPTS, temperature=1.0, seed=3, n=2, max_tokens=20, return_token_ids=True
    )
    assert [choice.index for choice in response.choices] == list(range(6))
    for i, choice in enumerate(response.choices):
        answer = expected[i // 2].outputs[i % 2]
        assert (choice.text, choice.token_ids) == (answer.text, answer.token_ids)
        assert choice.prompt_token_ids == expected[i // 2].prompt_token_ids
    assert response.id.startswith("cmpl-")
    assert response.object == "text_completion"
    num_prompt = sum(len(output.prompt_token_ids) for output in expected)
    num_completion = sum(len(choice.token_ids) for choice in response.choices)
    usage = response.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (num_prompt, num_completion)


def test_each_kind_of_prompt(server: RunningServer, client: openai.OpenAI) -> None:
    ids = [server.llm.tokenizer.encode(prompt) for prompt in PROMPTS]
    texts = [choice.text for choice in complete(client, **GREEDY, prompt=PROMPTS).choices]
    several = complete(client, **GREEDY, prompt=ids).choices
    assert [choice.text for choice in several] == texts
    assert complete(client, **GREEDY, prompt=ids[0]).choices[0].text == texts[0]
    assert complete(client, **GREEDY, prompt=PROMPTS[0]).choices[0].text == texts[0]


def test_sixteen_tokens_if_nothing_is_said(client: openai.OpenAI) -> None:
    response = complete(client, temperature=0)
    assert response.usage.completion_tokens == 16
    assert response.choices[0].finish_reason == "length"


def test_logprobs_are_the_engines(server: RunningServer, client: openai.OpenAI) -> None:
    [output] = server.llm.generate([PROMPTS[2]], SamplingParams(**GREEDY, logprobs=2))
    answer = output.outputs[0]
    choice = complete(client, **GREEDY, prompt=PROMPTS[2], logprobs=2).choices[0]
    found = choice.logprobs
    assert answer.logprobs is not None
    own = [
        place[token].logprob for place, token in zip(answer.logprobs, answer.token_ids, strict=True)
    ]
    assert found.token_logprobs == pytest.approx(own, abs=1e-9)
    for top, place in zip(found.top_logprobs, answer.logprobs, strict=True):
        assert sorted(top.values()) == pytest.approx(
            sorted(one.logprob for one in place.values()), abs=1e-9
        )
    spans = zip(found.tokens, found.text_offset, strict=True)
    whole = [(token, offset) for token, offset in spans if "bytes:" not in token]
    assert whole
    assert all(choice.text.startswith(token, offset) for token, offset in whole)


def test_echo(server: RunningServer, client: openai.OpenAI) -> None:
    plain = complete(client, **GREEDY, logprobs=1).choices[0]
    echoed = complete(client, **GREEDY, logprobs=1, echo=True).choices[0]
    prompt = PROMPTS[0]
    assert echoed.text == prompt + plain.text
    num_prompt = len(server.llm.tokenizer.encode(prompt))
    params = SamplingParams(max_tokens=1, prompt_logprobs=1)
    scored = server.llm.generate([prompt], params)[0].prompt_logprobs
    assert scored is not None
    ids = server.llm.tokenizer.encode(prompt)
    expected = [place[token].logprob for place, token in zip(scored[1:], ids[1:], strict=True)]  # type: ignore[index]
    assert echoed.logprobs.token_logprobs[0] is None
    assert echoed.logprobs.token_logprobs[1:num_prompt] == pytest.approx(expected, abs=1e-9)
    assert echoed.logprobs.tokens == list(prompt) + plain.logprobs.tokens
    offsets = [offset + len(prompt) for offset in plain.logprobs.text_offset]
    assert echoed.logprobs.text_offset == list(range(num_prompt)) + offsets


def test_echo_alone_scores_a_prompt(client: openai.OpenAI) -> None:
    response = complete(client, max_tokens=0, echo=True, logprobs=0)
    [choice] = response.choices
    assert choice.text == PROMPTS[0]
    assert choice.finish_reason == "length"
    assert choice.logprobs.tokens == list(PROMPTS[0])
    assert all(value < 0 for value in choice.logprobs.token_logprobs[1:])
    assert response.usage.completion_tokens == 0
    unscored = complete(client, max_tokens=0, echo=True).choices[0]
    assert (unscored.text, unscored.logprobs) == (PROMPTS[0], None)


STREAMED = {
    "one": {},
    "several": {"prompt": PROMPTS, "n": 2, "temperature": 1.2, "seed": 5},
    "echo": {"echo": True, "n": 2, "prompt": PROMPTS},
    # The second answer is complete before the first has scored the prompt for both.
    "only echo": {"echo": True, "max_tokens": 0, "n": 2, "prompt": "the sea " * 30},
    "stop": {"stop": ["e", "a", "ot"], "max_tokens": 80, "temperature": 1.0, "seed": 6},
}


@pytest.mark.parametrize("logprobs", [None, 2])
@pytest.mark.parametrize("name", STREAMED)
def test_stream_joins_to_the_whole(client: openai.OpenAI, name: str, logprobs: int | None) -> None:
    fields = {**GREEDY, **STREAMED[name], "logprobs": logprobs}
    whole = complete(client, **fields)
    options = {"include_usage": True}
    *chunks, last = list(complete(client, **fields, stream=True, stream_options=options))
    assert last.usage.completion_tokens == whole.usage.completion_tokens
    assert len({chunk.id for chunk in chunks}) == 1
    for choice in whole.choices:
        found = joined(chunks, choice.index)
        assert (found["text"], found["finish_reason"]) == (choice.text, choice.finish_reason)
        if logprobs is None:
            assert choice.logprobs is None
            assert not found["logprobs"]
            continue
        expected = choice.logprobs.model_dump()
        assert found["logprobs"]["tokens"] == expected["tokens"]
        assert found["logprobs"]["text_offset"] == expected["text_offset"]
        values, others = found["logprobs"]["token_logprobs"], expected["token_logprobs"]
        assert [value or 0 for value in values] == pytest.approx(
            [value or 0 for value in others], abs=1e-9
        )


def test_stream_says_what_stopped_each_answer(client: openai.OpenAI) -> None:
    fields = {"prompt": [[5, 6, 7], [9, 8]], "max_tokens": 12, "temperature": 0}
    made = complete(client, **fields, extra_body={"return_token_ids": True}).choices
    stops = {"ignore_eos": True, "stop_token_ids": [made[0].token_ids[3]]}
    whole = complete(client, **fields, extra_body=stops).choices
    chunks = list(complete(client, **fields, extra_body=stops, stream=True))
    reasons = {c.index: c.stop_reason for chunk in chunks for c in chunk.choices if c.finish_reason}
    assert reasons[0] == made[0].token_ids[3]
    assert reasons == {choice.index: choice.stop_reason for choice in whole}


def test_stream_tells_token_ids_and_steps(client: openai.OpenAI) -> None:
    fields = {**GREEDY, "prompt": PROMPTS[:2], "return_token_ids": True}
    whole = complete(client, **fields)
    options = {"include_steps": True}
    chunks = list(complete(client, **fields, stream=True, stream_options=options))
    for choice in whole.choices:
        assert joined(chunks, choice.index)["token_ids"] == choice.token_ids
        parts = [one.choices[0] for one in chunks if one.choices[0].index == choice.index]
        tokens = [token for part in parts for step in part.steps for token in step["tokens"]]
        assert [token["id"] for token in tokens] == choice.token_ids
        assert "".join(token["text"] for token in tokens) == choice.text
        assert parts[0].prompt_token_ids == choice.prompt_token_ids


def test_prompt_logprobs(client: openai.OpenAI) -> None:
    response = complete(client, **GREEDY, prompt=PROMPTS[:2], prompt_logprobs=1)
    scored = [choice.prompt_logprobs for choice in response.choices]
    assert [place is None for place in scored[0]] == [True] + [False] * (len(PROMPTS[0]) - 1)
    assert scored[1] == [None]


def test_one_prompt_that_is_too_long_stops_all(
    server: RunningServer, client: openai.OpenAI
) -> None:
    before = server.llm.metrics.num_steps
    with pytest.raises(openai.BadRequestError) as caught:
        complete(client, prompt=["a", "b" * 300])
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "prompt")
    with pytest.raises(openai.BadRequestError, match="outside the model's vocabulary"):
        complete(client, prompt=[[2], [96]])
    server.wait_until_idle()
    assert server.llm.metrics.num_steps == before


def test_more_answers_than_the_server_takes(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="asks for 1024 answers"):
        complete(client, prompt=["a"] * 64, n=16)
    with pytest.raises(openai.BadRequestError, match="at most 64 prompts"):
        complete(client, prompt=["a"] * 65)


def test_seed_in_a_batch_of_prompts(client: openai.OpenAI) -> None:
    fields = {"temperature": 1.4, "seed": 12, "max_tokens": 30}
    alone = complete(client, **fields).choices[0].text
    crowd = complete(client, **fields, prompt=[*PROMPTS[1:], PROMPTS[0], "x", "y", "z", "w", "v"])
    plain = complete(client, **fields, speculative_config={"method": "none"})
    assert alone == crowd.choices[2].text == plain.choices[0].text
    assert len({choice.text for choice in crowd.choices}) == 8
