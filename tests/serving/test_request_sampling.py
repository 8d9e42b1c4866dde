"""Fields of requests become sampling parameters, exactly or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from outpace import SamplingParams
from outpace.serving.errors import ApiError
from outpace.serving.protocol.chat import ChatRequest
from outpace.serving.protocol.completions import CompletionRequest
from outpace.serving.protocol.parse import parse
from outpace.serving.sampling import chat_params, completion_params, speculation
from outpace.serving.settings import ServerSettings

SETTINGS = ServerSettings(max_schema_bytes=100, max_regex_chars=10, max_choices=3)
ADVISED = SamplingParams(temperature=0.3, top_p=0.9, repetition_penalty=1.2, max_tokens=7)
USER = {"role": "user", "content": "hello"}
SCHEMA = {"type": "object"}


def of_chat(**fields: Any) -> SamplingParams:
    body = parse(ChatRequest, {"model": "m", "messages": [USER]} | fields)
    return chat_params(body, ADVISED, SETTINGS)


def of_completion(**fields: Any) -> SamplingParams:
    body = parse(CompletionRequest, {"model": "m", "prompt": "hello"} | fields)
    return completion_params(body, ADVISED, SETTINGS)


# Field of both endpoints -> a value that changes something.
SAME = {
    "n": 3,
    "temperature": 0.5,
    "top_p": 0.5,
    "stop": ["a", "b"],
    "seed": 5,
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "top_k": 4,
    "min_p": 0.1,
    "typical_p": 0.8,
    "repetition_penalty": 1.5,
    "min_tokens": 2,
    "stop_token_ids": [4],
    "ignore_eos": True,
    "include_stop_str_in_output": True,
    "skip_special_tokens": False,
    "allowed_token_ids": [3, 4],
    "bad_words": ["x"],
    "prompt_logprobs": 2,
    "logit_bias": {"3": -5},
}


@pytest.mark.parametrize("of", [of_chat, of_completion])
@pytest.mark.parametrize("name", SAME)
def test_each_field_is_applied(of: Any, name: str) -> None:
    value = getattr(of(**{name: SAME[name]}), name)
    expected = {3: -5.0} if name == "logit_bias" else SAME[name]
    assert (list(value) if isinstance(value, tuple) else value) == expected
    assert getattr(of(**{name: None}), name) == getattr(ADVISED, name)


def test_every_sampling_parameter_can_be_asked_for() -> None:
    other = {"max_tokens", "logprobs", "structured_outputs"}
    not_over_http = {"logits_processors"}
    assert set(SamplingParams.__dataclass_fields__) == set(SAME) | other | not_over_http


def test_what_is_not_said_is_what_the_model_advises() -> None:
    params = of_chat(temperature=0.5)
    assert (params.temperature, params.top_p, params.repetition_penalty) == (0.5, 0.9, 1.2)


def test_length_without_a_wish() -> None:
    assert of_chat().max_tokens is None
    assert of_completion().max_tokens == 16
    assert of_completion(max_tokens=0).max_tokens == 0


def test_two_names_of_the_length() -> None:
    assert of_chat(max_tokens=5).max_tokens == 5
    assert of_chat(max_completion_tokens=5).max_tokens == 5
    assert of_chat(max_completion_tokens=5, max_tokens=5).max_tokens == 5
    with pytest.raises(ApiError, match="two names") as caught:
        of_chat(max_completion_tokens=5, max_tokens=6)
    assert caught.value.param == "max_completion_tokens"


def test_logprobs() -> None:
    assert of_chat().logprobs is None
    assert of_chat(logprobs=False).logprobs is None
    assert of_chat(logprobs=True).logprobs == 0
    assert of_chat(logprobs=True, top_logprobs=5).logprobs == 5
    assert of_completion(logprobs=0).logprobs == 0
    echoed = of_completion(logprobs=3, echo=True)
    assert (echoed.logprobs, echoed.prompt_logprobs) == (3, 3)
    assert of_completion(logprobs=3, echo=True, prompt_logprobs=5).prompt_logprobs == 5
    assert of_completion(echo=True).prompt_logprobs is None


@pytest.mark.parametrize(
    ("fields", "kind", "value"),
    [
        ({"response_format": {"type": "json_object"}}, "json_object", True),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": SCHEMA, "strict": True},
                }
            },
            "json",
            SCHEMA,
        ),
        ({"structured_outputs": {"json": SCHEMA}}, "json", SCHEMA),
        ({"structured_outputs": {"json": '{"type": "object"}'}}, "json", '{"type": "object"}'),
        ({"structured_outputs": {"regex": "a+"}}, "regex", "a+"),
        ({"structured_outputs": {"choice": ["a", "b"]}}, "choice", ("a", "b")),
        ({"structured_outputs": {"grammar": 'start: "a"'}}, "grammar", 'start: "a"'),
        ({"structured_outputs": {"json_object": True}}, "json_object", True),
        ({"guided_json": SCHEMA}, "json", SCHEMA),
        ({"guided_regex": "a+"}, "regex", "a+"),
        ({"guided_choice": ["a", "b"]}, "choice", ("a", "b")),
        ({"guided_grammar": 'start: "a"'}, "grammar", 'start: "a"'),
    ],
)
def test_structures(fields: Any, kind: str, value: Any) -> None:
    for params in (of_chat(**fields), of_completion(**fields)):
        assert params.structured_outputs is not None
        assert params.structured_outputs.kind == kind
        assert getattr(params.structured_outputs, kind) == value


def test_text_is_no_structure_and_whitespace_is_asked_for_apart() -> None:
    assert of_chat(response_format={"type": "text"}).structured_outputs is None
    compact = of_chat(structured_outputs={"json": SCHEMA, "disable_any_whitespace": True})
    assert compact.structured_outputs is not None
    assert compact.structured_outputs.disable_any_whitespace


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 17}, "n"),
        ({"n": 0}, "n"),
        ({"n": 10**4000}, "n"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"seed": 2**64}, "seed"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"bad_words": ["a"] * 1025}, "bad_words"),
        ({"stop_token_ids": [1] * 1025}, "stop_token_ids"),
        ({"allowed_token_ids": [1] * (2**18 + 1)}, "allowed_token_ids"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"guided_regex": "a" * 11}, "guided_regex"),
        ({"guided_choice": ["a"] * 4}, "guided_choice"),
        ({"guided_choice": ["a" * 101]}, "guided_choice"),
        ({"guided_grammar": "a" * 101}, "guided_grammar"),
        ({"guided_json": {"a": "a" * 100}}, "guided_json"),
        ({"guided_json": SCHEMA, "guided_regex": "a"}, "guided_regex"),
        (
            {"guided_regex": "a", "response_format": {"type": "json_object"}},
            "guided_regex",
        ),
        ({"structured_outputs": {"json": SCHEMA, "regex": "a"}}, "structured_outputs.regex"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"json_object": False}}, "structured_outputs"),
        ({"structured_outputs": {"disable_any_whitespace": True}}, "structured_outputs"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(fields: Any, param: str) -> None:
    for of in (of_chat, of_completion):
        with pytest.raises(ApiError) as caught:
            of(**fields)
        assert (caught.value.status, caught.value.param) == (400, param)


def test_limits_of_one_endpoint() -> None:
    for of, fields in (
        (of_chat, {"top_logprobs": 5}),
        (of_chat, {"logprobs": True, "top_logprobs": 21}),
        (of_chat, {"logprobs": True, "top_logprobs": -1}),
        (of_completion, {"logprobs": 21}),
        (of_completion, {"prompt": ["a"] * 65}),
    ):
        with pytest.raises(ApiError) as caught:
            of(**fields)
        assert caught.value.status == 400


def test_speculation() -> None:
    def of(**fields: Any) -> Any:
        return speculation(parse(CompletionRequest, {"model": "m", "prompt": "a"} | fields))

    assert of() is True
    assert of(speculative_config={"method": "none"}) == {"method": "none"}
    assert of(speculative_config={"num_speculative_tokens": 2}) == {"num_speculative_tokens": 2}
