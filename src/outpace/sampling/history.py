"""The parameters that look at what a sequence holds already, or at single tokens.

They change logits; what turns logits into a distribution is in `filters`. Under speculation a
position is judged with the tokens it would have behind it if it were reached: the committed ones
and the draft tokens before it. So each position gets what plain decoding would give it there.
"""

from __future__ import annotations

from collections.abc import Sequence as List

import numpy as np
import torch
from jaxtyping import Float, Int

from outpace.errors import OptionError
from outpace.params import LogitsProcessor, SamplingParams
from outpace.types import Sequence

TokenIds = Int[np.ndarray, " n"]


class History:
    """One sequence as its sampling parameters see it, for the positions of one step.

    Holds for as long as the sequence's tokens do not change. `is_neutral`: no parameter here asks
    for anything, so that `processed` returns its argument.
    """

    def __init__(self, seq: Sequence) -> None:
        params = seq.params
        self.params: SamplingParams = params
        self._seq = seq
        self._grammar = seq.grammar
        self._ends = (
            _token_ids([*seq.end_token_ids, *params.stop_token_ids])
            if seq.num_output < params.min_tokens
            else None
        )
        self._allowed = (
            None if params.allowed_token_ids is None else _token_ids(params.allowed_token_ids)
        )
        self._penalises_output = bool(params.presence_penalty or params.frequency_penalty)
        self._penalises = self._penalises_output or params.repetition_penalty != 1.0
        self.is_neutral = not (
            self._penalises
            or self._allowed is not None
            or seq.bad_words_ids
            or self._ends is not None
            or params.logit_bias
            or params.logits_processors
            or self._grammar is not None
        )
        if self._penalises:
            # Only the repetition penalty looks at the prompt, which may be long.
            prompt = seq.tokens[: seq.num_prompt] if params.repetition_penalty != 1.0 else []
            self._prompt = _token_ids(prompt)
            self._output = _token_ids(seq.tokens[seq.num_prompt :])

    def processed(
        self, logits: Float[np.ndarray, " V"], drafted: List[int] = ()
    ) -> Float[np.ndarray, " V"]:
        """The logits after everything but temperature and filters; see `probabilities`.

        Returns `logits` itself if nothing is asked for, a new array otherwise.
        """
        if self.is_neutral:
            return logits
        logits = logits.copy()
        self._allow_only(logits)
        self._forbid_bad_words(logits, drafted)
        self._forbid_ends(logits, len(drafted))
        self._add_bias(logits)
        if self._penalises:
            self._penalise(logits, drafted)
        for processor in self.params.logits_processors:
            logits = self._run(processor, logits, drafted)
        if self._grammar is not None:
            # Last, so that no processor can allow again what it forbids.
            self._grammar.forbid(logits, self._seq.tokens, self._seq.num_prompt, drafted)
        return logits

    def _allow_only(self, logits: Float[np.ndarray, " V"]) -> None:
        if self._allowed is not None:
            allowed = _within(self._allowed, logits)
            kept = logits[allowed]
            logits.fill(-np.inf)
            logits[allowed] = kept

    def _forbid_bad_words(self, logits: Float[np.ndarray, " V"], drafted: List[int]) -> None:
        """Forbid the last token of every word whose other tokens are the newest output."""
        words = self._seq.bad_words_ids
        if not words:
            return
        longest = max(map(len, words)) - 1
        num_kept = min(longest, self._seq.num_output)
        newest = [*self._seq.tokens[len(self._seq.tokens) - num_kept :], *drafted]
        for *beginning, last in words:
            start = len(newest) - len(beginning)
            if start >= 0 and newest[start:] == beginning and last < logits.size:
                logits[last] = -np.inf

    def _forbid_ends(self, logits: Float[np.ndarray, " V"], num_drafted: int) -> None:
        if self._ends is not None and self._seq.num_output + num_drafted < self.params.min_tokens:
            logits[_within(self._ends, logits)] = -np.inf

    def _add_bias(self, logits: Float[np.ndarray, " V"]) -> None:
        for token_id, bias in (self.params.logit_bias or {}).items():
            if token_id < logits.size:
                logits[token_id] += bias

    def _penalise(self, logits: Float[np.ndarray, " V"], drafted: List[int]) -> None:
        """Repetition penalty over prompt and output, then the other two over the output.

        Ids that occur several times write the same value several times: only a frequency needs
        them counted.
        """
        params = self.params
        output = _within(np.concatenate([self._output, _token_ids(drafted)]), logits)
        if params.repetition_penalty != 1.0:
            seen = np.concatenate([_within(self._prompt, logits), output])
            values = logits[seen]
            factor = logits.dtype.type(params.repetition_penalty)
            logits[seen] = np.where(values > 0, values / factor, values * factor)
        if params.frequency_penalty:
            distinct, counts = np.unique(output, return_counts=True)
            logits[distinct] -= (params.frequency_penalty * counts).astype(logits.dtype)
        if params.presence_penalty:
            logits[output] = logits[output] - logits.dtype.type(params.presence_penalty)

    def _run(
        self, processor: LogitsProcessor, logits: Float[np.ndarray, " V"], drafted: List[int]
    ) -> Float[np.ndarray, " V"]:
        name = getattr(processor, "__name__", type(processor).__name__)
        tokens, num_prompt = self._seq.tokens, self._seq.num_prompt
        prompt, output = tokens[:num_prompt], [*tokens[num_prompt:], *drafted]
        given = torch.from_numpy(logits)
        try:
            result = processor(prompt, output, given)
            values = _logits_in(result, given)
        except Exception as error:  # whatever code of the caller's does
            raise OptionError(f"the logits processor {name} failed: {_said(error)}") from error
        if values is None:
            shape = getattr(result, "shape", type(result).__name__)
            raise OptionError(
                f"the logits processor {name} must return a tensor of real numbers, of shape "
                f"{tuple(logits.shape)}, got {getattr(result, 'dtype', '')} {shape}"
            )
        if not values.max() < np.inf:  # also where it is NaN
            raise OptionError(f"the logits processor {name} returned NaN or +inf; forbid with -inf")
        return values


def _logits_in(result: object, given: torch.Tensor) -> Float[np.ndarray, " V"] | None:
    """What a processor returned as an array of our own; None if it is no row of real numbers."""
    if result is given:
        own: Float[np.ndarray, " V"] = given.numpy()
        return own
    if not isinstance(result, torch.Tensor) or result.shape != given.shape:
        return None
    if not result.is_floating_point():
        return None
    # A copy: the next processor may change it in place, and this one may have kept it.
    copy = torch.empty_like(given)
    copy.copy_(result.detach())
    copied: Float[np.ndarray, " V"] = copy.numpy()
    return copied


def _said(error: Exception) -> str:
    try:
        return repr(error)
    except Exception:  # an exception of the caller's own making
        return type(error).__name__


def _token_ids(ids: List[int]) -> TokenIds:
    return np.array(ids, dtype=np.int64)


def _within(ids: TokenIds, logits: Float[np.ndarray, " V"]) -> Int[np.ndarray, " known"]:
    """Those ids that have a logit: drafts may hold any id, and vocabularies may be padded."""
    return ids[(ids >= 0) & (ids < logits.size)]
