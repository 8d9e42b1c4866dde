"""Whatever a request says, the server answers it, or says what is wrong: no 5xx."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from servers import RunningServer, serving, tiny_llm
from tiny import tiny_model

from outpace.serving.protocol.chat import ChatRequest
from outpace.serving.protocol.completions import CompletionRequest
from outpace.serving.protocol.tokens import DetokenizeRequest, TokenizeRequest

# The server, in a thread of its own, may draw random numbers while hypothesis makes a request.
pytestmark = pytest.mark.filterwarnings("ignore:Do not use the `random` module")


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """A short context bounds what any request can cost."""
    model = tiny_model(vocab_size=258, max_len=64, num_layers=1)
    with serving(
        tiny_llm(model=model), served_model_names=("m",), max_n=3, grammar_timeout_s=2
    ) as running:
        yield running
        running.wait_until_idle()


MESSAGES = [{"role": "user", "content": "hi"}]
BASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "/v1/chat/completions": (ChatRequest, {"model": "m", "messages": MESSAGES, "max_tokens": 3}),
    "/v1/completions": (CompletionRequest, {"model": "m", "prompt": "hi", "max_tokens": 3}),
    "/tokenize": (TokenizeRequest, {"prompt": "hi"}),
    "/detokenize": (DetokenizeRequest, {"tokens": [5, 6]}),
}
# Field -> values that are right, at least in some company.
RIGHT: dict[str, list[Any]] = {
    "n": [1, 2, 3],
    "stream": [True, False],
    "stream_options": [{"include_usage": True}, {"include_steps": True, "include_usage": True}],
    "max_tokens": [0, 1, 20, 10**9, None],
    "temperature": [0, 0.5, 5e-324, 1e308, 2],
    "top_p": [1, 0.5, 5e-324],
    "top_k": [-1, 0, 1, 10**12],
    "min_p": [0, 1, 0.3],
    "typical_p": [0.1, 1],
    "repetition_penalty": [0.001, 1000, 1.1],
    "presence_penalty": [-2, 2],
    "frequency_penalty": [-2, 2],
    "seed": [-(2**63), 0, 2**64 - 1],
    "stop": ["a", ["a", "b\n"], ["😀"], []],
    "logit_bias": [{"5": 100, "6": -100}, {}, {"0": 100}],
    "min_tokens": [0, 3, 100],
    "stop_token_ids": [[5, 6], [], list(range(257))],
    "ignore_eos": [True],
    "include_stop_str_in_output": [True],
    "skip_special_tokens": [False],
    "allowed_token_ids": [[5], [0], [5, 6, 7]],
    "bad_words": [["a"], ["aa", "b b"]],
    "prompt_logprobs": [0, 3],
    "structured_outputs": [
        {"regex": "(a|b)*c"},
        {"regex": "("},
        {"choice": ["yes", "no"]},
        {"grammar": "start: start"},
        {"json": {"$ref": "#/nowhere"}},
        {"json": "{"},
        {"json_object": True, "disable_any_whitespace": True},
    ],
    "guided_json": [{"type": "boolean"}, {"type": "nothing"}, {"minLength": -1}],
    "guided_grammar": ["", 'start: "a"+', "root ::= [a-z]+"],
    "cache_salt": ["x"],
    "return_token_ids": [True],
    "speculative_config": [{"method": "none"}, {"num_speculative_tokens": 0}, {}],
    "echo": [True],
    "add_generation_prompt": [False],
    "prompt": [[5, 6], [[5], [6, 7]], ["a", ""], "", [257], [999]],
    "messages": [
        [{"role": "assistant", "content": None}],
        [*MESSAGES, {"role": "tool", "content": "x", "tool_call_id": "c"}],
        [{"role": "developer", "content": [{"type": "text", "text": "\x00"}]}],
    ],
    "tools": [
        [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}],
        [],
    ],
    "tool_choice": [
        "required",
        "none",
        "auto",
        {"type": "function", "function": {"name": "f"}},
    ],
    "parallel_tool_calls": [True, False],
    "response_format": [
        {"type": "text"},
        {"type": "json_object"},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "null"}}},
    ],
    "top_logprobs": [0, 20],
    "logprobs": [True, False, 0, 5],
    "tokens": [[], [0, 257], [258]],
    "return_token_strs": [True],
    "add_special_tokens": [True, False],
}
TEXTS = st.text(max_size=8) | st.sampled_from(["none", "text", "user", "type"])
NUMBERS = st.one_of(
    st.integers(-3, 300), st.sampled_from([0.5, -0.0, 1e308, 2**31, 2**63, 2**64, 10**300])
)
WRONG = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


@st.composite
def requests(draw: Any) -> tuple[str, dict[str, Any]]:
    """A right request with fields that should be right, and sometimes one that may be anything."""
    path = draw(st.sampled_from([*BASES, *list(BASES)[:2]]))
    model, base = BASES[path]
    known = {field.alias or name for name, field in model.model_fields.items()}
    names = draw(st.lists(st.sampled_from(sorted(known & set(RIGHT))), max_size=4, unique=True))
    body = base | {name: draw(st.sampled_from(RIGHT[name])) for name in names}
    if draw(st.integers(0, 3)) == 0:
        body[draw(st.sampled_from(sorted(known)) | TEXTS)] = draw(WRONG)
    return path, body


def check_answer(response: httpx2.Response) -> None:
    """It is an answer of the right shape, or an error of OpenAI's."""
    assert response.status_code < 500, response.text
    if response.headers["content-type"].startswith("text/event-stream"):
        *_, last = response.text.strip().split("\n\n")
        data = last.removeprefix("data: ")
        # An answer that comes to a dead end on the way is the request's own fault.
        if data != "[DONE]":
            assert json.loads(data)["error"]["type"] == "invalid_request_error"
        return
    body = response.json()
    if response.status_code != 200:
        assert set(body["error"]) == {"message", "type", "param", "code"}
        assert 0 < len(body["error"]["message"]) < 3000


QUIETLY = (HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large)


@settings(max_examples=150, deadline=None, suppress_health_check=QUIETLY)
@given(requests())
def test_changed_requests(server: RunningServer, request: tuple[str, dict[str, Any]]) -> None:
    path, body = request
    check_answer(server.post(path, body))


@settings(max_examples=40, deadline=None, suppress_health_check=QUIETLY)
@given(st.sampled_from(list(BASES)), st.binary(max_size=60) | WRONG.map(lambda v: repr(v).encode()))
def test_bodies_that_are_hardly_json(server: RunningServer, path: str, body: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    check_answer(server.client.post(path, content=body, headers=headers))


@pytest.mark.parametrize("path", BASES)
@pytest.mark.parametrize("depth", [60, 100, 100_000])
def test_deep_nesting(server: RunningServer, path: str, depth: int) -> None:
    _, base = BASES[path]
    for field in ("guided_json", "messages", "prompt", "tools", "metadata", "nothing"):
        rest = json.dumps(base | {"zz": 0})[:-1].replace('"zz"', f'"{field}"').rpartition("0")[0]
        body = f"{rest}{'[' * depth}{']' * depth}}}"
        headers = {"Content-Type": "application/json"}
        response = server.client.post(path, content=body, headers=headers)
        check_answer(response)
        assert response.status_code == 400


def test_server_error_would_be_noticed(server: RunningServer) -> None:
    """The checks of this module, on an answer that should fail them."""
    request = httpx2.Request("POST", f"{server.url}/tokenize")
    failed = httpx2.Response(500, json={"error": {}}, request=request)
    with pytest.raises(AssertionError):
        check_answer(failed)


def run_schemathesis(server: RunningServer, max_examples: int) -> int:
    """Send what schemathesis makes of /openapi.json. Returns how many requests it made."""
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    count = 0
    for result in schema.get_all_operations():
        operation = result.ok()

        @settings(
            max_examples=max_examples,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
        )
        @given(operation.as_strategy())
        def send(case: Any) -> None:
            nonlocal count
            count += 1
            response = case.call(base_url=server.url, timeout=30)
            case.validate_response(response, checks=[not_a_server_error])

        send()
    return count


def test_openapi_describes_what_is_served(server: RunningServer) -> None:
    paths = server.client.get("/openapi.json").json()["paths"]
    for path, (model, base) in BASES.items():
        content = paths[path]["post"]["requestBody"]["content"]["application/json"]
        names = {field.alias or name for name, field in model.model_fields.items()}
        assert set(content["schema"]["properties"]) == names
        assert names >= set(base)
    assert "$ref" not in json.dumps(paths["/v1/chat/completions"]["post"]["requestBody"])
    assert {"/v1/models", "/v1/models/{name}"} <= set(paths)


def test_schemathesis_finds_no_server_error(server: RunningServer) -> None:
    assert run_schemathesis(server, max_examples=8) >= 30


@pytest.mark.slow
def test_schemathesis_finds_no_server_error_in_many_requests(server: RunningServer) -> None:
    assert run_schemathesis(server, max_examples=150) >= 300
