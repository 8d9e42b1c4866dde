"""What an EAGLE head ranks: its greedy chain and the runners-up, from true columns."""

from __future__ import annotations

from collections.abc import Sequence as List

import numpy as np
import pytest
from eagle_cases import (
    GREEDY,
    VOCAB,
    FreshHead,
    SimulatedTarget,
    check_columns,
    new_drafter,
    new_head,
)
from fake_head import softmax

from outpace.control.rivals import Ranked, Rivals
from outpace.drafters.parts.merged import MergedTree
from outpace.types import NO_DRAFT, Draft, Sequence

WIDTH = 3


def sequences(rng: np.random.Generator, count: int) -> list[Sequence]:
    prompts = [rng.integers(0, VOCAB, int(rng.integers(2, 20))).tolist() for _ in range(count)]
    return [Sequence(i, list(tokens), len(tokens), GREEDY) for i, tokens in enumerate(prompts)]


def check_levels(seq: Sequence, levels: List[Ranked], depth: int) -> None:
    """Raise AssertionError unless they are what a fresh head ranks, fed token by token."""
    assert len(levels) == depth
    head = new_head()
    fresh, chain = FreshHead(head, seq.tokens), []
    for ranked in levels:
        logits = fresh.logits(chain)
        best = np.argsort(-logits, kind="stable")[:WIDTH]
        assert ranked.token_ids == head.draft_token_ids[best].tolist()
        assert ranked.chances == pytest.approx(softmax(logits)[best].tolist(), rel=1e-4)
        chain.append(ranked.token_ids[0])


def test_every_sequence_has_levels_of_its_own() -> None:
    rng = np.random.default_rng(0)
    head = new_head()
    drafter = new_drafter(head)
    target = SimulatedTarget(drafter, rng)
    seqs = sequences(rng, 4)
    for seq in seqs:
        target.admit(seq)
        target.step([seq], [NO_DRAFT], [[]], [[3]])
    depths = [2, 0, 5, 1]
    found = drafter.rank(seqs, depths, WIDTH)
    for seq, levels, depth in zip(seqs, found, depths, strict=True):
        check_levels(seq, levels, depth)


def test_its_first_tokens_are_the_greedy_chain() -> None:
    rng = np.random.default_rng(1)
    drafters = [new_drafter(new_head(), num_speculative_tokens=5) for _ in range(2)]
    (seq,) = sequences(rng, 1)
    for drafter in drafters:
        target = SimulatedTarget(drafter, rng)
        own = Sequence(0, list(seq.tokens), seq.num_prompt, GREEDY)
        target.admit(own)
        target.step([own], [NO_DRAFT], [[]], [[3]])
    seq.tokens.append(3)
    (levels,) = drafters[0].rank([seq], [5], WIDTH)
    (chain,) = drafters[1].propose([seq], [5])
    assert tuple(ranked.token_ids[0] for ranked in levels) == chain.token_ids


def test_a_sequence_that_it_knows_nothing_of_has_none() -> None:
    drafter = new_drafter(new_head())
    assert drafter.rank([Sequence(0, [1, 2, 3], 3, GREEDY)], [3], WIDTH) == [[]]


def merged(seq: Sequence, levels: List[Ranked], rng: np.random.Generator) -> Draft:
    """All of what the head ranks and some other chain, as one tree."""
    rivals = Rivals()
    rivals.open(seq.seq_id, "greedy")
    tokens = rng.integers(0, VOCAB, 4).tolist()
    if rng.random() < 0.5:
        tokens[0] = levels[0].token_ids[int(rng.integers(WIDTH))]
    offer = Draft(tuple(tokens), origin="suffix", claims=(0.5,) * 4)
    tree = MergedTree(seq.seq_id, rivals, offer, [0.5, 0.25, 0.12, 0.06], levels)
    return tree.draft(range(len(tree.worths)), "both")


@pytest.mark.parametrize("seed", range(4))
def test_columns_are_true_whichever_branch_was_accepted(seed: int) -> None:
    rng = np.random.default_rng(seed)
    head = new_head()
    drafter = new_drafter(head)
    target = SimulatedTarget(drafter, rng)
    seqs, off_spine = sequences(rng, 3), 0
    for seq in seqs:
        target.admit(seq)
        target.step([seq], [NO_DRAFT], [[]], [[3]])
    for _ in range(12):
        found = drafter.rank(seqs, [3] * len(seqs), WIDTH)
        for seq, levels in zip(seqs, found, strict=True):
            check_columns(drafter, head, seq)
            check_levels(seq, levels, 3)
        drafts = [merged(seq, levels, rng) for seq, levels in zip(seqs, found, strict=True)]
        paths = [draft.path(int(rng.integers(len(draft)))) for draft in drafts]
        off_spine += sum(path != list(range(len(path))) for path in paths)
        target.step(seqs, drafts, paths, [[int(rng.integers(VOCAB))] for _ in seqs])
    assert off_spine > 12
    for seq in seqs:
        target.release(seq)
    drafter.check_integrity()
