"""Which rule decides which request, and the draw of a single token under a request's parameters.

greedy                draft tokens stay while they equal the argmax (`coupled.match`, `walk`)
sampling with a seed  they stay while they equal what the seed's noise chooses (`coupled`)
sampling without      a chain by token verification where every q is one-hot, and by block
                      verification with the draft's q otherwise (`chain`); a tree by recursive
                      rejection and by traversal (`tree`); for one-hot q the rules are the same
typical acceptance    if asked for, and not greedy: *not lossless* (`lossy`)

All but block verification and traversal go from one position to the next and stop at the first
rejection, so a position's distribution is made only when it is reached (`TargetRows`).
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as List

import numpy as np
from jaxtyping import Float

from outpace.errors import OptionError, OutpaceError
from outpace.sampling import History, draw, probabilities
from outpace.sampling.filters import best_token, descending
from outpace.types import Draft, Scores, Sequence, Verdict
from outpace.verification.chain import block_decision, residual, token_decision
from outpace.verification.coupled import arrivals, choose, match, walk
from outpace.verification.lossy import TypicalAcceptance, typical_path
from outpace.verification.tree import recursive_decision, traversal_decision


class TargetRows:
    """The target's distributions over one sequence's draft, each made when first asked for.

    `rows[0]` [V] is the distribution after the newest committed token, `rows[i + 1]` the one after
    draft token i. Where the request's parameters leave no token there, it is all zeros and
    `errors` says why, by row: that matters only if the position is reached.
    """

    def __init__(self, logits: Float[np.ndarray, "rows V"], seq: Sequence, draft: Draft) -> None:
        self.errors: dict[int, OutpaceError] = {}
        self._logits = logits
        self._history = History(seq)
        self._draft = draft
        self._newest: tuple[int, Float[np.ndarray, " V"]] | None = None

    def __len__(self) -> int:
        return len(self._logits)

    def __getitem__(self, i: int) -> Float[np.ndarray, " V"]:
        # Rules look at a position twice in a row; rows of large vocabularies are not worth keeping.
        if self._newest is None or self._newest[0] != i:
            try:
                p = probabilities(self._logits[i], self._history, self.drafted(i))
            except OutpaceError as error:
                self.errors[i] = error
                p = np.zeros_like(self._logits[i])
            self._newest = (i, p)
        return self._newest[1]

    def drafted(self, i: int) -> tuple[int, ...]:
        """The draft tokens between the newest committed one and row i."""
        return self._draft.tokens_to(i - 1)

    def best(self, i: int) -> int | None:
        """The most probable token of row i; builds no distribution."""
        try:
            return best_token(self._history.processed(self._logits[i], self.drafted(i)))
        except OutpaceError as error:
            self.errors[i] = error
            return None

    def until_the_end(self) -> Float[np.ndarray, "live V"]:
        """The rows of a chain up to the first that allows no token, that one included."""
        rows = []
        for i in range(len(self)):
            rows.append(self[i])
            if i in self.errors:
                break
        return np.stack(rows)


def verify(
    scores: Scores,
    seqs: List[Sequence],
    drafts: List[Draft],
    rng: np.random.Generator,
    lossy: TypicalAcceptance | None = None,
) -> list[Verdict]:
    """Decide every sequence's draft from the target's logits.

    Sequences without rows in `scores` (prompt not fully fed) get an empty verdict; one whose
    parameters allow no further token gets a verdict with an error. Pure but for the coins it takes
    from `rng`, which only unseeded sampling uses.
    lossy: accept by this rule wherever a request is not greedy. The output then does NOT follow the
        target's distribution.
    """
    logits = scores.on_host()
    verdicts = []
    for seq, draft, span in zip(seqs, drafts, scores.rows, strict=True):
        if span.stop == span.start:
            verdicts.append(Verdict())
            continue
        try:
            rows = TargetRows(logits[span], seq, draft)
            verdicts.append(_judge(rows, seq, draft, rng, lossy))
        except Exception as error:  # of whatever kind: the other sequences are not concerned
            verdicts.append(Verdict(error=error))
    return verdicts


def _judge(
    rows: TargetRows,
    seq: Sequence,
    draft: Draft,
    rng: np.random.Generator,
    lossy: TypicalAcceptance | None,
) -> Verdict:
    seed = seq.params.seed
    if seq.params.is_greedy:
        verdict = _verify_matching(draft, rows.best)
    elif lossy is not None:
        verdict = _verify_typical(rows, seq, draft, rng, lossy)
    elif seed is not None:
        verdict = _verify_matching(draft, lambda i: _seeded_choice(rows, i, seq, seed))
    elif draft.is_chain:
        verdict = _verify_chain(rows, draft, rng)
    else:
        verdict = _verify_tree(rows, draft, rng)
    return verdict if verdict.token_ids else Verdict(error=rows.errors[0])


def _seeded_choice(rows: TargetRows, i: int, seq: Sequence, seed: int) -> int | None:
    p = rows[i]
    if i in rows.errors:
        return None
    return choose(p, seed, seq.choice, seq.num_output + len(rows.drafted(i)))


def _verify_matching(draft: Draft, chosen_at: Callable[[int], int | None]) -> Verdict:
    """Match the draft with the target's choices, made one after the other.

    A position without a choice (None) ends the verdict with the accepted tokens alone.
    """
    if not draft.is_chain:
        return walk(draft, chosen_at)
    chosen: list[int] = []
    for i in range(len(draft) + 1):
        choice = chosen_at(i)
        if choice is None:
            return Verdict(tuple(chosen), len(chosen))
        chosen.append(choice)
        if i == len(draft) or choice != draft.token_ids[i]:
            break
    return match(draft.token_ids[: len(chosen) - 1], chosen)


def _verify_chain(rows: TargetRows, draft: Draft, rng: np.random.Generator) -> Verdict:
    coins = rng.random(len(draft) + 1)
    if draft.is_deterministic:
        decision = token_decision(rows, draft, coins[:-1])
    else:
        p = rows.until_the_end()
        draft = draft.shortened(len(p) - 1)
        decision = block_decision(p, draft, coins[: len(draft)])
    accepted = draft.token_ids[: decision.num_accepted]
    return Verdict(
        (*accepted, *_own_token(decision.weights, float(coins[-1]))), decision.num_accepted
    )


def _verify_tree(rows: TargetRows, draft: Draft, rng: np.random.Generator) -> Verdict:
    coins = rng.random(draft.num_verified + 1)
    decide = recursive_decision if draft.is_deterministic else traversal_decision
    decision = decide(rows, draft, coins[:-1])
    own = _own_token(decision.weights, float(coins[-1]))
    return _verdict_along(draft, decision.nodes, own)


def _verify_typical(
    rows: TargetRows,
    seq: Sequence,
    draft: Draft,
    rng: np.random.Generator,
    rule: TypicalAcceptance,
) -> Verdict:
    nodes = typical_path(rows, draft, rule)
    last = nodes[-1] + 1 if nodes else 0
    if seq.params.seed is None:
        own = _own_token(rows[last], float(rng.random()))
    else:
        choice = _seeded_choice(rows, last, seq, seq.params.seed)
        own = () if choice is None else (choice,)
    return _verdict_along(draft, nodes, own)


def _own_token(weights: Float[np.ndarray, " V"], coin: float) -> tuple[int, ...]:
    """The token after the accepted ones; none where none may come: those stand, and what may
    follow them is the next step's concern."""
    return (draw(weights, coin),) if weights.any() else ()


def _verdict_along(draft: Draft, nodes: tuple[int, ...], own: tuple[int, ...]) -> Verdict:
    accepted = [draft.token_ids[node] for node in nodes]
    return Verdict((*accepted, *own), len(nodes), nodes=nodes)


def draw_siblings(
    logits: Float[np.ndarray, " V"],
    seq: Sequence,
    drafted: List[int],
    count: int,
    rng: np.random.Generator,
) -> list[tuple[int, np.ndarray | None]]:
    """Draw `count` different tokens, the children of one node of a tree, under the parameters.

    drafted: the draft tokens between the newest committed one and this position.
    Returns (token, q) in drawn order, as `Draft` wants siblings: without a seed the first is drawn
    from q, each further one from q without those before it, renormalised, which is its own q.
    Greedy requests get the most probable tokens, and those with a seed the first to arrive in the
    race that also decides their target's choice (`coupled.arrivals`), all judged as one-hot.
    Fewer where fewer tokens have mass; none where no token may come.
    """
    history = History(seq)
    try:
        if seq.params.is_greedy:
            processed = history.processed(logits, drafted)
            best_token(processed)
            most = descending(processed, count)[:count]
            return [(int(token), None) for token in most if processed[token] > -np.inf]
        q = probabilities(logits, history, drafted)
    except OptionError:
        return []
    if seq.params.seed is not None:
        position = seq.num_output + len(drafted)
        first = arrivals(q, seq.params.seed, seq.choice, position, count)
        return [(token, None) for token in first]
    return _without_replacement(q, count, rng)


def _without_replacement(
    q: Float[np.ndarray, " V"], count: int, rng: np.random.Generator
) -> list[tuple[int, np.ndarray | None]]:
    drawn: list[tuple[int, np.ndarray | None]] = []
    while len(drawn) < count:
        token = draw(q, float(rng.random()))
        drawn.append((token, q))
        q = residual(q, token, None)
        mass = float(q.sum(dtype=np.float64))
        if not mass > 0:
            break
        q /= mass
    return drawn
