"""Structured output of the default model: valid, and the same with every method."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema
import pytest
from plain import plain_llm

from outpace import LLM, SamplingParams
from outpace.errors import OptionError
from outpace.models.load import LoadedModel
from outpace.outputs import RequestOutput

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]

MAX_LEN = 384
SCORE = {"type": "integer", "minimum": 0, "maximum": 99}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "born": {"type": "string", "format": "date"},
        "colour": {"enum": ["red", "green", "light blue"]},
        "scores": {"type": "array", "items": SCORE, "minItems": 1, "maxItems": 2},
    },
    "required": ["name", "born", "colour", "scores"],
    "additionalProperties": False,
}
ORDER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
MESSAGES = [{"role": "user", "content": "Invent a person with a name, a date of birth and scores."}]
STRUCTURES: list[dict[str, Any]] = [
    {"json": SCHEMA, "disable_any_whitespace": True},
    {"json": ORDER},
    {"json_object": True},
    {"regex": r"[A-Z][a-z]{2,9}, (\d{4})-(0[1-9]|1[0-2])"},
    {"choice": ["yes, surely", "yes, perhaps", "no"]},
    {"grammar": 'root ::= item ("," item)* "."\nitem ::= "a" ("b" | "c")? " x"'},
]
METHODS: dict[str, dict[str, Any]] = {
    "ngram": {"method": "ngram", "num_speculative_tokens": 4},
    "eagle3": {"method": "eagle3"},
    "auto": {"method": "auto"},
}


@pytest.fixture(scope="module")
def model(default_model: Callable[..., LoadedModel]) -> LoadedModel:
    return default_model("bfloat16")


# What has no limit of its own may take all the tokens there are.
ENDLESS = [*STRUCTURES[1:3], STRUCTURES[5]]


def asked(structure: dict[str, Any], **way: Any) -> SamplingParams:
    room = 20 if structure in ENDLESS else 80
    return SamplingParams(**{"max_tokens": room, "structured_outputs": structure} | way)


def answers(llm: LLM, **way: Any) -> list[RequestOutput]:
    params = [asked(structure, **way) for structure in STRUCTURES]
    return llm.chat([MESSAGES] * len(params), params)


@pytest.fixture(scope="module")
def plain(model: LoadedModel) -> Iterator[LLM]:
    with plain_llm(model, max_model_len=MAX_LEN, max_num_seqs=6) as llm:
        yield llm


WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "seeded": {"temperature": 1.0, "seed": 4},
    "sampled": {"temperature": 1.0},
}


@pytest.fixture(scope="module")
def expected(plain: LLM) -> dict[str, list[list[int]]]:
    return {
        way: [output.outputs[0].token_ids for output in answers(plain, **WAYS[way])]
        for way in ("greedy", "seeded")
    }


@pytest.mark.parametrize("method", METHODS)
def test_answers_are_valid_and_those_of_plain_decoding(
    method: str, model: LoadedModel, expected: dict[str, list[list[int]]]
) -> None:
    config = METHODS[method]
    with LLM(model, speculative_config=config, max_model_len=MAX_LEN, max_num_seqs=6) as llm:
        for way, values in WAYS.items():
            outputs = answers(llm, **values)
            for structure, output in zip(STRUCTURES, outputs, strict=True):
                assert_valid(structure, output)
                assert output.stats.num_drafter_errors == 0
            if way in expected:
                assert [output.outputs[0].token_ids for output in outputs] == expected[way]
            accepted = [output.stats.num_accepted_tokens for output in outputs]
            assert accepted[0] >= 6  # the keys of the schema at least


def test_plain_answers_are_valid(plain: LLM) -> None:
    outputs = answers(plain, **WAYS["sampled"])
    for structure, output in zip(STRUCTURES, outputs, strict=True):
        assert_valid(structure, output)
        assert output.stats.num_draft_tokens == 0


def assert_valid(structure: dict[str, Any], output: RequestOutput) -> None:
    (answer,) = output.outputs
    text = answer.text
    if answer.finish_reason == "length":
        assert structure in ENDLESS, text
        assert text[0] in "{a"
        return
    assert answer.finish_reason == "stop"
    if "json" in structure or "json_object" in structure:
        value = json.loads(text)
        jsonschema.validate(
            value,
            structure.get("json", {"type": "object"}),
            format_checker=jsonschema.FormatChecker(),
        )
        if structure.get("disable_any_whitespace"):
            assert text == json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    elif "choice" in structure:
        assert text in structure["choice"]
    elif "regex" in structure:
        assert re.fullmatch(structure["regex"], text)
    else:
        assert re.fullmatch(r"a[bc]? x(,a[bc]? x)*\.", text)


def test_several_answers_are_valid_each(model: LoadedModel) -> None:
    config = METHODS["eagle3"]
    with LLM(model, speculative_config=config, max_model_len=MAX_LEN, max_num_seqs=3) as llm:
        params = asked(STRUCTURES[0], temperature=1.2, n=3)
        (output,) = llm.chat(MESSAGES, params)
        texts = {answer.text for answer in output.outputs}
        for text in texts:
            jsonschema.validate(json.loads(text), SCHEMA)
        assert len(texts) == 3
        with pytest.raises(OptionError, match=r"this json cannot be used: Invalid type: nothing"):
            llm.chat(MESSAGES, asked({"json": {"type": "nothing"}}))
        with llm.stream(MESSAGES, asked({"regex": "(ab|ba){90}"}, max_tokens=200)) as stream:
            next(stream)
        assert stream.output.outputs[0].finish_reason == "abort"
