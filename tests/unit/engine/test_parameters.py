"""Sampling parameters against one model's vocabulary."""

from __future__ import annotations

from typing import Any

import pytest
from tiny import tiny_tokenizer
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from outpace.engine.parameters import bad_words_ids, check_for_model
from outpace.errors import OptionError
from outpace.models.tokenizer import Tokenizer
from outpace.params import SamplingParams

ENDS = frozenset({0})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"logit_bias": {3: 1.0, 96: 1.0}}, "logit_bias holds token id 96.*vocabulary of 96"),
        ({"allowed_token_ids": [1, 200]}, "allowed_token_ids holds token id 200"),
        ({"stop_token_ids": [96]}, "stop_token_ids holds token id 96"),
        ({"logprobs": 97}, "logprobs must be at most 96.*got 97"),
        ({"prompt_logprobs": 97}, "prompt_logprobs must be at most 96"),
        (
            {"allowed_token_ids": [0, 4], "stop_token_ids": [4, 5], "min_tokens": 2},
            "no token could be generated",
        ),
    ],
)
def test_what_the_model_cannot_honour_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        check_for_model(SamplingParams(**values), ENDS, 96)


def test_what_it_can_is_not() -> None:
    params = SamplingParams(
        logit_bias={95: 1.0},
        allowed_token_ids=[0, 4, 95],
        stop_token_ids=[4],
        min_tokens=3,
        logprobs=96,
        prompt_logprobs=0,
    )
    check_for_model(params, ENDS, 96)
    check_for_model(SamplingParams(allowed_token_ids=[0]), ENDS, 96)


def word_tokenizer() -> Tokenizer:
    """Byte-level, with a token for "cat" and one for " cat"."""
    spelled = [chr(code) for code in range(ord("a"), ord("z") + 1)] + ["Ġ"]
    merged = ["ca", "cat", "Ġc", "Ġca", "Ġcat"]
    vocab = {token: token_id for token_id, token in enumerate(spelled + merged)}
    merges = [("c", "a"), ("ca", "t"), ("Ġ", "cat")]
    backend = Backend(models.BPE(vocab, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(backend)


def test_words_are_encoded_without_and_with_a_space() -> None:
    tokenizer = word_tokenizer()
    vocab = tokenizer.vocab()
    space, bare, spaced = vocab["Ġ"], vocab["cat"], vocab["Ġcat"]
    assert bad_words_ids(["cat"], tokenizer) == ((bare,), (spaced,))
    assert bad_words_ids([" cat"], tokenizer) == ((bare,), (spaced,))
    assert bad_words_ids(["cat", "cat"], tokenizer) == ((bare,), (spaced,))
    assert bad_words_ids([" "], tokenizer) == ((space,),)
    cats = bad_words_ids(["cats"], tokenizer)
    assert cats == ((bare, vocab["s"]), (spaced, vocab["s"]))
    assert bad_words_ids([], tokenizer) == ()


def test_a_word_without_tokens_is_refused() -> None:
    with pytest.raises(OptionError, match="bad_words holds '日本'"):
        bad_words_ids(["a", "日本"], tiny_tokenizer(60))
