"""What an engine's events mean for one answer that is being streamed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from outpace.engine.fold import REPLACEMENT, IncrementalDecoder
from outpace.models.tokenizer import Tokenizer
from outpace.outputs import Event


@dataclass(frozen=True, slots=True)
class Piece:
    """What a token made final of an answer's text ("" where it left a character unfinished), and
    where the token's own text begins in it, in characters."""

    text: str
    offset: int


class TokenTexts:
    """The pieces of one answer's tokens. Their texts, joined, are the answer without regard to
    stop strings. start: characters that stand before the answer."""

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool, start: int = 0) -> None:
        self._tokenizer = tokenizer
        self._decoder = IncrementalDecoder(tokenizer, skip_special_tokens)
        self._length = start

    def push(self, token_ids: Sequence[int], *, is_last: bool) -> list[Piece]:
        """The pieces of the next tokens. is_last: the answer has ended with them."""
        pieces = []
        for place, token_id in enumerate(token_ids, start=1):
            text = self._decoder.push(token_id)
            if is_last and place == len(token_ids):
                text += self._decoder.flush()
            own = self._tokenizer.token_text(token_id)
            # Bytes that no character came of may stand in the piece as well, before the token.
            is_whole = REPLACEMENT not in own and text.endswith(own)
            before = len(text) - len(own) if is_whole else 0
            pieces.append(Piece(text, self._length + before))
            self._length += len(text)
        return pieces


class StepLog:
    """The engine's steps of one answer, as `stream_options.include_steps` shows them.

    A token's origin is the drafter it came from ("" for the target's own), its kind one of
    `Event.kinds`, its text what it made final.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._newest = time.perf_counter()

    def entry(self, event: Event, pieces: Sequence[Piece]) -> dict[str, Any]:
        """The event as a step; ms: milliseconds since the one before it, or since the start."""
        before, self._newest = self._newest, time.perf_counter()
        tokens = [
            {"id": token_id, "text": piece.text, "kind": kind, "origin": origin}
            for token_id, piece, kind, origin in zip(
                event.token_ids, pieces, event.kinds, event.origins, strict=True
            )
        ]
        drafted = [
            {"id": token_id, "text": self._tokenizer.token_text(token_id)}
            for token_id in event.drafted
        ]
        ms = round(1000 * (self._newest - before), 3)
        return {"tokens": tokens, "drafted": drafted, "ms": ms}
