"""A target whose next token depends on the newest one alone, and steps of a drafter over it."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as List
from types import SimpleNamespace
from typing import Any

import numpy as np

from outpace.drafters.base import Drafter
from outpace.params import SamplingParams
from outpace.types import Draft, Scores, Sequence, Verdict

Following = Callable[[int], List[int]]
"""The tokens most likely after one, likeliest first."""


def context(*, takes_trees: bool = True) -> Any:
    """What drafters that run no model of their own ask of a DraftingContext."""
    return SimpleNamespace(
        runner=SimpleNamespace(takes_trees=takes_trees), target=SimpleNamespace(name="table")
    )


def sequence(tokens: List[int], seq_id: int = 0, *, salt: str = "", room: int = 1000) -> Sequence:
    """A request with `tokens` as its prompt and room for that many more."""
    params = SamplingParams(temperature=0)
    seq = Sequence(seq_id, list(tokens), len(tokens), params, cache_salt=salt)
    seq.max_len = len(tokens) + room
    return seq


def logits_after(tokens: List[int], following: Following, vocab: int) -> np.ndarray:
    """[len(tokens), vocab]: a row after each token."""
    rows = np.full((len(tokens), vocab), -9.0, np.float32)
    for row, token in zip(rows, tokens, strict=True):
        likely = following(token)
        row[list(likely)] = np.arange(len(likely), 0, -1)
    return rows


def decide(seq: Sequence, draft: Draft, following: Following, most: int | None = None) -> Verdict:
    """Greedy decoding's verdict; of more than `most` tokens only so many, as a stop would leave."""
    children, tokens, nodes = draft.children(), [following(seq.tokens[-1])[0]], list[int]()
    while True:
        place = nodes[-1] + 1 if nodes else 0
        right = [c for c in children[place] if draft.token_ids[c] == tokens[-1]]
        if not right:
            break
        nodes.append(right[0])
        tokens.append(following(tokens[-1])[0])
    verdict = Verdict(tuple(tokens), len(nodes), nodes=tuple(nodes))
    return verdict if most is None else verdict.trimmed(most)


def observed(
    drafter: Drafter,
    seqs: List[Sequence],
    drafts: List[Draft],
    following: Following,
    vocab: int,
    most: int | None = None,
) -> list[Verdict]:
    """One pass over `drafts`, which need not be those proposed; the drafter is told."""
    fed = [[seq.tokens[-1], *draft.token_ids] for seq, draft in zip(seqs, drafts, strict=True)]
    ends = np.cumsum([len(tokens) for tokens in fed]).tolist()
    rows = [slice(end - len(tokens), end) for end, tokens in zip(ends, fed, strict=True)]
    values = np.concatenate([logits_after(tokens, following, vocab) for tokens in fed])
    verdicts = []
    for seq, draft in zip(seqs, drafts, strict=True):
        verdicts.append(decide(seq, draft, following, most))
        seq.tokens.extend(verdicts[-1].token_ids)
    drafter.observe(seqs, Scores(values, rows, list(rows)), verdicts)
    return verdicts


def step(
    drafter: Drafter,
    seqs: List[Sequence],
    budgets: List[int],
    following: Following,
    vocab: int,
    most: int | None = None,
) -> list[Draft]:
    """Propose, decide and observe once; returns the drafts."""
    drafts = drafter.propose(seqs, budgets)
    observed(drafter, seqs, drafts, following, vocab, most)
    return drafts
