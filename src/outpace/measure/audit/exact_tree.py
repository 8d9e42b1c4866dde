"""Exact laws of what a verification rule emits over trees, by enumeration in rationals.

The target and the drafter are `exact_law.Model`s. A `Plan` says in which order a tree's nodes are
made and how each gets its token; `drafts` enumerates everything a drafter following it can draw.
Coins are not drawn but branched on: a rule's own comparison of a coin with its threshold is a
fork, so the code under test needs no second formulation of its thresholds.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from outpace.measure.audit.exact_law import Model, Tokens
from outpace.types import Draft
from outpace.verification.tree import PathDecision

Decide = Callable[[np.ndarray, Draft, np.ndarray], PathDecision]
Drafts = Iterable[tuple[Fraction, Draft]]

LIST, WITHOUT, WITH = "list", "without replacement", "with replacement"
"""How a node gets its token: a fixed function of what stands before it (q = None); drawn from the
drafter's row without the tokens of earlier siblings; or drawn from the row as it is."""


@dataclass(frozen=True)
class Plan:
    """For each node in drawn order its parent (-1: the newest committed token) and its kind.

    salt: chooses the tokens of LIST nodes. adaptive: a node may be left out, with all that follows
    it, because of the tokens drawn before it.
    """

    nodes: tuple[tuple[int, str], ...]
    salt: int = 0
    adaptive: bool = False


def random_plan(seed: int, kinds: tuple[str, ...], k: int) -> Plan:
    """2 to 6 nodes at most k deep, at most three to a parent, in an arbitrary topological order.

    Every drawn node multiplies what there is to enumerate: five are rare.
    """
    rng = random.Random(f"{seed} {kinds}")
    most_drawn = rng.choice([3, 3, 3, 3, 4, 4, 5])
    nodes: list[tuple[int, str]] = []
    depths = [0]
    for _ in range(rng.randint(2, 6)):
        parents = [
            parent
            for parent in range(-1, len(nodes))
            if depths[parent + 1] < k and sum(p == parent for p, _ in nodes) < 3
        ]
        kind = rng.choice(kinds)
        num_drawn = sum(kind != LIST for _, kind in nodes)
        if not parents or (kind != LIST and num_drawn == most_drawn):
            break
        parent = rng.choice(parents)
        nodes.append((parent, kind))
        depths.append(depths[parent + 1] + 1)
    return Plan(tuple(nodes), rng.randrange(1000), adaptive=rng.random() < 0.4)


def drafts(model: Model, plan: Plan) -> Iterator[tuple[Fraction, Draft]]:
    """Every tree the drafter can draw, with its probability."""
    yield from _grown(model, plan, (), Draft((), (), parents=()), Fraction(1))


def _grown(
    model: Model, plan: Plan, placed: tuple[int | None, ...], draft: Draft, mass: Fraction
) -> Iterator[tuple[Fraction, Draft]]:
    """placed: for each node of the plan so far its node in `draft`, None if it was left out."""
    i = len(placed)
    if i == len(plan.nodes):
        yield mass, draft
        return
    planned, kind = plan.nodes[i]
    parent = -1 if planned < 0 else placed[planned]
    if parent is None or (plan.adaptive and (sum(draft.token_ids) + i + plan.salt) % 4 == 0):
        yield from _grown(model, plan, (*placed, None), draft, mass)
        return
    context = draft.tokens_to(parent)
    elders = {draft.token_ids[c] for c in draft.children()[parent + 1]}
    q = None if kind == LIST else drawn_from(model.q[context], elders if kind == WITHOUT else ())
    if kind == LIST:
        fixed = [t for t in range(model.q[context].size) if t not in elders] or [0]
        outcomes = [(fixed[(plan.salt + sum(context)) % len(fixed)], Fraction(1))]
    elif q is None:
        yield from _grown(model, plan, (*placed, None), draft, mass)
        return
    else:
        outcomes = [(token, share) for token, share in enumerate(q) if share > 0]
    for token, share in outcomes:
        longer = with_node(draft, token, q, parent)
        yield from _grown(model, plan, (*placed, len(draft)), longer, mass * share)


def drawn_from(q_row: np.ndarray, elders: Iterable[int]) -> np.ndarray | None:
    """A row without some tokens, renormalised; None if nothing is left."""
    rest = q_row.copy()
    rest[list(elders)] = Fraction(0)
    return rest / rest.sum() if rest.any() else None


def with_node(draft: Draft, token: int, q_row: np.ndarray | None, parent: int) -> Draft:
    return Draft(
        (*draft.token_ids, token),
        (*(draft.q or ()), q_row),
        parents=(*(draft.parents or ()), parent),
    )


class _Forks:
    """Coins whose comparisons are decided by a script, and by True after its end."""

    def __init__(self, script: tuple[bool, ...]) -> None:
        self.mass = Fraction(1)
        self.taken: list[bool] = []
        self._script = script
        self._asked: set[int] = set()

    def below(self, coin: int, threshold: Fraction) -> bool:
        assert coin not in self._asked, "a coin that decides twice is not independent of itself"
        self._asked.add(coin)
        if threshold <= 0 or threshold >= 1:
            return threshold > 0
        step = len(self.taken)
        outcome = self._script[step] if step < len(self._script) else True
        self.taken.append(outcome)
        self.mass *= Fraction(threshold) if outcome else 1 - Fraction(threshold)
        return outcome


@dataclass(frozen=True)
class _Coin:
    forks: _Forks
    index: int

    def __lt__(self, threshold: Fraction) -> bool:
        return self.forks.below(self.index, threshold)


def branches(
    decide: Decide, p: np.ndarray, draft: Draft
) -> Iterator[tuple[Fraction, PathDecision]]:
    """Every decision the coins can lead to, with its probability."""
    pending: list[tuple[bool, ...]] = [()]
    while pending:
        script = pending.pop()
        forks = _Forks(script)
        coins = np.empty(draft.num_verified, dtype=object)
        for i in range(draft.num_verified):
            coins[i] = _Coin(forks, i)
        decision = decide(p, draft, coins)
        pending += [(*forks.taken[:i], False) for i in range(len(script), len(forks.taken))]
        yield forks.mass, decision


def emission(decide: Decide, p: np.ndarray, draft: Draft) -> Iterator[tuple[Fraction, Tokens]]:
    """Every output of one verification with its probability."""
    for mass, decision in branches(decide, p, draft):
        accepted = tuple(draft.token_ids[node] for node in decision.nodes)
        total = sum(decision.weights)
        if not total:
            yield mass, accepted
        for token, weight in enumerate(decision.weights):
            if weight > 0:
                yield mass * weight / total, (*accepted, token)
