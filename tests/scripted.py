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
