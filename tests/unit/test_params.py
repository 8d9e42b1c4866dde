"""Sampling parameters: what is refused, by name, and what is put in order."""

from __future__ import annotations

import math
from typing import Any

import pytest

from outpace import SamplingParams
from outpace.errors import OptionError


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
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        SamplingParams(**asked)


def test_json_spells_the_ids_of_a_bias_as_text() -> None:
    assert SamplingParams(logit_bias={"50": -1}).logit_bias == {50: -1.0}


def test_lists_become_tuples() -> None:
    params = SamplingParams(bad_words=["a"], allowed_token_ids=[3, 4], stop="x")
    assert (params.bad_words, params.allowed_token_ids, params.stop) == (("a",), (3, 4), ("x",))
