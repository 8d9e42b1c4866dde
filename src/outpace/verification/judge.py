"""Which rule decides which request, and the draw of a single token under a request's parameters.

greedy                draft tokens stay while they equal the argmax (`coupled.match`)
sampling with a seed  they stay while they equal what the seed's noise chooses (`coupled`)
sampling without      token verification where every q is one-hot, and block verification with the
                      drafts' q otherwise (`chain`; for one-hot q the two are the same rule)

All but block verification go from one position to the next and stop at the first rejection, so a
position's distribution is made only when it is reached (`TargetRows`).
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as List

import numpy as np
from jaxtyping import Float

from outpace.errors import OptionError, OutpaceError
from outpace.sampling import History, draw, probabilities
from outpace.sampling.filters import best_token
from outpace.types import Draft, Scores, Sequence, Verdict
from outpace.verification.chain import block_decision, token_decision
from outpace.verification.coupled import choose, match


class TargetRows:
    """The target's distributions over one sequence's draft, each made when first asked for.

    `rows[i]` [V] is the distribution after the first i draft tokens. Where the request's parameters
    leave no token after those, it is all zeros and `errors[i]` says why: that matters only if the
    position is reached.
    """

    def __init__(self, logits: Float[np.ndarray, "rows V"], seq: Sequence, draft: Draft) -> None:
        self.errors: dict[int, OutpaceError] = {}
        self._logits = logits
        self._history = History(seq)
        self._drafted = draft.token_ids
        self._newest: tuple[int, Float[np.ndarray, " V"]] | None = None

    def __len__(self) -> int:
        return len(self._logits)

    def __getitem__(self, i: int) -> Float[np.ndarray, " V"]:
        # Rules look at a position twice in a row; rows of large vocabularies are not worth keeping.
        if self._newest is None or self._newest[0] != i:
            try:
                p = probabilities(self._logits[i], self._history, self._drafted[:i])
            except OutpaceError as error:
                self.errors[i] = error
                p = np.zeros_like(self._logits[i])
            self._newest = (i, p)
        return self._newest[1]

    def best(self, i: int) -> int | None:
        """The most probable token after the first i draft tokens; builds no distribution."""
        try:
            return best_token(self._history.processed(self._logits[i], self._drafted[:i]))
        except OutpaceError as error:
            self.errors[i] = error
            return None

    def until_the_end(self) -> Float[np.ndarray, "live V"]:
        """The rows up to the first that allows no token, that one included."""
        rows = []
        for i in range(len(self)):
            rows.append(self[i])
            if i in self.errors:
                break
        return np.stack(rows)


def verify(
    scores: Scores, seqs: List[Sequence], drafts: List[Draft], rng: np.random.Generator
) -> list[Verdict]:
    """Decide every sequence's draft from the target's logits.

    Sequences without rows in `scores` (prompt not fully fed) get an empty verdict; one whose
    parameters allow no further token gets a verdict with an error. Pure but for the coins it takes
    from `rng`, which only unseeded sampling uses.
    """
    logits = scores.on_host()
    verdicts = []
    for seq, draft, span in zip(seqs, drafts, scores.rows, strict=True):
        if span.stop == span.start:
            verdicts.append(Verdict())
            continue
        try:
            verdicts.append(_judge(TargetRows(logits[span], seq, draft), seq, draft, rng))
        except Exception as error:  # of whatever kind: the other sequences are not concerned
            verdicts.append(Verdict(error=error))
    return verdicts


def _judge(rows: TargetRows, seq: Sequence, draft: Draft, rng: np.random.Generator) -> Verdict:
    if seq.params.is_greedy:
        verdict = _verify_matching(draft, rows.best)
    elif seq.params.seed is not None:
        verdict = _verify_matching(draft, _seeded_choice(rows, seq, seq.params.seed))
    else:
        verdict = _verify_with_coins(rows, draft, rng)
    return verdict if verdict.token_ids else Verdict(error=rows.errors[0])


def _seeded_choice(rows: TargetRows, seq: Sequence, seed: int) -> Callable[[int], int | None]:
    def chosen(i: int) -> int | None:
        p = rows[i]
        return None if i in rows.errors else choose(p, seed, seq.choice, seq.num_output + i)

    return chosen


def _verify_matching(draft: Draft, chosen_at: Callable[[int], int | None]) -> Verdict:
    """Match the draft with the target's choices, made one after the other.

    A position without a choice (None) ends the verdict with the accepted tokens alone.
    """
    chosen: list[int] = []
    for i in range(len(draft) + 1):
        choice = chosen_at(i)
        if choice is None:
            return Verdict(tuple(chosen), len(chosen))
        chosen.append(choice)
        if i == len(draft) or choice != draft.token_ids[i]:
            break
    return match(draft.token_ids[: len(chosen) - 1], chosen)


def _verify_with_coins(rows: TargetRows, draft: Draft, rng: np.random.Generator) -> Verdict:
    coins = rng.random(len(draft) + 1)
    if draft.is_deterministic:
        decision = token_decision(rows, draft, coins[:-1])
    else:
        p = rows.until_the_end()
        draft = draft.shortened(len(p) - 1)
        decision = block_decision(p, draft, coins[: len(draft)])
    accepted = draft.token_ids[: decision.num_accepted]
    if not decision.weights.any():
        # The accepted tokens stand, and what may follow them is the next step's concern.
        return Verdict(accepted, decision.num_accepted)
    own = draw(decision.weights, float(coins[-1]))
    return Verdict((*accepted, own), decision.num_accepted)


def draw_tokens(
    logits: Float[np.ndarray, "n V"],
    seqs: List[Sequence],
    drafts: List[Draft],
    rng: np.random.Generator,
) -> list[tuple[int, np.ndarray | None]]:
    """Draw one token per row under its sequence's parameters: what a draft model does.

    drafts: the draft tokens that each row's token will follow.
    Returns (token, q): q is the distribution it was drawn from, or None where the choice was
    deterministic given the seed (or greedy), so that it is judged as one-hot.
    """
    return [
        _draw_token(row, seq, draft, rng)
        for row, seq, draft in zip(logits, seqs, drafts, strict=True)
    ]


def _draw_token(
    logits: Float[np.ndarray, " V"], seq: Sequence, draft: Draft, rng: np.random.Generator
) -> tuple[int, np.ndarray | None]:
    history = History(seq)
    try:
        if seq.params.is_greedy:
            return best_token(history.processed(logits, draft.token_ids)), None
        q = probabilities(logits, history, draft.token_ids)
    except OptionError:
        # No token may follow this draft, so none that is proposed can be accepted.
        return int(logits.argmax()), None
    if seq.params.seed is not None:
        return choose(q, seq.params.seed, seq.choice, seq.num_output + len(draft)), None
    return draw(q, float(rng.random())), q
