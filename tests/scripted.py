"""Drafters that do exactly what a test wants of them."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as List

import numpy as np

from outpace.drafters.base import Drafter
from outpace.types import Draft, Sequence

Propose = Callable[[Sequence, int], Draft]


def scripted(propose: Propose) -> type[Drafter]:
    """A drafter class whose drafts `propose(seq, budget)` makes, one sequence at a time."""

    class Scripted(Drafter):
        def propose(self, seqs: List[Sequence], budgets: List[int]) -> list[Draft]:
            return [propose(seq, budget) for seq, budget in zip(seqs, budgets, strict=True)]

    return Scripted


def oracle(answers: dict[tuple[int, ...], list[int]]) -> Propose:
    """Always right: copies from known answers, keyed by the prompt's ids."""

    def propose(seq: Sequence, budget: int) -> Draft:
        answer = answers[tuple(seq.tokens[: seq.num_prompt])]
        return Draft(tuple(answer[seq.num_output : seq.num_output + budget]), origin="oracle")

    return propose


def right_for(
    answers: dict[tuple[int, ...], list[int]],
    vocab_size: int,
    num_right: Callable[[Sequence], int],
) -> Propose:
    """Right for `num_right(seq)` tokens, then wrong to the end of the budget."""
    perfect = oracle(answers)

    def propose(seq: Sequence, budget: int) -> Draft:
        tokens = list(perfect(seq, budget).token_ids)
        for i in range(num_right(seq), len(tokens)):
            tokens[i] = (tokens[i] + 1) % vocab_size
        return Draft(tuple(tokens), origin="partly")

    return propose


def always_wrong(answers: dict[tuple[int, ...], list[int]], vocab_size: int) -> Propose:
    return right_for(answers, vocab_size, lambda seq: 0)


def random_tokens(vocab_size: int, seed: int = 0) -> Propose:
    """Uniform guesses, judged one-hot; ids may lie outside the vocabulary."""
    rng = np.random.default_rng(seed)

    def propose(seq: Sequence, budget: int) -> Draft:
        length = int(rng.integers(0, budget + 1))
        return Draft(tuple(int(t) for t in rng.integers(0, vocab_size, length)), origin="random")

    return propose


def sampled(q: np.ndarray, seed: int = 0, claim: np.ndarray | None = None) -> Propose:
    """Draws every token from `q`, and claims to have drawn it from `claim` (default: the truth)."""
    rng = np.random.default_rng(seed)
    claimed = q if claim is None else claim

    def propose(seq: Sequence, budget: int) -> Draft:
        tokens = tuple(int(t) for t in rng.choice(len(q), size=budget, p=q))
        return Draft(tokens, q=(claimed,) * budget, origin="sampled")

    return propose


def in_a_tree(
    chain: Propose, vocab_size: int, seed: int = 0, *, num_probes: int = 0, sure: bool = False
) -> Propose:
    """What `chain` proposes as one path of a random tree, with other tokens on all sides of it.

    sure: the path takes a third of the budget; otherwise a random part, and drafts vary in size.
    num_probes: so many nodes at the end are only evaluated, some with the tokens of the path.
    """
    rng = np.random.default_rng(seed)

    def propose(seq: Sequence, budget: int) -> Draft:
        size = budget if sure else int(rng.integers(0, budget + 1))
        probes = min(num_probes, size // 2)
        path = chain(seq, budget).token_ids
        path = path[: size // 3 if sure else int(rng.integers(0, size - probes + 1))]
        tokens: list[int] = []
        parents: list[int] = []
        tip, depth, right = -1, 0, set(rng.permutation(size - probes)[: len(path)].tolist())
        for node in range(size):
            if node in right:
                tokens.append(path[depth])
                parents.append(tip)
                tip, depth = node, depth + 1
            else:
                tokens.append(int(rng.choice([rng.integers(2, vocab_size), *path])))
                parents.append(int(rng.integers(-1, node)))
        return Draft(tuple(tokens), None, "tree", tuple(parents), probes)

    return propose


def siblings(q: np.ndarray, seed: int = 0, claim: np.ndarray | None = None) -> Propose:
    """Two siblings drawn without replacement from `q`, each with a chain of draws from `q` below,
    which claim to come from `claim` (default: the truth)."""
    rng = np.random.default_rng(seed)
    claimed = q if claim is None else claim

    def propose(seq: Sequence, budget: int) -> Draft:
        first, second = (int(t) for t in rng.choice(len(q), size=2, replace=False, p=q))
        rest = np.where(np.arange(len(q)) == first, 0, claimed)
        tokens, laws, parents = [first, second], [claimed, rest / rest.sum()], [-1, -1]
        for node in range(2, budget):
            tokens.append(int(rng.choice(len(q), p=q)))
            laws.append(claimed)
            parents.append(node - 2)
        kept = slice(budget)
        return Draft(tuple(tokens[kept]), tuple(laws[kept]), "siblings", tuple(parents[kept]))

    return propose
