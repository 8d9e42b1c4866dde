"""The official `openai` client against the default model: what users do on their first day."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema
import openai
import pytest
from servers import RunningServer, serving

from outpace import LLM, SamplingParams
from outpace.models.load import LoadedModel

pytestmark = pytest.mark.model

NAME = "smollm2-135m"
MESSAGES: list[Any] = [{"role": "user", "content": "Write a line about a café."}]
PLAIN = {"speculative_config": {"method": "none"}}


@pytest.fixture(scope="module")
def server(default_model: Callable[..., LoadedModel]) -> Iterator[RunningServer]:
    llm = LLM(default_model(), max_num_seqs=8, max_model_len=1024)
    with serving(llm, served_model_names=(NAME,)) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as made:
        yield made


def chat(client: openai.OpenAI, **fields: Any) -> Any:
    return client.chat.completions.create(**({"model": NAME, "messages": MESSAGES} | fields))


def test_chat_is_the_engines_answer(server: RunningServer, client: openai.OpenAI) -> None:
    params = SamplingParams(temperature=0, max_tokens=40, logprobs=2)
    expected = server.llm.chat(MESSAGES, params)[0].outputs[0]
    response = chat(client, temperature=0, max_tokens=40, logprobs=True, top_logprobs=2)
    choice = response.choices[0]
    assert choice.message.content == expected.text
    assert choice.finish_reason == expected.finish_reason
    assert expected.logprobs is not None
    places = zip(expected.logprobs, expected.token_ids, strict=True)
    own = [place[token].logprob for place, token in places]
    found = [entry.logprob for entry in choice.logprobs.content]
    assert found == pytest.approx(own, abs=0.05)
    plain = chat(client, temperature=0, max_tokens=40, extra_body=PLAIN)
    assert plain.choices[0].message.content == expected.text


@pytest.mark.parametrize("structure", [None, "[é€😀✨ü ]{8,16}"])
def test_stream_joins_to_the_whole(client: openai.OpenAI, structure: str | None) -> None:
    """The structure makes for characters that are several tokens each."""
    fields: dict[str, Any] = {"temperature": 1.0, "seed": 8, "max_tokens": 48, "n": 2}
    fields |= {"logprobs": True, "extra_body": {"guided_regex": structure}}
    whole = chat(client, **fields)
    options = {"include_usage": True}
    *chunks, last = list(chat(client, **fields, stream=True, stream_options=options))
    assert last.usage.completion_tokens == whole.usage.completion_tokens
    if structure is not None:
        assert not any(choice.message.content.isascii() for choice in whole.choices)
    for choice in whole.choices:
        parts = [one for chunk in chunks for one in chunk.choices if one.index == choice.index]
        assert "".join(one.delta.content or "" for one in parts) == choice.message.content
        tokens = [entry.token for one in parts if one.logprobs for entry in one.logprobs.content]
        assert tokens == [entry.token for entry in choice.logprobs.content]
        assert parts[-1].finish_reason == choice.finish_reason


def test_completion_with_stop(client: openai.OpenAI) -> None:
    fields = {"model": NAME, "prompt": "One, two, three, four,", "temperature": 0}
    text = client.completions.create(**fields, max_tokens=16).choices[0].text
    stop = text[6:9]
    choice = client.completions.create(**fields, max_tokens=16, stop=stop).choices[0]
    assert (choice.text, choice.finish_reason) == (text[: text.index(stop)], "stop")


async def test_seed_gives_one_text_with_any_method_and_any_batch(server: RunningServer) -> None:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any") as client:

        async def text(seed: int, **extra: Any) -> str:
            response = await client.chat.completions.create(
                model=NAME, messages=MESSAGES, seed=seed, max_tokens=24, extra_body=extra
            )
            return response.choices[0].message.content or ""

        auto, plain = await text(7), await text(7, **PLAIN)
        crowd = await asyncio.gather(*(text(seed) for seed in (1, 2, 7, 3, 4, 5, 6, 8)))
        assert auto == plain == crowd[2]
        assert len(set(crowd)) > 1


PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


def test_json_schema(client: openai.OpenAI) -> None:
    schema = {"name": "person", "schema": PERSON, "strict": True}
    response = chat(
        client,
        messages=[{"role": "user", "content": "Invent a person. Answer in JSON."}],
        response_format={"type": "json_schema", "json_schema": schema},
        max_tokens=80,
        seed=1,
        n=2,
    )
    for choice in response.choices:
        assert choice.finish_reason == "stop"
        jsonschema.validate(json.loads(choice.message.content), PERSON)


def test_call_of_a_named_tool(client: openai.OpenAI) -> None:
    tool = {"type": "function", "function": {"name": "save", "parameters": PERSON}}
    response = chat(
        client,
        messages=[{"role": "user", "content": "Save Ada, who is 36."}],
        tools=[tool],
        tool_choice={"type": "function", "function": {"name": "save"}},
        max_tokens=80,
        temperature=0,
    )
    [call] = response.choices[0].message.tool_calls
    assert call.function.name == "save"
    jsonschema.validate(json.loads(call.function.arguments), PERSON)


def test_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        chat(client, extra_body={"max_token": 5})
    assert (bad.value.param, bad.value.code) == ("max_token", "unknown_field")
    assert "max_tokens" in bad.value.message
    with pytest.raises(openai.NotFoundError):
        chat(client, model="gpt-4o")
