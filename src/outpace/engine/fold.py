"""Output is a fold: one pass over committed tokens, one at a time.

Whatever blocks the tokens arrived in, text, ids, logprobs and finish reason are what a loop
over single tokens would have produced. The first event in token order wins; at one and the
same token a stop comes before the length limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from outpace.outputs import Logprob
from outpace.params import SamplingParams

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# A UTF-8 character has at most four bytes, so at most three bytes of an unfinished one are held.
MAX_INCOMPLETE = 3
# Tokens that may wait for a character to complete before the window is split (see `_split`).
MAX_WAITING = 8


class Decoder(Protocol):
    """The one thing asked of a tokenizer here."""

    def decode(self, ids: list[int], /, skip_special_tokens: bool = True) -> str: ...


class IncrementalDecoder:
    """Turns token ids into text, one id at a time, at a cost that does not grow with the text.

    The joined results of `push` and the final `flush` equal `decode` of all ids. A window of
    ids is decoded at each step: the ids whose text was last released, as context (decoders of
    the SentencePiece family treat the first id of a call differently), then the ids still
    waiting for a character to complete.
    """

    def __init__(self, tokenizer: Decoder, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special_tokens
        self._window: list[int] = []
        self._num_context = 0
        self._shown = 0  # characters of the window's text already released
        self._text = ""  # the window's text

    def push(self, token_id: int) -> str:
        """Returns the text that `token_id` made final: "" while a character is incomplete."""
        text = self._decode([*self._window, token_id])
        if text == self._text and self._is_silent(token_id):
            return ""
        self._window.append(token_id)
        self._text = text
        stable = _stable_length(text)
        new = text[self._shown : stable]
        self._shown = max(self._shown, stable)
        if stable == len(text):
            self._drop(self._num_context)
        elif len(self._window) - self._num_context > MAX_WAITING:
            self._split()
        return new

    def flush(self) -> str:
        """Returns what was held back: the replacement character of an unfinished one."""
        new = self._text[self._shown :]
        self._shown = len(self._text)
        return new

    def _drop(self, num_ids: int) -> None:
        """Forget the first ids of the window; what remains was shown and becomes the context."""
        if num_ids:
            del self._window[:num_ids]
            self._text = self._decode(self._window)
            self._shown = len(self._text)
        self._num_context = len(self._window)

    def _split(self) -> None:
        """Bound the window while invalid bytes keep coming.

        A place is safe if the two sides decode to the same text apart as together: a character
        that straddled it would count on both sides. One character covers at most three places.
        """
        for place in range(len(self._window) - 1, 0, -1):
            left = self._decode(self._window[:place])
            right = self._decode(self._window[place:])
            if len(left) <= self._shown and left + right == self._text:
                del self._window[:place]
                self._num_context = 0
                self._shown -= len(left)
                self._text = right
                return

    def _is_silent(self, token_id: int) -> bool:
        # Asked twice over: a decoder that strips a leading space shows one of two spaces.
        return not self._decode([token_id, token_id])

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=self._skip_special)


def _stable_length(text: str) -> int:
    """Length of the part of `text` that no later byte can change."""
    stable = len(text)
    while stable > len(text) - MAX_INCOMPLETE and text[:stable].endswith(REPLACEMENT):
        stable -= 1
    return stable


class OutputFold:
    """The output of one request.

    tokenizer: anything with `decode(ids, skip_special_tokens)`.
    params: `stop`, `stop_token_ids`, `min_tokens`, `ignore_eos`, `include_stop_str_in_output`,
        `skip_special_tokens` and `logprobs` are read. Up to token number min_tokens nothing
        stops the output; a stop string counts if a later token completes it.
    end_token_ids: the model's own end tokens.
    max_tokens: at least 1; the request's limit after the context length was taken into account.

    token_ids, logprobs: all tokens so far, the one that stopped the output included; logprobs
        is None unless asked for.
    finish_reason: "stop", "length", "abort", or None while running.
    stop_reason: the stop string or the stop token id; None for the model's end token.
    """

    def __init__(
        self,
        tokenizer: Decoder,
        params: SamplingParams,
        end_token_ids: frozenset[int],
        max_tokens: int,
    ) -> None:
        assert max_tokens >= 1, "a request for no tokens has no output to fold"
        self.token_ids: list[int] = []
        self.logprobs: list[dict[int, Logprob]] | None = None if params.logprobs is None else []
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None
        self._decoder = IncrementalDecoder(tokenizer, params.skip_special_tokens)
        self._stops = tuple(params.stop)
        self._keep_stop = params.include_stop_str_in_output
        self._end_ids = frozenset() if params.ignore_eos else end_token_ids
        self._stop_ids = frozenset(params.stop_token_ids)
        self._min_tokens, self._max_tokens = params.min_tokens, max_tokens
        self._released: list[str] = []
        self._num_taken = 0
        self._held = ""  # could still become a stop string
        self._num_early = 0  # characters of `_held` from before min_tokens: no stop ends there

    def push(self, token_id: int, logprobs: dict[int, Logprob] | None = None) -> bool:
        """Append one committed token; True when it ended the output. Nothing may follow then."""
        assert self.finish_reason is None, "a token was committed after the end of the output"
        self.token_ids.append(token_id)
        if self.logprobs is not None:
            assert logprobs is not None, "logprobs were asked for but not computed"
            self.logprobs.append(logprobs)
        ends = token_id in self._end_ids or token_id in self._stop_ids
        if ends and not self._is_early:
            self._stop_at_token(token_id)
        elif self._add_text(self._decoder.push(token_id)):
            return True
        elif len(self.token_ids) >= self._max_tokens:
            self.finish("length")
        return self.finish_reason is not None

    def finish(self, reason: str) -> None:
        """End the output for a reason that no token gives; the first reason given stands."""
        if self.finish_reason is None and not self._add_text(self._decoder.flush()):
            self._end(reason)

    def abort(self) -> None:
        """End the output because the request was cancelled."""
        self.finish("abort")

    def take_delta(self) -> str:
        """Returns the text that became safe to show since the last call.

        Incomplete characters and text that could still become a stop string wait; when the
        output has ended nothing does. The joined deltas are `text`.
        """
        new = self._released[self._num_taken :]
        self._num_taken = len(self._released)
        return "".join(new)

    @property
    def text(self) -> str:
        """All text so far, held back or not; incomplete characters only after the end."""
        return "".join(self._released) + self._held

    @property
    def _is_early(self) -> bool:
        return len(self.token_ids) <= self._min_tokens

    def _stop_at_token(self, token_id: int) -> None:
        own_text = self._decoder.push(token_id) if self._keep_stop else ""
        if not self._add_text(own_text + self._decoder.flush()):
            self._end("stop", None if token_id in self._end_ids else token_id)

    def _add_text(self, new: str) -> bool:
        """Search and release text; True when it completed a stop string, which ends the output.

        A match must start within what is held, because at each earlier moment its beginning
        was the beginning of a stop string.
        """
        text = self._held + new
        if self._is_early:
            self._num_early = len(text)
        match = find_first_stop(text, self._stops, self._num_early)
        if match is not None:
            start, stop = match
            self._released.append(text[: start + len(stop) if self._keep_stop else start])
            self._held = ""
            self.finish_reason, self.stop_reason = "stop", stop
            return True
        safe = len(text) - len_possible_stop(text, self._stops)
        if safe:
            self._released.append(text[:safe])
        self._held = text[safe:]
        self._num_early = max(self._num_early - safe, 0)
        return False

    def _end(self, reason: str, stop_reason: int | str | None = None) -> None:
        self._released.append(self._held)
        self._held = ""
        self.finish_reason, self.stop_reason = reason, stop_reason


def find_first_stop(text: str, stops: Sequence[str], num_early: int = 0) -> tuple[int, str] | None:
    """Where the stop string that is completed first starts, and which it is.

    Those completed within the first `num_early` characters do not count. Of several completed by
    the same character the longest wins, so the answer does not depend on how the text was cut
    into tokens.
    """
    found = [
        (start + len(stop), start, stop)
        for stop in stops
        if (start := text.find(stop, max(0, num_early - len(stop) + 1))) >= 0
    ]
    if not found:
        return None
    _, start, stop = min(found)
    return start, stop


def len_possible_stop(text: str, stops: Sequence[str]) -> int:
    """Length of the longest suffix of `text` with which some longer stop string begins."""
    longest = 0
    for stop in stops:
        start = text.find(stop[0], max(0, len(text) - len(stop) + 1))
        while start >= 0:
            if stop.startswith(text[start:]):
                longest = max(longest, len(text) - start)
                break
            start = text.find(stop[0], start + 1)
    return longest
