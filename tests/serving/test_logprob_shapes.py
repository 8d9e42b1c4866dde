"""Bytes of tokens, and log-probabilities in the shapes of OpenAI."""

from __future__ import annotations

from collections.abc import Callable

import tokenizers
from tiny import tiny_tokenizer
from tokenizers import decoders, models

from outpace.models.tokenizer import Tokenizer
from outpace.outputs import Logprob
from outpace.serving.logprobs import (
    LEAST,
    TokenBytes,
    chat_logprobs,
    completion_logprobs,
    prompt_logprobs,
)


def bytes_of(tokenizer: Tokenizer) -> Callable[[int], bytes | None]:
    token_bytes = TokenBytes(tokenizer)
    return lambda token_id: token_bytes(token_id, tokenizer.token_text(token_id))


def test_byte_level_tokens_are_their_bytes() -> None:
    tokenizer = tiny_tokenizer(258)
    token_bytes = bytes_of(tokenizer)
    text = "é€😀 a\n"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert len(ids) == len(text.encode())
    assert b"".join(token_bytes(one) or b"?" for one in ids) == text.encode()
    # Every byte there is, the end and the beginning token aside.
    assert {token_bytes(one) for one in range(2, 258)} == {bytes([byte]) for byte in range(256)}
    assert token_bytes(0) == b"<|end|>"


def test_sentencepiece_tokens_are_their_bytes() -> None:
    vocab = ["<unk>", "<0xE2>", "<0x41>", "▁hello", "hello", "a▁b", "\N{REPLACEMENT CHARACTER}"]
    backend = tokenizers.Tokenizer(
        models.BPE({token: i for i, token in enumerate(vocab)}, [], byte_fallback=True)
    )
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    token_bytes = bytes_of(Tokenizer(backend))
    found = [token_bytes(i) for i in range(1, 6)]
    assert found == [b"\xe2", b"A", b" hello", b"hello", b"a b"]


def test_bytes_that_are_not_known_are_null() -> None:
    class Strange:
        def vocab(self) -> dict[str, int]:
            return {"spelled": 0}

    token_bytes = TokenBytes(Strange())  # type: ignore[arg-type]
    assert token_bytes(0, "\N{REPLACEMENT CHARACTER}") is None
    place = {0: Logprob(-1.0, 1, "\N{REPLACEMENT CHARACTER}")}
    [entry] = chat_logprobs([0], [place], 0, token_bytes)["content"]
    assert entry["bytes"] is None


PLACE = {
    40: Logprob(-3.0, 3, "x"),
    41: Logprob(-1.0, 1, "y"),
    42: Logprob(float("-inf"), 2, "z"),
}


def test_chat_ranks_the_most_probable() -> None:
    token_bytes = TokenBytes(tiny_tokenizer())
    [entry] = chat_logprobs([40], [PLACE], 2, token_bytes)["content"]
    assert (entry["token"], entry["logprob"]) == ("x", -3.0)
    assert [one["token"] for one in entry["top_logprobs"]] == ["y", "z"]
    assert entry["top_logprobs"][1]["logprob"] == LEAST


def test_completion_has_the_chosen_token_beside_the_most_probable() -> None:
    token_bytes = TokenBytes(tiny_tokenizer())
    found = completion_logprobs([40], [PLACE], [7], 1, token_bytes)
    assert found == {
        "tokens": ["x"],
        "token_logprobs": [-3.0],
        "top_logprobs": [{"y": -1.0, "x": -3.0}],
        "text_offset": [7],
    }


def test_first_token_of_a_prompt_has_no_logprob() -> None:
    token_bytes = TokenBytes(tiny_tokenizer())
    found = completion_logprobs([1, 40], [None, PLACE], [0, 1], 0, token_bytes, "<b>")
    assert found["tokens"] == ["<b>", "x"]
    assert found["token_logprobs"] == [None, -3.0]
    assert found["top_logprobs"] == [None, {"x": -3.0}]
    shaped = prompt_logprobs([1, 40], [None, PLACE], 1)
    assert shaped[0] is None
    assert shaped[1] is not None
    assert shaped[1].keys() == {"40", "41"}
    assert shaped[1]["41"] == {"logprob": -1.0, "rank": 1, "decoded_token": "y"}


def test_token_that_is_no_character_is_written_as_bytes() -> None:
    tokenizer = tiny_tokenizer(258)
    [first, *_] = tokenizer.encode("€", add_special_tokens=False)
    place = {first: Logprob(-1.0, 1, tokenizer.token_text(first))}
    found = completion_logprobs([first], [place], [0], 0, TokenBytes(tokenizer))
    assert found["tokens"] == ["bytes:\\xe2"]
