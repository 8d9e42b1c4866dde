"""POST /v1/chat/completions against the engine it stands on, through the official client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import openai
import pytest
from servers import RunningServer, serving, tiny_llm
from tiny import tiny_model

from outpace import SamplingParams
from outpace.outputs import CompletionOutput

# A vocabulary of all bytes: any JSON can be written, and characters fall into several tokens.
MODEL = tiny_model(vocab_size=258, seed=3, scale=0.7, max_len=1024)
MESSAGES: list[Any] = [{"role": "user", "content": "Grüße, 2 €?"}]
GREEDY = {"temperature": 0, "max_tokens": 24}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with serving(tiny_llm(model=MODEL), served_model_names=("tiny", "alias")) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as made:
        yield made


def answer_of(server: RunningServer, **params: Any) -> CompletionOutput:
    """What the engine itself answers to MESSAGES."""
    return server.llm.chat(MESSAGES, SamplingParams(**params))[0].outputs[0]


def chat(client: openai.OpenAI, **fields: Any) -> Any:
    extra = {key: fields.pop(key) for key in list(fields) if key in EXTRA}
    values = {"model": "tiny", "messages": MESSAGES, "extra_body": extra} | fields
    return client.chat.completions.create(**values)


EXTRA = ("return_token_ids", "speculative_config", "allowed_token_ids", "bad_words", "guided_regex")


def joined(chunks: list[Any], index: int = 0) -> dict[str, Any]:
    """What a stream's chunks say of one choice."""
    choices = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
    logprobs = [choice.logprobs for choice in choices if choice.logprobs is not None]
    reasons = [choice.finish_reason for choice in choices]
    assert choices[0].delta.role == "assistant"
    assert set(reasons[:-1]) == {None}
    return {
        "text": "".join(choice.delta.content or "" for choice in choices),
        "logprobs": [entry.model_dump() for one in logprobs for entry in one.content],
        "token_ids": [one for c in choices for one in getattr(c, "token_ids", None) or ()],
        "finish_reason": reasons[-1],
        "steps": [one for c in choices for one in getattr(c, "steps", None) or ()],
    }


def test_answer_is_the_engines(server: RunningServer, client: openai.OpenAI) -> None:
    expected = answer_of(server, **GREEDY, logprobs=3)
    response = chat(client, **GREEDY, logprobs=True, top_logprobs=3, return_token_ids=True)
    [choice] = response.choices
    assert (choice.message.role, choice.message.content) == ("assistant", expected.text)
    assert choice.message.refusal is None
    assert (choice.finish_reason, choice.token_ids) == ("length", expected.token_ids)
    assert response.id.startswith("chatcmpl-")
    assert (response.object, response.model) == ("chat.completion", "tiny")
    prompt_ids = response.prompt_token_ids
    assert prompt_ids == server.llm.chat(MESSAGES, SamplingParams(**GREEDY))[0].prompt_token_ids

    assert expected.logprobs is not None
    assert choice.logprobs is not None
    tokenizer = server.llm.tokenizer
    for entry, token_id, place in zip(
        choice.logprobs.content, expected.token_ids, expected.logprobs, strict=True
    ):
        assert entry.token == tokenizer.token_text(token_id)
        assert entry.logprob == pytest.approx(place[token_id].logprob, abs=1e-9)
        ranked = sorted((one.rank, one.logprob) for one in place.values())[:3]
        found = [one.logprob for one in entry.top_logprobs]
        assert found == pytest.approx([logprob for _, logprob in ranked], abs=1e-9)
    written = bytes(byte for entry in choice.logprobs.content for byte in entry.bytes)
    assert written.decode(errors="replace") == expected.text


def test_usage_counts_what_the_engine_did(client: openai.OpenAI) -> None:
    response = chat(client, **GREEDY, n=2, return_token_ids=True)
    usage = response.usage
    num_prompt = len(response.prompt_token_ids)
    assert (usage.prompt_tokens, usage.completion_tokens) == (num_prompt, 48)
    assert usage.total_tokens == num_prompt + 48
    details = usage.completion_tokens_details
    told = usage.speculation
    assert told["method"] == "ngram"
    assert details.accepted_prediction_tokens == told["num_accepted_tokens"]
    rejected = told["num_draft_tokens"] - told["num_accepted_tokens"]
    assert details.rejected_prediction_tokens == rejected
    assert told["num_target_passes"] == 48 - told["num_accepted_tokens"]
    assert sum(told["drafted_per_position"]) == told["num_draft_tokens"]
    assert sum(told["accepted_per_position"]) == told["num_accepted_tokens"]
    again = chat(client, **GREEDY)
    assert 0 < again.usage.prompt_tokens_details.cached_tokens < num_prompt


def test_plain_decoding_on_request(client: openai.OpenAI) -> None:
    drafted = chat(client, **GREEDY)
    plain = chat(client, **GREEDY, speculative_config={"method": "none"})
    assert plain.choices[0].message.content == drafted.choices[0].message.content
    told = plain.usage.speculation
    assert (told["method"], told["num_draft_tokens"], told["num_target_passes"]) == ("none", 0, 24)
    assert told["acceptance_length"] == 1.0


STREAMED = {
    "greedy": {},
    "sampled": {"temperature": 1.5, "seed": 11},
    "three answers": {"n": 3, "temperature": 1.2, "seed": 4},
    "stop": {"stop": ["a", "e", "Q"], "max_tokens": 60, "temperature": 1.0, "seed": 2},
    "no drafts": {"speculative_config": {"method": "none"}, "temperature": 1.0, "seed": 3},
    "nothing": {"max_tokens": 0},
}


@pytest.mark.parametrize("name", STREAMED)
def test_stream_joins_to_the_whole(client: openai.OpenAI, name: str) -> None:
    fields = {**GREEDY, "logprobs": True, "top_logprobs": 1, **STREAMED[name]}
    whole = chat(client, **fields, return_token_ids=True)
    options = {"include_usage": True}
    stream = chat(client, **fields, return_token_ids=True, stream=True, stream_options=options)
    *chunks, last = list(stream)
    assert last.choices == []
    assert last.usage.completion_tokens == whole.usage.completion_tokens
    assert {chunk.usage for chunk in chunks} == {None}
    assert {chunk.id for chunk in chunks} == {last.id}
    assert last.object == "chat.completion.chunk"
    assert chunks[0].prompt_token_ids == whole.prompt_token_ids
    for choice in whole.choices:
        found = joined(chunks, choice.index)
        assert found["text"] == choice.message.content
        assert found["token_ids"] == choice.token_ids
        assert found["finish_reason"] == choice.finish_reason
        expected = [entry.model_dump() for entry in choice.logprobs.content]
        assert [one["token"] for one in found["logprobs"]] == [one["token"] for one in expected]
        values = [one["logprob"] for one in expected]
        assert [one["logprob"] for one in found["logprobs"]] == pytest.approx(values, abs=1e-9)


def test_some_stream_splits_characters(client: openai.OpenAI) -> None:
    """The comparison above would prove little about text that is all ASCII."""
    texts = [chat(client, **{**GREEDY, **STREAMED[name]}).choices[0] for name in STREAMED]
    assert any(not one.message.content.isascii() for one in texts)
    assert any(one.finish_reason == "stop" for one in texts)


def test_stream_without_more_than_text_has_no_empty_parts(client: openai.OpenAI) -> None:
    chunks = list(chat(client, **GREEDY, stream=True))
    first, *middle, last = [chunk.choices[0] for chunk in chunks]
    assert (first.delta.role, first.delta.content) == ("assistant", "")
    assert all(one.delta.content and one.finish_reason is None for one in middle)
    assert (last.delta.content, last.finish_reason) == (None, "length")


def test_stop_string_is_never_shown(server: RunningServer, client: openai.OpenAI) -> None:
    text = answer_of(server, **GREEDY).text
    stop = text[5:8]
    expected = text[: text.index(stop)]
    chunks = list(chat(client, **GREEDY, stop=stop, stream=True))
    found = joined(chunks)
    assert (found["text"], found["finish_reason"]) == (expected, "stop")
    assert chunks[-1].choices[0].stop_reason == stop
    kept = chat(client, **GREEDY, stop=[stop]).choices[0]
    assert kept.stop_reason == stop


def test_steps_tell_where_tokens_come_from(client: openai.OpenAI) -> None:
    options = {"include_usage": True, "include_steps": True}
    fields = {**GREEDY, "max_tokens": 60, "return_token_ids": True}
    *chunks, last = list(chat(client, **fields, stream=True, stream_options=options))
    found = joined(chunks)
    tokens = [token for step in found["steps"] for token in step["tokens"]]
    assert [token["id"] for token in tokens] == found["token_ids"]
    assert "".join(token["text"] for token in tokens) == found["text"]
    told = last.usage.speculation
    assert sum(len(step["drafted"]) for step in found["steps"]) == told["num_draft_tokens"]
    accepted = [token for token in tokens if token["kind"] == "accepted"]
    assert len(accepted) == told["num_accepted_tokens"]
    assert {token["origin"] for token in accepted} <= {"ngram"}
    own = {token["kind"] for token in tokens if token["origin"] == ""}
    assert own <= {"plain", "recovered", "bonus"}
    assert len(found["steps"]) == told["num_target_passes"]
    assert all(step["ms"] >= 0 for step in found["steps"])
    assert told["num_draft_tokens"] > 0


def test_no_steps_without_asking(server: RunningServer) -> None:
    body = {"model": "tiny", "messages": MESSAGES, "stream": True} | GREEDY
    text = server.post("/v1/chat/completions", body).text
    assert "steps" not in text
    assert "usage" not in text
    assert text.endswith("data: [DONE]\n\n")


async def test_seed_gives_one_text_however_it_is_drafted_and_with_whom(
    server: RunningServer,
) -> None:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any") as client:

        async def text(seed: int | None, **extra: Any) -> str:
            response = await client.chat.completions.create(
                model="tiny",
                messages=MESSAGES,
                temperature=1.3,
                max_tokens=32,
                seed=seed,
                extra_body=extra,
            )
            return response.choices[0].message.content or ""

        alone = await text(7)
        plain = await text(7, speculative_config={"method": "none"})
        short = await text(7, speculative_config={"num_speculative_tokens": 1})
        crowd = await asyncio.gather(*(text(seed) for seed in (1, None, 7, 2, None, 3, 7, 4)))
        assert alone == plain == short == crowd[2] == crowd[6]
        assert len({alone, crowd[0], crowd[3], crowd[5]}) == 4


async def test_async_stream(server: RunningServer) -> None:
    expected = answer_of(server, **GREEDY).text
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any") as client:
        stream = await client.chat.completions.create(
            model="tiny", messages=MESSAGES, temperature=0, max_tokens=24, stream=True
        )
        assert joined([chunk async for chunk in stream])["text"] == expected


SCHEMA = {
    "type": "object",
    "properties": {
        "colour": {"enum": ["red", "green"]},
        "size": {"type": "integer", "minimum": 0, "maximum": 99},
        "is_new": {"type": "boolean"},
    },
    "required": ["colour", "size", "is_new"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("temperature", [0, 1])
def test_json_schema_is_always_satisfied(client: openai.OpenAI, temperature: int) -> None:
    response_format = {
        "type": "json_schema",
        "json_schema": {"name": "thing", "schema": SCHEMA, "strict": True},
    }
    fields: Any = {
        "temperature": temperature,
        "response_format": response_format,
        # Spaces without end would be JSON too.
        "logit_bias": {str(token_id): -100 for token_id in _whitespace_ids()},
        "max_tokens": 120,
        "n": 4,
    }
    whole = chat(client, **fields, seed=5)
    chunks = list(chat(client, **fields, seed=5, stream=True))
    for choice in whole.choices:
        assert choice.finish_reason == "stop"
        jsonschema.validate(json.loads(choice.message.content), SCHEMA)
        assert joined(chunks, choice.index)["text"] == choice.message.content


def _whitespace_ids() -> list[int]:
    return [MODEL.tokenizer.encode(one, add_special_tokens=False)[0] for one in " \n\t\r"]


def test_answer_without_the_structure_would_not_do(client: openai.OpenAI) -> None:
    with pytest.raises(ValueError, match="Expecting value"):
        json.loads(chat(client, **GREEDY).choices[0].message.content)


def test_regex(client: openai.OpenAI) -> None:
    response = chat(client, **GREEDY, guided_regex="[a-c]{3}x")
    text = response.choices[0].message.content
    assert len(text) == 4
    assert set(text[:3]) <= set("abc")
    assert (text[3], response.choices[0].finish_reason) == ("x", "stop")


TOOL: Any = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"a": {"enum": [1, 2]}, "b": {"enum": [1, 2]}},
            "required": ["a", "b"],
            "additionalProperties": False,
        },
    },
}


def test_forced_call(client: openai.OpenAI) -> None:
    fields: Any = {
        "tools": [TOOL],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "temperature": 1,
        "seed": 9,
        "max_tokens": 200,
        "logit_bias": {str(token_id): -100 for token_id in _whitespace_ids()},
    }
    whole = chat(client, **fields)
    [choice] = whole.choices
    assert choice.finish_reason == "tool_calls"
    [call] = choice.message.tool_calls
    assert call.function.name == "add"
    jsonschema.validate(json.loads(call.function.arguments), TOOL["function"]["parameters"])

    options = {"include_steps": True}
    chunks = list(chat(client, **fields, logprobs=True, stream=True, stream_options=options))
    deltas = [chunk.choices[0].delta for chunk in chunks]
    parts = [one.tool_calls[0] for one in deltas if one.tool_calls]
    assert parts[0].function.name == "add"
    arguments = "".join(part.function.arguments or "" for part in parts)
    assert json.loads(arguments) == json.loads(call.function.arguments)
    found = joined(chunks)
    assert found["finish_reason"] == "tool_calls"
    assert len(found["logprobs"]) == whole.usage.completion_tokens
    tokens = [token for step in found["steps"] for token in step["tokens"]]
    assert len(tokens) == whole.usage.completion_tokens


def test_tools_that_need_not_be_called(client: openai.OpenAI) -> None:
    plain = chat(client, **GREEDY, tools=[TOOL], tool_choice="none")
    assert plain.choices[0].message.content == chat(client, **GREEDY).choices[0].message.content
    shown = chat(client, **GREEDY, tools=[TOOL])
    assert shown.usage.prompt_tokens > plain.usage.prompt_tokens
    assert shown.choices[0].message.tool_calls is None


def test_prompt_without_the_beginning_of_an_answer(server: RunningServer) -> None:
    body = {"model": "tiny", "messages": MESSAGES, "max_tokens": 1, "return_token_ids": True}
    begun, bare = (
        server.post("/v1/chat/completions", body | {"add_generation_prompt": given}).json()
        for given in (True, False)
    )
    start = server.llm.tokenizer.encode("assistant\n", add_special_tokens=False)
    assert begun["prompt_token_ids"] == bare["prompt_token_ids"] + start


def test_developer_is_system_and_parts_are_joined(server: RunningServer) -> None:
    def ids(messages: list[Any]) -> Any:
        body = {"model": "tiny", "messages": messages, "max_tokens": 1, "return_token_ids": True}
        return server.post("/v1/chat/completions", body).json()["prompt_token_ids"]

    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    old = ids([{"role": "system", "content": "ab"}, *MESSAGES])
    assert ids([{"role": "developer", "content": parts}, *MESSAGES]) == old


def test_prompt_logprobs(server: RunningServer) -> None:
    params = SamplingParams(max_tokens=1, prompt_logprobs=1)
    expected = server.llm.chat(MESSAGES, params)[0].prompt_logprobs
    assert expected is not None
    body = {"model": "tiny", "messages": MESSAGES, "max_tokens": 1, "prompt_logprobs": 1}
    found = server.post("/v1/chat/completions", body).json()["prompt_logprobs"]
    assert found[0] is None
    for place, one in zip(found[1:], expected[1:], strict=True):
        assert one is not None
        assert {int(key): value["logprob"] for key, value in place.items()} == pytest.approx(
            {key: value.logprob for key, value in one.items()}, abs=1e-9
        )


def test_both_names_and_the_fingerprint(client: openai.OpenAI) -> None:
    answers = [chat(client, **GREEDY, model=name) for name in ("tiny", "alias")]
    assert [answer.model for answer in answers] == ["tiny", "alias"]
    assert answers[0].system_fingerprint == answers[1].system_fingerprint
    assert answers[0].system_fingerprint.startswith("fp_")


def test_errors_are_openais(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        chat(client, temperature=-1)
    assert (bad.value.param, bad.value.type) == ("temperature", "invalid_request_error")
    with pytest.raises(openai.NotFoundError) as missing:
        chat(client, model="gpt-4")
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as unknown:
        client.chat.completions.create(
            model="tiny", messages=MESSAGES, extra_body={"temprature": 1}
        )
    assert (unknown.value.code, unknown.value.param) == ("unknown_field", "temprature")
    with pytest.raises(openai.BadRequestError) as long:
        chat(client, messages=[{"role": "user", "content": "word " * 300}])
    assert (long.value.code, long.value.param) == ("context_length_exceeded", "messages")
    with pytest.raises(openai.BadRequestError) as method:
        chat(client, speculative_config={"method": "eagle"})
    assert method.value.param == "speculative_config.method"
    with pytest.raises(openai.BadRequestError) as silent:
        chat(client, messages=[{"role": "assistant"}])
    assert silent.value.param == "messages.0.content"
    with pytest.raises(openai.BadRequestError) as grammar:
        chat(client, guided_regex="(")
    assert grammar.value.status_code == 400


# Forbids every token at the second place: only one token may come, but not twice.
DEAD_END = {"allowed_token_ids": [5], "bad_words": [MODEL.tokenizer.token_text(5) * 2]}


def test_request_that_comes_to_a_dead_end_was_at_fault(
    server: RunningServer, client: openai.OpenAI
) -> None:
    with pytest.raises(openai.BadRequestError, match="no token is left"):
        chat(client, **GREEDY, **DEAD_END)
    received: list[Any] = []
    with pytest.raises(openai.APIError, match="no token is left"):
        received.extend(chat(client, **GREEDY, **DEAD_END, stream=True))
    assert received
    body = {"model": "tiny", "messages": MESSAGES, "stream": True} | GREEDY | DEAD_END
    events = server.post("/v1/chat/completions", body).text.strip().split("\n\n")
    error = json.loads(events[-1].removeprefix("data: "))["error"]
    assert error["type"] == "invalid_request_error"
    assert "[DONE]" not in events[-1]
    # Others go on.
    assert chat(client, **GREEDY).choices[0].finish_reason == "length"
