"""How far to draft: the lengths with the best expected output for the time they take.

What is to be maximised is output tokens per second in the long run, a ratio of sums over steps.
The step that serves it best is not the one with the best ratio of its own but the one with the most
tokens - rate * seconds, where `rate` is the long-run ratio itself: what a second is worth elsewhere
(fractional programming, Dinkelbach 1967; the renewal-reward theorem makes it the long-run rate).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence as List
from itertools import accumulate, chain
from operator import neg, sub
from typing import NamedTuple

LOOKUP, TRAINED, NONE = "lookup", "trained", "none"
"""What drafts for a request in a step, as plans call it."""
RATE_MEMORY = 60
"""How many steps speak for the rate: each counts 1 - 1/60 of the one after it."""


class Ways(NamedTuple):
    """How a request can be drafted for: for each draft token of the lookup drafter and of the
    trained drafter the probability that it and all before it are accepted, never increasing. Empty
    where that drafter has nothing to offer."""

    lookup: List[float]
    trained: List[float]


class Plan(NamedTuple):
    """What to draft in one step.

    choices: for each request what drafts, LOOKUP, TRAINED or NONE, and how many tokens.
    num_tokens: output tokens to be expected of the whole step. seconds: what it should take.
    """

    choices: list[tuple[str, int]]
    num_tokens: float
    seconds: float


def plan(options: List[Ways], curve: List[float], trained_s: List[float], rate: float) -> Plan:
    """The lengths that maximise expected tokens - rate * seconds. Of equals, the fewest rows.

    options: for each request its ways to draft. curve: [n] seconds of the step with n draft tokens
    of all requests together, without drafting; never decreasing, at least [0]. trained_s: [L]
    seconds of L sequential steps of the trained drafter, shared by the requests; never decreasing,
    [0] is 0. rate: output tokens a second is worth.

    One request is planned exactly. For more, which way each request goes is decided at a price per
    row, and the lengths given the ways exactly; so the plan is the best one where every request has
    one way or the curve is straight, and near it elsewhere.
    """
    if len(options) == 1:
        return _plan_one(options[0], curve, trained_s, rate)
    if _is_hopeless(options, curve, rate):
        return Plan([(NONE, 0)] * len(options), len(options), curve[0])
    return _plan_many(options, curve, trained_s, rate)


def _is_hopeless(options: List[Ways], curve: List[float], rate: float) -> bool:
    """Whether no token is as probable as the cheapest row is dear: the usual end of planning for
    large batches, where a row more costs as much as a sequence more."""
    best = max(ladder[0] if ladder else 0.0 for ways in options for ladder in ways)
    plain_s = curve[0]
    return all(best * n <= rate * (seconds - plain_s) for n, seconds in enumerate(curve))


def _plan_one(ways: Ways, curve: List[float], trained_s: List[float], rate: float) -> Plan:
    source, length, gained = NONE, 0, 0.0
    best = -rate * curve[0]
    gain = 0.0
    for n, probability in enumerate(ways.lookup[: len(curve) - 1], 1):
        gain += probability
        value = gain - rate * curve[n]
        if value > best:
            best, source, length, gained = value, LOOKUP, n, gain
    gain = 0.0
    for n, probability in enumerate(ways.trained[: min(len(curve), len(trained_s)) - 1], 1):
        gain += probability
        value = gain - rate * (curve[n] + trained_s[n])
        if value > best:
            best, source, length, gained = value, TRAINED, n, gain
    seconds = curve[length] + (trained_s[length] if source == TRAINED else 0.0)
    return Plan([(source, length)], 1 + gained, seconds)


class _Ladder(NamedTuple):
    """Probabilities, never increasing; negated, so that they can be searched; and added up."""

    gains: List[float]
    falling: list[float]
    sums: list[float]

    @staticmethod
    def of(probabilities: List[float]) -> _Ladder:
        falling = list(map(neg, probabilities))
        return _Ladder(probabilities, falling, list(accumulate(probabilities, initial=0.0)))

    def worth(self, price: float, most: int) -> float:
        """What the first `most` tokens bring, those that are worth `price`, less that price."""
        num_rows = min(bisect_left(self.falling, -price), most)
        return self.sums[num_rows] - num_rows * price


class _Mix(NamedTuple):
    """A way for every request, and the best number of rows.

    uses_trained: for each request whether it is the trained drafter's. gains: what each row more
    brings, best first.
    """

    value: float
    num_rows: int
    num_levels: int
    uses_trained: list[bool]
    gains: list[float]

    @property
    def next_gain(self) -> float:
        """What one row more would bring."""
        return self.gains[self.num_rows] if self.num_rows < len(self.gains) else 0.0


def _plan_many(
    options: List[Ways], curve: List[float], trained_s: List[float], rate: float
) -> Plan:
    ladders = [(_Ladder.of(ways.lookup), _Ladder.of(ways.trained)) for ways in options]
    costs = [rate * seconds for seconds in curve]
    mean_price = (costs[-1] - costs[0]) / max(len(costs) - 1, 1)
    best = _mix(options, [False] * len(options), 0, costs)
    for num_levels in range(1, min(len(trained_s), max(map(_depth, options), default=0) + 1)):
        tried: list[list[bool]] = []
        # What a row costs on average, what it is worth in the best mix so far, and for each what
        # it is worth where that leads.
        for price in (mean_price, best.next_gain):
            for _ in range(2):
                uses_trained = [
                    not lookup.gains
                    or trained.worth(price, num_levels) > lookup.worth(price, len(lookup.gains))
                    for lookup, trained in ladders
                ]
                if uses_trained in tried or not any(uses_trained):
                    break
                tried.append(uses_trained)
                mix = _mix(options, uses_trained, num_levels, costs)
                mix = mix._replace(value=mix.value - rate * trained_s[num_levels])
                price = mix.next_gain
                if mix.value > best.value:
                    best = mix
    return _as_plan(options, best, curve, trained_s)


def _depth(ways: Ways) -> int:
    return len(ways.trained)


def _mix(
    options: List[Ways], uses_trained: list[bool], num_levels: int, costs: list[float]
) -> _Mix:
    """The best number of rows with these ways, without what drafting costs."""
    gains = sorted(
        chain.from_iterable(
            ways.trained[:num_levels] if trained else ways.lookup
            for ways, trained in zip(options, uses_trained, strict=True)
        ),
        reverse=True,
    )
    values = list(map(sub, accumulate(gains, initial=0.0), costs))
    value = max(values)
    return _Mix(value, values.index(value), num_levels, uses_trained, gains)


def _as_plan(options: List[Ways], mix: _Mix, curve: List[float], trained_s: List[float]) -> Plan:
    """Deal out the rows: to each request those worth more than the last one, then, of those just as
    good, to the first requests."""
    chosen = mix.gains[: mix.num_rows]
    last = chosen[-1] if chosen else 1.0
    equals = chosen.count(last)
    choices: list[tuple[str, int]] = []
    num_levels = 0
    for ways, trained in zip(options, mix.uses_trained, strict=True):
        ladder = ways.trained[: mix.num_levels] if trained else ways.lookup
        length = 0
        for gain in ladder:
            if not chosen or gain < last or (gain == last and not equals):
                break
            equals -= gain == last
            length += 1
        if trained:
            num_levels = max(num_levels, length)
        source = TRAINED if trained else LOOKUP
        choices.append((source, length) if length else (NONE, 0))
    seconds = curve[mix.num_rows] + trained_s[num_levels]
    return Plan(choices, len(options) + sum(chosen), seconds)


def best_nodes(
    worths: List[List[float]], limits: List[int], curve: List[float], rate: float
) -> list[list[int]]:
    """Which nodes of each request's tree to feed, ascending: those with the most expected tokens -
    rate * seconds. Of equals, the fewest. A node is never kept without its parent.

    worths: for each tree and node, parents first, the probability that it and all before it are
    right. limits: most nodes of each tree. curve: [n] seconds of the step with n nodes of all trees
    together; at least one entry, and no more nodes are kept than it has others.
    """
    ranked: list[tuple[float, int, int]] = []
    for tree, (own, limit) in enumerate(zip(worths, limits, strict=True)):
        nodes = sorted((-worth, node) for node, worth in enumerate(own))[:limit]
        ranked += [(falling, tree, node) for falling, node in nodes]
    ranked.sort()
    values = map(sub, accumulate((-r[0] for r in ranked), initial=0.0), (rate * s for s in curve))
    best = max(enumerate(values), key=lambda entry: entry[1])[0]
    kept: list[list[int]] = [[] for _ in worths]
    for _, tree, node in ranked[:best]:
        kept[tree].append(node)
    return [sorted(nodes) for nodes in kept]


class Rate:
    """Output tokens a second brings in the long run, learned relative to plain decoding.

    Relative, so that it holds for other numbers of sequences and longer contexts too: how many
    seconds plain decoding would have taken for the tokens of the last steps, by how many they took.
    Speculation can always be left, so it is at least 1.
    """

    def __init__(self) -> None:
        self._plain_s = 0.0
        self._seconds = 0.0

    def observe(self, num_tokens: float, seconds: float, num_seqs: int, plain_s: float) -> None:
        """A step of `num_seqs` sequences took `seconds`, drafting included, and yielded
        `num_tokens`; a plain step would have taken `plain_s`."""
        kept = 1 - 1 / RATE_MEMORY
        self._plain_s = kept * self._plain_s + num_tokens / num_seqs * plain_s
        self._seconds = kept * self._seconds + seconds

    @property
    def ratio(self) -> float:
        """What was reached by what plain decoding would have; 1 at first."""
        return self._plain_s / self._seconds if self._seconds else 1.0

    @property
    def speedup(self) -> float:
        """The rate by that of plain decoding: at least 1."""
        return max(1.0, self.ratio)

    def per_second(self, num_seqs: int, plain_s: float) -> float:
        """The rate for `num_seqs` sequences whose plain step takes `plain_s`; tokens per second."""
        return self.speedup * num_seqs / plain_s
