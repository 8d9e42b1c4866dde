"""Whether a trained drafter that has yet to read much of a text is worth its reading.

A head that is asked for the first time, or again after a while, reads what has come since before it
drafts, a draft model the whole prompt: as long as several plain steps, in one step. That is spent
once and serves the rest of the answer, so it is held against what the answer may gain.
"""

from __future__ import annotations

from collections.abc import Sequence as List
from itertools import accumulate

from outpace.control.goodput import Ways

COUNTED_ON = 64
"""Output tokens to come that are counted on where the request allows them. Of longer answers as
many as there are: what has gone on for long tends to go on for as long again."""


def tokens_to_come(num_output: int, most: int | None) -> int:
    """Output tokens that are counted on after the first `num_output`, of `most` in all, if that is
    known."""
    expected = max(num_output, COUNTED_ON)
    return expected if most is None else max(min(expected, most - num_output), 0)


def worth_reading(
    ways: List[Ways],
    reading_s: List[float],
    to_come: List[int],
    curve: List[float],
    trained_s: List[float],
    rate: float,
) -> list[Ways]:
    """The same ways, but those of the trained drafter only where what it gains over the output to
    come makes up for its reading.

    reading_s: seconds that each request's text takes to read. to_come: output tokens counted on.
    curve, trained_s, rate: see `plan`.
    """
    return [
        each
        if not seconds or _gain(each.trained, left, curve, trained_s, rate) > rate * seconds
        else Ways(each.lookup, [])
        for each, seconds, left in zip(ways, reading_s, to_come, strict=True)
    ]


def _gain(
    ladder: List[float], to_come: int, curve: List[float], trained_s: List[float], rate: float
) -> float:
    """Tokens that are gained over the next `to_come` by drafts of the best length."""
    best = 0.0
    for n, tokens in enumerate(accumulate(ladder), 1):
        a_step = tokens - rate * (curve[n] - curve[0] + trained_s[n])
        best = max(best, a_step * to_come / (1 + tokens))
    return best
