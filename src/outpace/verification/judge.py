"""Which rule decides which request, and the draw of a single token under a request's parameters.

greedy                draft tokens stay while they equal the argmax (`coupled.match`)
sampling with a seed  they stay while they equal what the seed's noise chooses (`coupled`)
sampling without      block verification with the draft's q (`chain.block_verify`)
"""

from __future__ import annotations

from collections.abc import Sequence as List

import numpy as np
from jaxtyping import Float
from torch import Tensor

from outpace.sampling import check_finite, draw, probabilities
from outpace.types import Draft, Scores, Sequence, Verdict
from outpace.verification.chain import block_verify
from outpace.verification.coupled import choose, match

CHOICE = 0
"""Index of the answer among a request's n: part of the noise's key."""


def verify(
    scores: Scores, seqs: List[Sequence], drafts: List[Draft], rng: np.random.Generator
) -> list[Verdict]:
    """Decide every sequence's draft from the target's logits.

    Sequences without rows in `scores` (prompt not fully fed) get an empty verdict. Pure but for
    the coins it takes from `rng`, which only unseeded sampling uses.
    """
    verdicts = [Verdict()] * len(seqs)
    scored = [i for i in range(len(seqs)) if scores.rows[i].stop > scores.rows[i].start]
    greedy = [i for i in scored if seqs[i].params.is_greedy]
    sampled = [i for i in scored if not seqs[i].params.is_greedy]
    if greedy:
        highest, first = scores.logits.max(dim=-1)
        check_finite(highest)
        best = first.tolist()
        for i in greedy:
            verdicts[i] = match(drafts[i].token_ids, best[scores.rows[i]])
    if sampled:
        for i, p in zip(sampled, _target_probabilities(scores, seqs, sampled), strict=True):
            verdicts[i] = _verify_sampled(p, seqs[i], drafts[i], rng)
    return verdicts


def _target_probabilities(
    scores: Scores, seqs: List[Sequence], chosen: List[int]
) -> list[Float[np.ndarray, "rows V"]]:
    spans = [range(scores.rows[i].start, scores.rows[i].stop) for i in chosen]
    params = [seqs[i].params for i, span in zip(chosen, spans, strict=True) for _ in span]
    rows = [row for span in spans for row in span]
    # One sequence, or all in order: the usual case, and no need to copy the logits.
    in_place = rows == list(range(len(scores.logits)))
    logits = scores.logits if in_place else scores.logits[rows]
    p = probabilities(logits, params).cpu().numpy()
    return np.split(p, np.cumsum([len(span) for span in spans])[:-1])


def _verify_sampled(
    p: Float[np.ndarray, "rows V"], seq: Sequence, draft: Draft, rng: np.random.Generator
) -> Verdict:
    if seq.params.seed is None:
        coins = rng.random(len(draft) + 1)
        return block_verify(p, draft, coins[:-1], float(coins[-1]))
    chosen: list[int] = []
    for position, row in enumerate(p):
        chosen.append(choose(row, seq.params.seed, CHOICE, seq.num_output + position))
        if position == len(draft) or chosen[-1] != draft.token_ids[position]:
            break
    return match(draft.token_ids[: len(chosen) - 1], chosen)


def draw_tokens(
    logits: Float[Tensor, "n V"],
    seqs: List[Sequence],
    positions: List[int],
    rng: np.random.Generator,
) -> list[tuple[int, np.ndarray | None]]:
    """Draw one token per row under its sequence's parameters: what a draft model does.

    positions: each row's output position, the key of a seeded request's noise.
    Returns (token, q): q is the distribution it was drawn from, or None where the choice was
    deterministic given the seed (or greedy), so that it is judged as one-hot.
    """
    if all(seq.params.is_greedy for seq in seqs):
        return [(token, None) for token in logits.argmax(dim=-1).tolist()]
    q = probabilities(logits, [seq.params for seq in seqs]).cpu().numpy()
    drawn: list[tuple[int, np.ndarray | None]] = []
    for row, seq, position in zip(q, seqs, positions, strict=True):
        if seq.params.is_greedy:
            drawn.append((int(row.argmax()), None))
        elif seq.params.seed is not None:
            drawn.append((choose(row, seq.params.seed, CHOICE, position), None))
        else:
            drawn.append((draw(row, float(rng.random())), row))
    return drawn
