"""How probably the next draft tokens are accepted, learned from the drafts that were judged.

Two learners with the same memory, one per drafter. `Acceptance` knows nothing of a draft but how
long it is, and learns the conditional acceptance at each position. `Calibration` is for drafters
that say how likely each of their tokens is, and learns what such a claim is worth.

What a request has shown is little, so it is blended with what all requests of its regime have
shown, and that with what was assumed at first: each level counts as a few observations of the level
above (the mean of a beta distribution whose prior has that weight). All counts decay, so that a
request whose text changes is not judged by its beginning.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence as List
from itertools import pairwise

REQUEST_MEMORY = 30
"""How many of a request's own drafts speak for it: a draft counts 1 - 1/30 of the one after it."""

REGIME_MEMORY = 300
"""The same of all requests of a regime."""

REQUEST_PRIOR, REGIME_PRIOR = 8.0, 4.0
"""How many observations of a request what is known of its regime weighs; and how many of a regime
what was assumed at first does."""

REGIME_HALF_LIFE = 1024
"""Steps of requests that go by without a draft until what is known of their regime counts half:
others may have other texts, and what is thought of a drafter decides whether it is asked again."""

LEAST, MOST = 0.01, 0.99
"""Where a borrowed estimate is held: nothing is certain that was not seen."""


class _Counts:
    """Decayed counts: for each cell how many tokens were judged, and how many of them accepted."""

    __slots__ = ("accepted", "judged", "kept")

    def __init__(self, memory: float, num_cells: int = 0) -> None:
        self.kept = 1 - 1 / memory
        self.judged = [0.0] * num_cells
        self.accepted = [0.0] * num_cells

    def fade(self, kept: float) -> None:
        self.judged = [kept * count for count in self.judged]
        self.accepted = [kept * count for count in self.accepted]

    def extend(self, num_cells: int) -> None:
        missing = [0.0] * (num_cells - len(self.judged))
        self.judged += missing
        self.accepted += missing


class _Regime:
    """What all requests of one sampling regime have shown together."""

    __slots__ = ("counts", "estimates")

    def __init__(self, counts: _Counts) -> None:
        self.counts = counts
        self.estimates: list[float] = []  # empty: to be made anew


class _Learner:
    """The counts of every open request, and of the regimes they belong to."""

    num_cells = 0

    def __init__(self) -> None:
        self._regimes: dict[str, _Regime] = {}
        self._requests: dict[int, tuple[_Counts, _Regime]] = {}

    def open(self, seq_id: int, regime: str) -> None:
        """Begin to learn about a request; `regime`: whose experience it shares."""
        shared = self._regimes.get(regime)
        if shared is None:
            shared = self._regimes[regime] = _Regime(_Counts(REGIME_MEMORY, self.num_cells))
        self._requests[seq_id] = _Counts(REQUEST_MEMORY, self.num_cells), shared

    def release(self, seq_id: int) -> None:
        """Forget a request; its regime keeps what it has shown."""
        self._requests.pop(seq_id, None)

    def fade(self, seq_id: int, kept: float) -> None:
        """Let what the request has shown count `kept` times as much, from 0 to 1. For a request
        that went without drafts for a while: what its text was like says less of what it is."""
        self._requests[seq_id][0].fade(kept)

    def fade_regime(self, seq_id: int, num_steps: int) -> None:
        """Let what the request's regime has shown count less, after so many steps of the request
        without a draft."""
        if num_steps:
            regime = self._requests[seq_id][1]
            regime.counts.fade(0.5 ** (num_steps / REGIME_HALF_LIFE))
            regime.estimates = []

    def check_integrity(self) -> None:
        assert not self._requests, f"acceptance kept for sequences {sorted(self._requests)}"


class Acceptance(_Learner):
    """Conditional acceptance at each position of a draft."""

    def __init__(self, base: List[float] = (0.5,)) -> None:
        """base: conditional acceptance per position assumed at first; the last one goes on."""
        super().__init__()
        self._base = list(base)
        assert self._base, "no acceptance assumed"

    def ladder(self, seq_id: int, num_levels: int) -> list[float]:
        """For each of the first `num_levels` positions the probability that the draft is accepted
        up to it and including it; never increasing."""
        counts, regime = self._requests[seq_id]
        shared = regime.estimates
        if len(shared) < num_levels:
            base = self._base
            base = base + base[-1:] * (num_levels - len(base))
            shared = regime.estimates = _position_estimates(regime.counts, base, REGIME_PRIOR)
        probability = 1.0
        ladder = []
        for estimate in _position_estimates(counts, shared[:num_levels], REQUEST_PRIOR):
            probability *= estimate
            ladder.append(probability)
        return ladder

    def observe(self, seq_id: int, num_drafted: int, num_accepted: int, was_cut: bool) -> None:
        """Learn from a draft of `num_drafted` tokens of which `num_accepted` were accepted.

        was_cut: a stop rule ended the output there, so the next token was not judged.
        """
        num_judged = num_accepted + (num_accepted < num_drafted and not was_cut)
        if not num_judged:
            return
        request, regime = self._requests[seq_id]
        regime.estimates = []
        for counts in (request, regime.counts):
            counts.fade(counts.kept)
            counts.extend(num_judged)
            judged, accepted = counts.judged, counts.accepted
            for position in range(num_accepted):
                judged[position] += 1
                accepted[position] += 1
            if num_judged > num_accepted:
                judged[num_accepted] += 1


def _position_estimates(counts: _Counts, prior: list[float], weight: float) -> list[float]:
    """Conditional acceptance per position, blended with `prior`, which counts as `weight` tokens.

    By how much a position differs from its prior is assumed of the next one too, as far as that
    was not seen itself: drafts that begin badly go on badly.
    """
    estimates = []
    difference = 0.0
    num_seen, judged, accepted = len(counts.judged), counts.judged, counts.accepted
    for position, shared in enumerate(prior):
        estimate = shared + difference
        if estimate > MOST:
            estimate = MOST
        elif estimate < LEAST:
            estimate = LEAST
        if position < num_seen:
            estimate = (accepted[position] + weight * estimate) / (judged[position] + weight)
        difference = estimate - shared
        estimates.append(estimate)
    return estimates


KNOTS = (0.0, 0.15, 0.3, 0.45, 0.6, 0.72, 0.82, 0.9, 0.95, 0.98, 1.0)
"""The claims at which their worth is learned: closer where drafts are longest. Between them it is
interpolated, and an observation counts for both neighbours, the nearer one more."""

_WIDTHS = [high - low for low, high in pairwise(KNOTS)]


class Calibration(_Learner):
    """What a drafter's claims are worth: claimed probability -> observed conditional acceptance."""

    num_cells = len(KNOTS)

    def ladder(self, seq_id: int, claimed: List[float]) -> list[float]:
        """For each draft token the probability that the draft is accepted up to it and including
        it; never increasing.

        claimed: the probability the drafter gives to each token, those before it being right.
        """
        if not claimed:
            return []
        curve = self._curve(seq_id)
        probability, ladder = 1.0, []
        last, worth = -1.0, 1.0
        for claim in claimed:
            if claim != last:
                last, (knot, above) = claim, _place(claim)
                worth = curve[knot] + above * (curve[knot + 1] - curve[knot])
            probability *= worth
            ladder.append(probability)
        return ladder

    def _curve(self, seq_id: int) -> list[float]:
        """What a claim is worth at each knot, never decreasing."""
        counts, regime = self._requests[seq_id]
        if not regime.estimates:
            regime.estimates = _blended(regime.counts, KNOTS, REGIME_PRIOR)
        worths = _blended(counts, regime.estimates, REQUEST_PRIOR)
        if worths == sorted(worths):
            return worths
        return _non_decreasing(worths, [judged + REQUEST_PRIOR for judged in counts.judged])

    def observe(self, seq_id: int, claimed: List[float], num_accepted: int, was_cut: bool) -> None:
        """Learn from a draft with these claims of which `num_accepted` tokens were accepted.

        was_cut: a stop rule ended the output there, so the next token was not judged.
        """
        num_judged = num_accepted + (num_accepted < len(claimed) and not was_cut)
        if not num_judged:
            return
        places = [_place(claim) for claim in claimed[:num_judged]]
        request, regime = self._requests[seq_id]
        regime.estimates = []
        for counts in (request, regime.counts):
            counts.fade(counts.kept)
            _count(counts.judged, places)
            _count(counts.accepted, places[:num_accepted])


def _place(claim: float) -> tuple[int, float]:
    """The knot at which the interval with this claim begins, and how far into it the claim lies,
    from 0 to 1."""
    knot = min(bisect_right(KNOTS, claim) - 1, len(_WIDTHS) - 1)
    return knot, (claim - KNOTS[knot]) / _WIDTHS[knot]


def _count(cells: list[float], places: List[tuple[int, float]]) -> None:
    """Count one at each place, shared between the knots on either side."""
    for knot, above in places:
        cells[knot] += 1 - above
        cells[knot + 1] += above


def _blended(counts: _Counts, prior: List[float], weight: float) -> list[float]:
    """Acceptance per cell, blended with `prior`, which counts as `weight` tokens."""
    return [
        (accepted + weight * assumed) / (judged + weight)
        for accepted, judged, assumed in zip(counts.accepted, counts.judged, prior, strict=True)
    ]


def _non_decreasing(values: list[float], weights: list[float]) -> list[float]:
    """The nearest non-decreasing values in weighted least squares: neighbours in the wrong order
    become their mean (pool adjacent violators, Ayer et al. 1955)."""
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        size = 1
        while pools and pools[-1][0] > value:
            other, other_weight, other_size = pools.pop()
            value = (value * weight + other * other_weight) / (weight + other_weight)
            weight += other_weight
            size += other_size
        pools.append((value, weight, size))
    return [value for value, _, size in pools for _ in range(size)]
