"""Request bodies: what is taken, and in which words the rest is refused."""

from __future__ import annotations

from typing import Any

import pytest

from outpace.serving.errors import ApiError
from outpace.serving.protocol import parse as parsing
from outpace.serving.protocol.chat import ChatRequest
from outpace.serving.protocol.completions import CompletionRequest
from outpace.serving.protocol.parse import parse
from outpace.serving.protocol.tokens import TokenizeRequest

USER = {"role": "user", "content": "hello"}


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [USER]} | fields


def message(content: Any, **fields: Any) -> dict[str, Any]:
    return chat(messages=[{"role": "user", "content": content} | fields])


def completion(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "prompt": "hello"} | fields


def refusal(model: Any, body: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse(model, body)
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        (chat(temperature="1"), "temperature", "invalid_type"),
        (chat(temperature=True), "temperature", "invalid_type"),
        (chat(temperature=10**400), "temperature", "invalid_type"),
        (chat(temperature=float("inf")), "temperature", "invalid_value"),
        (chat(n=True), "n", "invalid_type"),
        (chat(n=1.0), "n", "invalid_type"),
        (chat(n="1"), "n", "invalid_type"),
        (chat(stream=1), "stream", "invalid_type"),
        (chat(logprobs=2), "logprobs", "invalid_type"),
        (chat(stop=["a", 3]), "stop.1", "invalid_type"),
        (chat(logit_bias={"5": True}), "logit_bias.5", "invalid_type"),
        (chat(logit_bias={"x": 1}), "logit_bias.x", "invalid_value"),
        (chat(logit_bias={"٣": 1}), "logit_bias.٣", "invalid_value"),
        (chat(stop_token_ids=[-1]), "stop_token_ids.0", "invalid_value"),
        (chat(messages=[]), "messages", "invalid_value"),
        (chat(messages=[{"role": "king", "content": ""}]), "messages.0.role", "invalid_value"),
        (chat(messages=[{"content": ""}]), "messages.0.role", "invalid_value"),
        (chat(messages=[{"role": "user"}]), "messages.0.content", "missing_required_parameter"),
        (message(5), "messages.0.content", "invalid_type"),
        (message(None), "messages.0.content", "invalid_type"),
        (message([{"type": "text", "text": 5}]), "messages.0.content.0.text", "invalid_type"),
        (message([{"type": "image_url"}]), "messages.0.content", "unsupported_parameter"),
        (message([{"type": "input_audio"}]), "messages.0.content", "unsupported_parameter"),
        (message("", name="x"), "messages.0.name", "unsupported_parameter"),
        (message("", words=1), "messages.0.words", "unknown_field"),
        (chat(response_format={"type": "xml"}), "response_format.type", "invalid_value"),
        (
            chat(response_format={"type": "json_schema", "json_schema": {"name": "x"}}),
            "response_format.json_schema.schema",
            "missing_required_parameter",
        ),
        (chat(tool_choice="some"), "tool_choice", "invalid_value"),
        (chat(audio={}), "audio", "unsupported_parameter"),
        (chat(store=True), "store", "unsupported_parameter"),
        (chat(store=0), "store", "unsupported_parameter"),
        (chat(service_tier="flex"), "service_tier", "unsupported_parameter"),
        (chat(modalities=["text", "audio"]), "modalities", "unsupported_parameter"),
        (chat(prediction={"type": "content"}), "prediction", "unsupported_parameter"),
        (chat(metadata={"a": 1}), "metadata.a", "invalid_type"),
        (chat(cache_salt=""), "cache_salt", "invalid_value"),
        ({"messages": [USER]}, "model", "missing_required_parameter"),
    ],
)
def test_chat_body_is_refused_where_it_is_wrong(body: Any, param: str, code: str) -> None:
    error = refusal(ChatRequest, body)
    assert (error.param, error.code, error.type) == (param, code, "invalid_request_error")
    assert param in error.message


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        (completion(prompt=None), "prompt", "invalid_type"),
        (completion(prompt={}), "prompt", "invalid_type"),
        (completion(prompt=[]), "prompt", "invalid_value"),
        (completion(prompt=[1, "a"]), "prompt.1", "invalid_type"),
        (completion(prompt=[1, True]), "prompt.1", "invalid_type"),
        (completion(prompt=["a", 1]), "prompt.1", "invalid_type"),
        (completion(prompt=[[1], []]), "prompt.1", "invalid_value"),
        (completion(prompt=[[1], [1.5]]), "prompt.1.0", "invalid_type"),
        (completion(best_of=2), "best_of", "unsupported_parameter"),
        (completion(suffix=""), "suffix", "unsupported_parameter"),
        (completion(logprobs=True), "logprobs", "invalid_type"),
        (completion(messages=[USER]), "messages", "unknown_field"),
    ],
)
def test_completion_body_is_refused_where_it_is_wrong(body: Any, param: str, code: str) -> None:
    error = refusal(CompletionRequest, body)
    assert (error.param, error.code) == (param, code)


def test_unknown_fields_are_all_named_with_what_was_meant() -> None:
    error = refusal(ChatRequest, message("", contents="a") | {"temprature": 1, "qqqq": 2})
    assert error.param == "messages.0.contents"
    assert "'temprature' (did you mean 'temperature'?)" in error.message
    assert "'messages.0.contents' (did you mean 'content'?)" in error.message
    assert "'qqqq'" in error.message
    assert "mean 'q" not in error.message


def test_many_or_long_unknown_fields_make_a_short_message(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up: list[str] = []

    def close_matches(name: str, *args: Any, **named: Any) -> list[str]:
        looked_up.append(name)
        return []

    monkeypatch.setattr(parsing, "get_close_matches", close_matches)
    body = completion(**{f"{i:03}{'x' * 500}": 1 for i in range(300)})
    error = refusal(CompletionRequest, body)
    assert len(error.message) < 2000
    assert "and 290 more" in error.message
    assert len(looked_up) == 10, "a body of many fields would keep the server busy"


def test_what_asks_for_nothing_is_taken() -> None:
    body = chat(
        store=False,
        service_tier="auto",
        modalities=["text"],
        audio=None,
        user="u",
        metadata={"a": "b"},
        reasoning_effort="none",
        functions=None,
        temperature=1,
    )
    request = parse(ChatRequest, body)
    assert request.temperature == 1.0
    assert request.store is None
    assert parse(CompletionRequest, completion(best_of=None, suffix=None)).prompts == ["hello"]


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ["a"]),
        ("", [""]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
    ],
)
def test_each_kind_of_prompt(prompt: Any, prompts: list[Any]) -> None:
    assert parse(CompletionRequest, completion(prompt=prompt)).prompts == prompts


def test_messages_of_every_role() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "system", "content": "a"},
        {"role": "developer", "content": [{"type": "text", "text": "b"}]},
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None},
        {"role": "tool", "tool_call_id": "c", "content": "1"},
        # As the openai client's own message objects come back.
        {"role": "assistant", "content": "d", "annotations": [], "audio": None},
    ]
    request = parse(ChatRequest, chat(messages=messages))
    assert [one.role for one in request.messages] == [one["role"] for one in messages]


@pytest.mark.parametrize("body", [{}, {"prompt": "a", "messages": [USER]}, {"prompt": None}])
def test_tokenize_takes_a_prompt_or_messages(body: Any) -> None:
    assert refusal(TokenizeRequest, body).message == "give either prompt or messages"


@pytest.mark.parametrize("body", [[], "a", None, 5])
def test_body_that_is_no_object(body: Any) -> None:
    assert "must be a JSON object" in refusal(ChatRequest, body).message


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            chat(messages=[{"role": "king", "content": ""}]),
            "messages.0.role must be one of 'system'",
        ),
        (chat(messages=[{"content": ""}]), "messages.0.role is required"),
        (chat(messages=[]), "messages must not be empty"),
        (chat(speculative_config=3), "speculative_config: should be an object, got 3"),
    ],
)
def test_messages_speak_of_json(body: dict[str, Any], said: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse(ChatRequest, body)
    assert caught.value.message.startswith(said)
