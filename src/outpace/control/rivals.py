"""How probably each candidate for a position is right where two drafters have a say.

A lookup names one token and claims a probability for it; a head ranks several. What either says is
worth another thing where the other one agrees, where it says something else and where it is silent,
so each of these situations has a calibration of its own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence as List
from enum import Enum
from typing import NamedTuple

from outpace.control.acceptance import KNOTS, Calibration


class Situation(Enum):
    """agreed: both name the token. alone: the head's, the lookup being silent. contested: the
    head's, the lookup naming another. outside: the lookup's, not among those the head ranks."""

    AGREED = "agreed"
    ALONE = "alone"
    CONTESTED = "contested"
    OUTSIDE = "outside"


class Ranked(NamedTuple):
    """A head's likeliest tokens for one position, likeliest first, and their probabilities."""

    token_ids: List[int]
    chances: List[float]


class Candidate(NamedTuple):
    """A token for one position.

    worth: how probably it is right, given that all before it is. claim: what the drafters say of
    that, which is worth so much in this situation.
    """

    token_id: int
    worth: float
    situation: Situation
    claim: float


class _Worths(Calibration):
    def worth(self, seq_id: int, claims: List[float]) -> list[float]:
        """Of each claim by itself how often tokens with such a claim were right."""
        curve = self._curve(seq_id)
        return [_between_knots(curve, claim) for claim in claims]


class Rivals:
    """Learns what candidates are worth, per request and regime, as `Calibration` does."""

    def __init__(self) -> None:
        self._worths = {situation: _Worths() for situation in Situation}

    def open(self, seq_id: int, regime: str) -> None:
        """Begin to learn about a request; `regime`: whose experience it shares."""
        for worths in self._worths.values():
            worths.open(seq_id, regime)

    def release(self, seq_id: int) -> None:
        for worths in self._worths.values():
            worths.release(seq_id)

    def check_integrity(self) -> None:
        for worths in self._worths.values():
            worths.check_integrity()

    def candidates(
        self, seq_id: int, ranked: Ranked, told: int | None, claim: float
    ) -> list[Candidate]:
        """The head's tokens in their order, and behind them the lookup's if it is another.

        told: the lookup's token, None if it has none; claim: its probability as the lookup says.
        """
        if told is None:
            return self._weighed(seq_id, Situation.ALONE, ranked.token_ids, ranked.chances)
        found = self._weighed(
            seq_id,
            Situation.CONTESTED,
            ranked.token_ids,
            [chance * (1 - claim) for chance in ranked.chances],
        )
        if told in ranked.token_ids:
            place = ranked.token_ids.index(told)
            agreed = 1 - (1 - claim) * (1 - ranked.chances[place])
            found[place : place + 1] = self._weighed(seq_id, Situation.AGREED, [told], [agreed])
        else:
            outside = claim * (1 - max(ranked.chances, default=0.0))
            found += self._weighed(seq_id, Situation.OUTSIDE, [told], [outside])
        return found

    def _weighed(
        self, seq_id: int, situation: Situation, token_ids: List[int], claims: List[float]
    ) -> list[Candidate]:
        worths = self._worths[situation].worth(seq_id, claims)
        return [
            Candidate(token_id, worth, situation, claim)
            for token_id, worth, claim in zip(token_ids, worths, claims, strict=True)
        ]

    def observe(self, seq_id: int, candidates: List[Candidate], said: int) -> None:
        """Learn that `said` was the token at the position of these candidates."""
        for each in candidates:
            is_right = each.token_id == said
            self._worths[each.situation].observe(seq_id, (each.claim,), int(is_right), False)


def _between_knots(curve: List[float], claim: float) -> float:
    """The curve, given at the knots, at a claim."""
    right = min(bisect_right(KNOTS, claim), len(KNOTS) - 1)
    low, high = KNOTS[right - 1], KNOTS[right]
    share = (claim - low) / (high - low)
    return curve[right - 1] + share * (curve[right] - curve[right - 1])
