"""Sampling parameters: what is refused, by name, and what is put in order."""

from __future__ import annotations

import math
from typing import Any

import pytest

from outpace import SamplingParams
from outpace.errors import OptionError
from outpace.params import StructuredOutputsParams


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            {"repetition_penalty": 0},
            r"repetition_penalty must be a number in \[0.001, 1000\], got 0",
        ),
        ({"repetition_penalty": 1e-50}, r"repetition_penalty must be a number in \[0.001, 1000\]"),
        ({"presence_penalty": 2.5}, r"presence_penalty must be a number in \[-2, 2\], got 2.5"),
        ({"frequency_penalty": math.nan}, r"frequency_penalty must be a number"),
        ({"typical_p": 0}, r"typical_p must be a number in \(0, 1\], got 0"),
        ({"n": 0}, r"n must be a whole number from 1 to 1024, got 0"),
        ({"n": 2.0}, r"n must be a whole number"),
        ({"n": None}, r"n must be a whole number"),
        ({"min_tokens": -1}, r"min_tokens must be a whole number of at least 0"),
        ({"min_tokens": 5, "max_tokens": 4}, r"min_tokens \(5\) must not exceed max_tokens \(4\)"),
        ({"prompt_logprobs": -1}, r"prompt_logprobs must be a whole number of at least 0"),
        ({"allowed_token_ids": []}, r"allowed_token_ids is empty: no token could be generated"),
        ({"allowed_token_ids": [1.5]}, r"allowed_token_ids must be a whole number"),
        ({"bad_words": [""]}, r"bad_words must hold non-empty strings"),
        ({"bad_words": "dog"}, r"bad_words must be a list, got 'dog'"),
        ({"logit_bias": [1]}, r"logit_bias must map token ids to numbers"),
        ({"logit_bias": {"x": 1}}, r"a token id of logit_bias must be a whole number"),
        ({"logit_bias": {5: 101}}, r"logit_bias of token 5 must be a number in \[-100, 100\]"),
        ({"logit_bias": {5: 1, "5": 2}}, r"logit_bias names token 5 twice"),
        ({"logits_processors": [3]}, r"logits_processors must hold functions, got 3"),
        ({"best_of": 2}, r"sampling parameter best_of is not supported; supported: n, "),
        ({"structured_outputs": "a+"}, r"structured_outputs must be StructuredOutputsParams or a"),
        ({"structured_outputs": {"jsn": 1}}, r"structured_outputs key jsn is not supported; supp"),
        (
            {"structured_outputs": {"regex": "a"}, "ignore_eos": True},
            r"ignore_eos=True cannot be combined with structured_outputs",
        ),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        SamplingParams(**asked)


def test_json_spells_the_ids_of_a_bias_as_text() -> None:
    assert SamplingParams(logit_bias={"50": -1}).logit_bias == {50: -1.0}


def test_lists_become_tuples() -> None:
    params = SamplingParams(bad_words=["a"], allowed_token_ids=[3, 4, 3], stop="x")
    assert (params.bad_words, params.allowed_token_ids, params.stop) == (("a",), (3, 4), ("x",))


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({}, r"takes exactly one of json, regex, choice, grammar, json_object, got none"),
        ({"json_object": False}, r"exactly one of .*, got none"),
        ({"json": "{}", "regex": "a"}, r"exactly one of .*, got json and regex"),
        ({"json": True}, r"json must be a JSON schema, a mapping or text, got True"),
        ({"json": ["a"]}, r"json must be a JSON schema"),
        ({"regex": 3}, r"regex must be text, got 3"),
        ({"grammar": {"a": 1}}, r"grammar must be text"),
        ({"choice": "ab"}, r"choice must be a list, got 'ab'"),
        ({"choice": []}, r"choice is empty: no answer would be possible"),
        ({"choice": ["a", ""]}, r"choice must hold non-empty strings, got ''"),
        ({"choice": ["a", 1]}, r"choice must hold non-empty strings, got 1"),
        ({"json_object": "yes"}, r"json_object must be true or false"),
        ({"json_object": True, "disable_any_whitespace": 1}, r"disable_any_whitespace must be"),
        ({"regex": "a", "disable_any_whitespace": True}, r"about JSON and has no meaning for reg"),
        ({"structural_tag": "x"}, r"structured_outputs key structural_tag is not supported"),
    ],
)
def test_structures_that_make_no_sense_are_refused(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        StructuredOutputsParams(**asked)


def test_a_structure_may_be_given_as_a_mapping() -> None:
    asked = StructuredOutputsParams(choice=["a", "b"])
    assert SamplingParams(structured_outputs={"choice": ["a", "b"]}).structured_outputs == asked
    assert SamplingParams(structured_outputs=asked).structured_outputs is asked
    assert (asked.kind, asked.choice) == ("choice", ("a", "b"))
