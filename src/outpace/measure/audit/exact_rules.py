"""The engine's rules of acceptance, proved over many tiny models, and mistakes planted in them.

What decides is the engine's own code on fractions (`verification`), what is compared is the whole
joint law, and equal means equal: not a sample but an enumeration of everything that can happen.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from outpace.measure.audit.exact_law import (
    BLOCK,
    TOKEN,
    Emission,
    Model,
    Rule,
    Tokens,
    is_lossless,
    random_model,
    row,
    rule_emission,
)
from outpace.measure.audit.exact_tree import (
    LIST,
    WITH,
    WITHOUT,
    Decide,
    Drafts,
    drafts,
    emission,
    random_plan,
)
from outpace.sampling import Number
from outpace.types import Draft
from outpace.verification.chain import Decision, token_decision, token_thresholds
from outpace.verification.coupled import match, walk
from outpace.verification.tree import recursive_decision, traversal_decision

KINDS_OF_TREES = ((LIST,), (WITHOUT,), (WITH,), (LIST, WITHOUT, WITH))
EPSILON = Fraction(1, 1000)


@dataclass(frozen=True, slots=True)
class Enumerated:
    """How a rule did over random models: `num_biased` of them have another law than the target's.

    num_drafts: drafts of which every outcome was enumerated. first_biased: after how many models
    the first of these was found.
    """

    num_models: int
    num_drafts: int
    num_biased: int
    first_biased: int | None = None


Case = tuple[Model, Drafts]
"""A model, and everything its drafter can draft, with probabilities."""


def chain_cases(num_models: int) -> Iterator[Case]:
    for seed in range(num_models):
        model = random_model(seed)
        yield model, list(model.drafts())


def tree_cases(num_models: int) -> Iterator[Case]:
    """Of all kinds of trees in turn."""
    for seed in range(num_models):
        model = random_model(seed)
        kinds = KINDS_OF_TREES[seed % len(KINDS_OF_TREES)]
        yield model, list(drafts(model, random_plan(seed, kinds, model.k)))


def enumerate_rule(
    emit: Emission,
    cases: Iterator[Case],
    tick: Callable[[], None] = lambda: None,
) -> Enumerated:
    """Compare the law of one step, completed by the target, with the target's law, case by case.

    emit: every output of one verification with its probability.
    """
    num_models = num_drafts = num_biased = 0
    first_biased: int | None = None
    for model, drawn in cases:
        drawn = list(drawn)
        num_models += 1
        num_drafts += len(drawn)
        if not is_lossless(model, emit, drawn):
            num_biased += 1
            first_biased = first_biased or num_models
        tick()
    return Enumerated(num_models, num_drafts, num_biased, first_biased)


def chain_emission(rule: Rule) -> Emission:
    return lambda p, draft: rule_emission(rule, p, draft)


def tree_emission(decide: Decide) -> Emission:
    return lambda p, draft: emission(decide, p, draft)


def match_emission(p: np.ndarray, draft: Draft) -> Iterator[tuple[Fraction, Tokens]]:
    """Sample-and-match with every choice of the target at every position."""
    supports = [[(t, share) for t, share in enumerate(p_row) if share > 0] for p_row in p]
    for chosen in itertools.product(*supports):
        mass = Fraction(1)
        for _, share in chosen:
            mass *= share
        yield mass, match(draft.token_ids, [token for token, _ in chosen]).token_ids


class _Choices:
    """The target's choices at the nodes reached: those of a script, then the first ones possible.

    `others`: the scripts of the choices not taken.
    """

    def __init__(self, p: np.ndarray, script: Tokens) -> None:
        self.p, self.script = p, script
        self.taken: Tokens = ()
        self.mass = Fraction(1)
        self.others: list[Tokens] = []

    def at(self, i: int) -> int:
        first, *others = map(int, np.flatnonzero(self.p[i]))
        if len(self.taken) < len(self.script):
            first = self.script[len(self.taken)]
        else:
            self.others += [(*self.taken, other) for other in others]
        self.taken = (*self.taken, first)
        self.mass *= self.p[i][first]
        return first


def walk_emission(p: np.ndarray, draft: Draft) -> Iterator[tuple[Fraction, Tokens]]:
    """Sample-and-match over a tree with every choice of the target at every node reached."""
    pending: list[Tokens] = [()]
    while pending:
        choices = _Choices(p, pending.pop())
        tokens = walk(draft, choices.at).token_ids
        pending += choices.others
        yield choices.mass, tokens


RULES: dict[str, tuple[Emission, Callable[[int], Iterator[Case]]]] = {
    "token verification": (chain_emission(TOKEN), chain_cases),
    "block verification": (chain_emission(BLOCK), chain_cases),
    "sample and match": (match_emission, chain_cases),
    "recursive rejection over trees": (tree_emission(recursive_decision), tree_cases),
    "traversal over trees": (tree_emission(traversal_decision), tree_cases),
    "sample and match over trees": (walk_emission, tree_cases),
}
"""What decides drafts in the engine (`verification.judge` says when), with the cases it is for.
Greedy and seeded requests are judged by sample and match."""


# Mistakes in circulation: wrong rules, and true rules given false claims.


def replacement_from_p(p: np.ndarray, draft: Draft, coins: list[Number]) -> Decision:
    num_accepted = token_decision(p, draft, coins).num_accepted
    return Decision(num_accepted, p[num_accepted])


def bonus_by_argmax(p: np.ndarray, draft: Draft, coins: list[Number]) -> Decision:
    decision = token_decision(p, draft, coins)
    if decision.num_accepted < len(draft):
        return decision
    one_hot = row(*[0] * p.shape[1])
    one_hot[int(decision.weights.argmax())] = Fraction(1)
    return Decision(decision.num_accepted, one_hot)


def thresholds_with_epsilon(p: np.ndarray, draft: Draft) -> list[Number]:
    thresholds: list[Number] = []
    for i, token in enumerate(draft.token_ids):
        q_row = draft.q_at(i)
        q = 1 if q_row is None else q_row[token]
        p_token = p[i][token] if token < p.shape[1] else 0
        thresholds.append(min(Fraction(1), p_token / (q + EPSILON)))
    return thresholds


def decide_with_epsilon(p: np.ndarray, draft: Draft, coins: list[Number]) -> Decision:
    # Translate each coin so that the true rule decides at the shifted threshold.
    shifted: list[Number] = [
        Fraction(0) if coin < threshold else Fraction(1)
        for coin, threshold in zip(coins, thresholds_with_epsilon(p, draft), strict=True)
    ]
    return token_decision(p, draft, shifted)


def argmax_drafts(model: Model) -> Iterator[tuple[Fraction, Draft]]:
    """The most probable draft, with the soft q as a false claim of how it was drawn."""
    tokens: Tokens = ()
    rows = []
    for _ in range(model.k):
        rows.append(model.q[tokens])
        tokens = (*tokens, int(model.q[tokens].argmax()))
    yield Fraction(1), Draft(tokens, tuple(rows))


def dropping_drafts(model: Model) -> Iterator[tuple[Fraction, Draft]]:
    """Drafts cut before the first token 2, after it was drawn."""
    for mass, draft in model.drafts():
        tokens = draft.token_ids
        length = tokens.index(2) if 2 in tokens else len(tokens)
        yield mass, draft.shortened(length)


WRONG_RULES = {
    "replacement from p instead of the residual": Rule(token_thresholds, replacement_from_p),
    "bonus by argmax": Rule(token_thresholds, bonus_by_argmax),
    "epsilon in the ratio": Rule(thresholds_with_epsilon, decide_with_epsilon),
}
FALSE_CLAIMS: dict[str, Callable[[Model], Drafts]] = {
    "soft q on argmax drafts": argmax_drafts,
    "draws dropped after a look at them": dropping_drafts,
}


def enumerate_mistakes(num_models: int, tick: Callable[[], None]) -> dict[str, Enumerated]:
    """What enumeration finds of each planted mistake, by its name: biased models there must be."""
    found = {
        name: enumerate_rule(chain_emission(rule), chain_cases(num_models), tick)
        for name, rule in WRONG_RULES.items()
    }
    for name, claim in FALSE_CLAIMS.items():
        models = map(random_model, range(num_models))
        cases = ((model, list(claim(model))) for model in models)
        found[name] = enumerate_rule(chain_emission(TOKEN), cases, tick)
    return found
