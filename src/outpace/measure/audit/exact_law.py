"""Exact laws of what a verification rule emits, by enumeration in rationals.

`Model` is a tiny target and drafter whose distributions depend on the whole context. `emission`
sums over every draft the drafter can make and every region of the coins; `completed` lets the
target finish each emission to a fixed length, so that the result can be compared with the
target's own joint law.
"""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from outpace.sampling import Number
from outpace.types import Draft
from outpace.verification.chain import (
    Decision,
    block_decision,
    block_thresholds,
    token_decision,
    token_thresholds,
)

Tokens = tuple[int, ...]
Law = dict[Tokens, Fraction]
TINY = Fraction(1, 10**9)


def row(*values: int | str | Fraction) -> np.ndarray:
    """A row of fractions."""
    result = np.empty(len(values), dtype=object)
    result[:] = [Fraction(value) for value in values]
    return result


@dataclass
class Model:
    """A random context-dependent target and drafter over `vocab` tokens, for `k` draft tokens.

    The drafter's rows may hold zeros, be wider or narrower than the target's, equal them, or be
    one-hot; `deterministic` contexts are drafted without a q.
    """

    vocab: int
    k: int
    p: dict[Tokens, np.ndarray] = field(default_factory=dict)
    q: dict[Tokens, np.ndarray] = field(default_factory=dict)
    deterministic: dict[Tokens, int] = field(default_factory=dict)

    def drafts(self) -> Iterator[tuple[Fraction, Draft]]:
        """Every draft with its probability."""
        yield from self._extend((), (), Fraction(1))

    def _extend(
        self, tokens: Tokens, q: tuple[np.ndarray | None, ...], mass: Fraction
    ) -> Iterator[tuple[Fraction, Draft]]:
        if len(tokens) == self.k:
            yield mass, Draft(tokens, q)
        elif tokens in self.deterministic:
            yield from self._extend((*tokens, self.deterministic[tokens]), (*q, None), mass)
        else:
            for token, share in enumerate(self.q[tokens]):
                if share > 0:
                    yield from self._extend((*tokens, token), (*q, self.q[tokens]), mass * share)

    def p_rows(self, draft: Draft) -> np.ndarray:
        """The target's rows over a draft, chain or tree, [len(draft) + 1, V]."""
        return np.stack([self.p[draft.tokens_to(node)] for node in range(-1, len(draft))])

    def target_law(self) -> Law:
        return completed({(): Fraction(1)}, self)


def random_model(seed: int, vocab: int = 3, k: int | None = None) -> Model:
    rng = random.Random(seed)
    model = Model(vocab, rng.randint(1, 3) if k is None else k)
    q_width = vocab + rng.choice([0, 0, 0, 1, -1])
    one_hot_share = rng.choice([0, 0, 0.3, 1])
    widest = max(vocab, q_width)
    for length in range(model.k + 1):
        for context in itertools.product(range(widest), repeat=length):
            model.p[context] = _random_row(rng, vocab)
            model.q[context] = _random_row(rng, q_width)
            if q_width == vocab and rng.random() < 0.1:
                model.q[context] = model.p[context]
            if rng.random() < one_hot_share:
                model.deterministic[context] = rng.randrange(q_width)
    return model


def _random_row(rng: random.Random, width: int) -> np.ndarray:
    zeros = rng.random() < 0.5
    counts = [rng.randint(0 if zeros else 1, 5) for _ in range(width)]
    counts[rng.randrange(width)] += 1
    return row(*(Fraction(count, sum(counts)) for count in counts))


@dataclass(frozen=True)
class Rule:
    """A rule: where its coins change the decision, and the decision."""

    thresholds: Callable[[np.ndarray, Draft], list[Number]]
    decide: Callable[[np.ndarray, Draft, list[Number]], Decision]


TOKEN = Rule(token_thresholds, token_decision)
BLOCK = Rule(lambda p, draft: block_thresholds(p, draft)[1], block_decision)


def decisions(rule: Rule, p: np.ndarray, draft: Draft) -> Iterator[tuple[Fraction, Decision]]:
    """Every region of the coin cube with its volume, and what is decided there.

    Coin i is below its threshold t_i with probability t_i. Each region is probed at its lowest
    corner (where a coin equals 0 or exactly its threshold) and next to its highest one.
    """
    regions = []
    for number in rule.thresholds(p, draft):
        threshold = Fraction(number)
        bounds = [(Fraction(0), threshold), (threshold, Fraction(1))]
        regions.append([(low, high) for low, high in bounds if low < high])
    for region in itertools.product(*regions):
        volume = Fraction(1)
        for low, high in region:
            volume *= high - low
        decision = rule.decide(p, draft, [low for low, _ in region])
        other = rule.decide(p, draft, [high - TINY * (high - low) for low, high in region])
        assert other.num_accepted == decision.num_accepted
        assert list(other.weights) == list(decision.weights)
        yield volume, decision


def rule_emission(rule: Rule, p: np.ndarray, draft: Draft) -> Iterator[tuple[Fraction, Tokens]]:
    """Every output of one verification with its probability."""
    for volume, decision in decisions(rule, p, draft):
        accepted = draft.token_ids[: decision.num_accepted]
        total = sum(decision.weights)
        for token, weight in enumerate(decision.weights):
            if weight > 0:
                yield volume * weight / total, (*accepted, token)


Emission = Callable[[np.ndarray, Draft], Iterable[tuple[Fraction, Tokens]]]


def emission_law(
    model: Model, emit: Emission, drafts: Iterable[tuple[Fraction, Draft]] | None = None
) -> Law:
    """The law of one step's output; `drafts` replaces the model's own way of drafting."""
    law: Law = defaultdict(Fraction)
    for mass, draft in model.drafts() if drafts is None else drafts:
        for share, tokens in emit(model.p_rows(draft), draft):
            law[tokens] += mass * share
    return law


def completed(emitted: Law, model: Model) -> Law:
    """The joint law of the first k + 1 tokens when the target continues every output alone.

    Where the target's row is all zeros, no token may come and the output ends there.
    """
    law: Law = defaultdict(Fraction)
    pending = list(emitted.items())
    while pending:
        tokens, mass = pending.pop()
        if len(tokens) == model.k + 1 or not model.p[tokens].any():
            law[tokens] += mass
            continue
        for token, share in enumerate(model.p[tokens]):
            if share > 0:
                pending.append(((*tokens, token), mass * share))
    return dict(law)


def is_lossless(
    model: Model, emit: Emission, drafts: Iterable[tuple[Fraction, Draft]] | None = None
) -> bool:
    """Whether output completed by the target has exactly the target's joint law."""
    return completed(emission_law(model, emit, drafts), model) == model.target_law()
