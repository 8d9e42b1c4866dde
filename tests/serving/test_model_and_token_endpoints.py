"""GET /v1/models, POST /tokenize and /detokenize."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from servers import RunningServer, serving

NAMES = ("tiny", "org/name")


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with serving(served_model_names=NAMES) as running:
        yield running


def test_models(server: RunningServer) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any") as client:
        models = client.models.list().data
        assert [model.id for model in models] == list(NAMES)
        assert {(model.object, model.owned_by) for model in models} == {("model", "outpace")}
        one = client.models.retrieve("org/name")
        assert one == models[1]
        assert one.max_model_len == 256  # type: ignore[attr-defined]
        methods = {"default": "ngram", "methods": {"ngram": 3}}
        assert one.speculation == methods  # type: ignore[attr-defined]
        with pytest.raises(openai.NotFoundError) as caught:
            client.models.retrieve("other")
        assert caught.value.code == "model_not_found"


def test_name_of_the_model_is_its_own_by_default() -> None:
    with serving() as server:
        [model] = server.client.get("/v1/models").json()["data"]
        assert model["id"] == server.llm.model_name


def test_tokenize_a_prompt(server: RunningServer) -> None:
    tokenizer = server.llm.tokenizer
    answer = server.post("/tokenize", {"model": "tiny", "prompt": "hé!"}).json()
    assert answer["tokens"] == tokenizer.encode("hé!")
    assert answer["count"] == len(answer["tokens"]) == 4
    assert answer["max_model_len"] == 256
    assert answer["token_strs"] is None
    texts = server.post("/tokenize", {"prompt": "ab", "return_token_strs": True}).json()
    assert texts["token_strs"] == ["a", "b"]
    assert server.post("/tokenize", {"prompt": ""}).json()["tokens"] == []


def test_tokenize_a_conversation(server: RunningServer) -> None:
    tokenizer = server.llm.tokenizer
    messages = [{"role": "user", "content": "hi"}]

    def tokens(**fields: Any) -> Any:
        return server.post("/tokenize", {"messages": messages} | fields).json()["tokens"]

    def encoded(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False))

    assert tokens() == encoded(tokenizer.apply_chat_template(messages))
    bare = encoded(tokenizer.apply_chat_template(messages, add_generation_prompt=False))
    assert tokens(add_generation_prompt=False) == bare
    tool = {"type": "function", "function": {"name": "add"}}
    assert len(tokens(tools=[tool])) > len(tokens())


def test_detokenize_turns_it_round(server: RunningServer) -> None:
    for text in ("hello, é €", "<|begin|>a<|end|>", ""):
        tokens = server.post("/tokenize", {"prompt": text}).json()["tokens"]
        assert server.post("/detokenize", {"tokens": tokens}).json() == {"prompt": text}


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/tokenize", {"model": "other", "prompt": "a"}, 404),
        ("/tokenize", {"prompt": 5}, 400),
        ("/tokenize", {"prompt": "a", "more": 1}, 400),
        ("/tokenize", {"messages": [{"role": "tool", "content": "a"}]}, 400),
        ("/detokenize", {"model": "other", "tokens": []}, 404),
        ("/detokenize", {"tokens": [96]}, 400),
        ("/detokenize", {"tokens": [-1]}, 400),
        ("/detokenize", {"tokens": [2**40]}, 400),
        ("/detokenize", {"tokens": "a"}, 400),
        ("/detokenize", {}, 400),
    ],
)
def test_refusals(server: RunningServer, path: str, body: Any, status: int) -> None:
    response = server.post(path, body)
    assert response.status_code == status
    assert response.json()["error"]["message"]
