"""Log-probabilities in the shapes of OpenAI and vLLM."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from outpace.engine.fold import REPLACEMENT
from outpace.models.tokenizer import Tokenizer
from outpace.outputs import Logprob

LEAST = -9999.0
"""What OpenAI says instead of minus infinity, which JSON does not have."""

_WORD_START = "\N{LOWER ONE EIGHTH BLOCK}"  # a space, as SentencePiece spells it
_BYTE_TOKEN = re.compile("<0x([0-9A-F]{2})>")


class TokenBytes:
    """The bytes of each token, also of those that are no whole characters."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._spelled = {token_id: token for token, token_id in tokenizer.vocab().items()}

    def __call__(self, token_id: int, text: str) -> bytes | None:
        """The bytes of a token whose text (`Tokenizer.token_text`) is `text`; None if its spelling
        does not say which bytes a U+FFFD stands for."""
        spelled = self._spelled.get(token_id, "")
        spaced = spelled.replace(_WORD_START, " ")
        # Alone, such a token loses the space that it has inside a text.
        if text != spelled and spaced.removeprefix(" ") == text:
            return spaced.encode()
        if REPLACEMENT not in text:
            return text.encode()
        for found in (_fallback_byte(spelled), _byte_level(spelled)):
            if found is not None and found.decode(errors="replace") == text:
                return found
        return None


def _fallback_byte(spelled: str) -> bytes | None:
    match = _BYTE_TOKEN.fullmatch(spelled)
    return bytes([int(match[1], 16)]) if match else None


def _byte_level(spelled: str) -> bytes | None:
    """What the spelling of byte-level BPE (GPT-2's) stands for."""
    if not all(char in _BYTES for char in spelled):
        return None
    return bytes(_BYTES[char] for char in spelled)


def _spelling() -> dict[str, int]:
    """Character -> byte: printable ones of Latin-1 stand for themselves, the others for the
    characters from U+0100 on, in order."""
    as_they_are = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(as_they_are)]
    table = {chr(byte): byte for byte in as_they_are}
    return table | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTES = _spelling()


def chat_logprobs(
    token_ids: Sequence[int],
    logprobs: Sequence[Mapping[int, Logprob]],
    num_top: int,
    token_bytes: TokenBytes,
) -> dict[str, Any]:
    """The `logprobs` of a chat choice: one entry per token, each with the `num_top` most probable
    tokens at its place, the most probable first. token is text, bytes are exact (see
    `TokenBytes`)."""

    def entry(token_id: int, logprob: Logprob) -> dict[str, Any]:
        found = token_bytes(token_id, logprob.decoded_token)
        return {
            "token": logprob.decoded_token,
            "logprob": max(logprob.logprob, LEAST),
            "bytes": None if found is None else list(found),
        }

    content = [
        {
            **entry(token_id, place[token_id]),
            "top_logprobs": [entry(*one) for one in _ranked(place) if one[1].rank <= num_top],
        }
        for token_id, place in zip(token_ids, logprobs, strict=True)
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(
    token_ids: Sequence[int],
    logprobs: Sequence[Mapping[int, Logprob] | None],
    offsets: Sequence[int],
    num_top: int,
    token_bytes: TokenBytes,
    first_text: str = "",
) -> dict[str, Any]:
    """The `logprobs` of a completion choice: at each place the `num_top` most probable tokens, and
    the chosen one if it is not among them.

    offsets: where each token's text begins in the choice's text, in characters. A token that is no
    whole characters is written as OpenAI does it, "bytes:\\xe2\\x82". logprobs may be None for the
    first token of a prompt only, whose text is `first_text`: nothing tells its probability.
    """

    def name(token_id: int, logprob: Logprob) -> str:
        text = logprob.decoded_token
        found = token_bytes(token_id, text) if REPLACEMENT in text else None
        return text if found is None else "bytes:" + "".join(f"\\x{byte:02x}" for byte in found)

    tokens: list[str] = []
    values: list[float | None] = []
    tops: list[dict[str, float] | None] = []
    for token_id, place in zip(token_ids, logprobs, strict=True):
        if place is None:
            tokens.append(first_text)
            values.append(None)
            tops.append(None)
            continue
        tokens.append(name(token_id, place[token_id]))
        values.append(max(place[token_id].logprob, LEAST))
        top: dict[str, float] = {}
        for other, logprob in _ranked(place):
            if logprob.rank <= num_top or other == token_id:
                # Of tokens with the same text the most probable one counts.
                top.setdefault(name(other, logprob), max(logprob.logprob, LEAST))
        tops.append(top)
    return {
        "tokens": tokens,
        "token_logprobs": values,
        "top_logprobs": tops,
        "text_offset": list(offsets),
    }


def prompt_logprobs(
    token_ids: Sequence[int], places: Sequence[Mapping[int, Logprob] | None], num_top: int
) -> list[dict[str, dict[str, Any]] | None]:
    """Those of a prompt in vLLM's shape: by token id; None for the first token."""

    def shape(logprob: Logprob) -> dict[str, Any]:
        return {
            "logprob": max(logprob.logprob, LEAST),
            "rank": logprob.rank,
            "decoded_token": logprob.decoded_token,
        }

    return [
        None
        if place is None
        else {
            str(other): shape(logprob)
            for other, logprob in place.items()
            if logprob.rank <= num_top or other == token_id
        }
        for token_id, place in zip(token_ids, places, strict=True)
    ]


def _ranked(place: Mapping[int, Logprob]) -> list[tuple[int, Logprob]]:
    return sorted(place.items(), key=lambda item: item[1].rank)
