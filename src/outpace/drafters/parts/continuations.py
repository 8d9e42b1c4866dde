"""What probably comes next, from how often it came next before: chains and trees of tokens.

The estimate is that of prediction by partial matching with absolute discounting (Cleary and Witten
1984; Ney, Essen and Kneser 1994): the longest context speaks first, keeps back a share of its
probability according to how little it has seen and how short it is, and the next shorter context
divides that share up in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from itertools import islice
from math import sqrt
from operator import itemgetter

from outpace.drafters.parts.suffix_automaton import ROOT, SuffixAutomaton

Context = tuple[SuffixAutomaton, int, int, int]
"""An automaton, a state of it, how many tokens of the state's strings are meant, and how many of
them count as one."""

OTHER_TEXT = 2
"""Tokens that count as one where they matched another text: what follows there is about as certain
as after half as many tokens of the same text."""

MAX_CONTEXTS = 3
"""Most contexts of one text asked at a time; a third one hardly ever changes the answer."""

MAX_CONTINUATIONS = 64
"""Most continuations of one context looked at, those that first occurred last. Only contexts of a
token or two have more, and each of theirs is improbable."""

DISCOUNTS = tuple(0.7 * max(length, 1) ** -0.5 for length in range(256))
"""[context length]: how probably what followed a context once does not follow it again. A fit to
answers of a chat model to prompts of six kinds, which agree closely: 0.70 after one token, 0.50
after two, 0.26 after five. What followed n times loses sqrt(n) times as much of its count."""


def contexts_of(
    automaton: SuffixAutomaton, state: int, length: int, per_token: int = 1
) -> list[Context]:
    """A suffix of some text and its shorter suffixes, longest first, the empty one last.

    state, length: of the suffix. per_token: how many matching tokens count as one.
    """
    contexts: list[Context] = []
    while state > ROOT and len(contexts) < MAX_CONTEXTS:
        contexts.append((automaton, state, length, per_token))
        state = automaton.link[state]
        length = automaton.length[state]
    contexts.append((automaton, ROOT, 0, per_token))
    return contexts


def after(contexts: list[Context], token: int) -> list[Context]:
    """The contexts once `token` has followed; of those that stand for the same places one."""
    longer: list[Context] = []
    # The place last found in each text: suffixes that stand for the same places are neighbours.
    last: dict[SuffixAutomaton, int] = {}
    for automaton, state, length, per_token in contexts:
        place = automaton.next[state].get(token)
        if place is not None:
            place, length = automaton.shortened(place, length + 1)
            if last.get(automaton) != place:
                last[automaton] = place
                longer.append((automaton, place, length, per_token))
        if state == ROOT:
            longer.append((automaton, ROOT, 0, per_token))
    return longer


def probable(contexts: list[Context], floor: float) -> list[tuple[float, int]]:
    """(estimated probability, token) of what follows, most probable first. Only what has at least
    `floor`; adds up to less than 1. Of what is equally probable first what first occurred last.

    contexts: longest first. The shorter ones of one text and those of other texts add to them.
    """
    shares: dict[int, float] = {}
    left = 1.0
    for automaton, state, length, per_token in contexts:
        following = automaton.next[state]
        if length < per_token or not following:
            continue
        counts = automaton.count
        places: Iterable[tuple[int, int]] = reversed(following.items())
        if len(following) > MAX_CONTINUATIONS:
            places, total = islice(places, MAX_CONTINUATIONS), counts[state]
        else:
            total = sum([counts[place] for place in following.values()])
        discount, scale, kept = DISCOUNTS[length // per_token], left / total, 0.0
        for token, place in places:
            count = counts[place]
            share = scale * (count - discount * sqrt(count))
            kept += share
            shares[token] = shares.get(token, 0.0) + share
        left -= kept
        if left < floor:
            break
    found = [(share, token) for token, share in shares.items() if share >= floor]
    found.sort(key=itemgetter(0), reverse=True)
    return found


def best_chain(
    contexts: list[Context], depth: int, min_prob: float
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """The most probable next token, again and again, at most `depth` times, as long as the
    estimated probability of all together is at least `min_prob`; and the estimated probability of
    each, given those before it."""
    tokens: list[int] = []
    probs: list[float] = []
    path_prob = 1.0
    while len(tokens) < depth and path_prob > 0:
        candidates = probable(contexts, min_prob / path_prob)
        if not candidates:
            break
        prob, token = candidates[0]
        path_prob *= prob
        tokens.append(token)
        probs.append(prob)
        contexts = after(contexts, token)
    return tuple(tokens), tuple(probs)


def best_tree(
    contexts: list[Context], num_nodes: int, depth: int, min_prob: float
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(tokens, parents) of the tree of at most `num_nodes` with the most accepted tokens to be
    expected: the nodes whose paths are the most probable, parents and probable siblings first."""
    tokens: list[int] = []
    parents: list[int] = []
    # Ordered by probability; what is equally probable, by when it was found.
    heap: list[tuple[float, int, int, int, int, list[Context]]] = []
    found = 0

    def consider(parent: int, level: int, path_prob: float, at: list[Context]) -> None:
        nonlocal found
        for prob, token in probable(at, min_prob / path_prob)[: num_nodes - len(tokens)]:
            heappush(heap, (-path_prob * prob, found, token, parent, level, at))
            found += 1

    if depth > 0:
        consider(-1, 1, 1.0, contexts)
    while heap and len(tokens) < num_nodes:
        cost, _, token, parent, level, at = heappop(heap)
        tokens.append(token)
        parents.append(parent)
        if level < depth and cost < 0:
            consider(len(tokens) - 1, level + 1, -cost, after(at, token))
    return tuple(tokens), tuple(parents)
