"""Whether a trained drafter that has yet to read much of a text is worth its reading.

A head that is asked for the first time, or again after a while, reads what has come since before it
drafts, a draft model the whole prompt: as long as several plain steps, in one step. That is spent
once and serves the rest of the answer, so it is held against what the answer may gain.
"""

from __future__ import annotations

from collections.abc import Sequence as List
from itertools import accumulate

from outpace.control.goodput import Ways
from outpace.types import Sequence

FIRST_GUESS = 64.0
"""Output tokens that an answer is expected to have before any has ended."""
NEWEST_SHARE = 1 / 16
"""What the newest answer weighs in the mean of their lengths."""


class AnswerLengths:
    """How long answers are, by those that have ended."""

    def __init__(self) -> None:
        self._mean = FIRST_GUESS

    def observe(self, num_output: int) -> None:
        """An answer has ended after so many tokens."""
        self._mean += NEWEST_SHARE * (num_output - self._mean)

    def to_come(self, seq: Sequence) -> float:
        """Output tokens that are counted on: what is missing to the mean or, in longer answers, as
        many as there are, since what has gone on for long tends to go on for as long again. No more
        than the request allows."""
        expected = max(self._mean - seq.num_output, float(seq.num_output))
        if seq.max_len is None:
            return expected
        return max(min(expected, seq.max_len - len(seq.tokens)), 0.0)


def worth_reading(
    ways: List[Ways],
    reading_s: List[float],
    to_come: List[float],
    curve: List[float],
    trained_s: List[float],
    rate: float,
) -> list[Ways]:
    """The same ways, but those of the trained drafter only where what it gains over the output to
    come makes up for its reading.

    reading_s: seconds that each request's text takes to read. to_come: output tokens counted on.
    trained_s: what drafting for one request takes, as its share of that for all. curve, rate: see
    `plan`.
    """
    return [
        each
        if not seconds or _gain(each.trained, left, curve, trained_s, rate) > rate * seconds
        else Ways(each.lookup, [])
        for each, seconds, left in zip(ways, reading_s, to_come, strict=True)
    ]


def _gain(
    ladder: List[float], to_come: float, curve: List[float], trained_s: List[float], rate: float
) -> float:
    """Tokens that are gained over the next `to_come` by drafts of the best length."""
    best = 0.0
    for n, tokens in enumerate(accumulate(ladder), 1):
        a_step = tokens - rate * (curve[n] - curve[0] + trained_s[n])
        best = max(best, a_step * to_come / (1 + tokens))
    return best
