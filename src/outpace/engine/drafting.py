"""A drafter behind a guard: whatever it does, the answer stays right and the others go on."""

from __future__ import annotations

import logging
import operator
from collections.abc import Sequence as List
from dataclasses import replace

import numpy as np

from outpace.control.decisions import DecisionLog
from outpace.drafters.base import Drafter
from outpace.engine.request import Request
from outpace.types import NO_DRAFT, Draft, Scores, Sequence, StepTimes, Verdict

logger = logging.getLogger(__name__)


class GuardedDrafter:
    """Calls a drafter, checks what it returns, and turns it off for requests where it fails.

    A request whose drafter raised or broke its contract goes on plain; the error is logged once
    with its traceback and counted in the request's statistics.
    """

    def __init__(self, drafter: Drafter, *, takes_trees: bool) -> None:
        """takes_trees: whether the target does; of a tree its first path is left otherwise."""
        self._drafter = drafter
        self._takes_trees = takes_trees
        self._was_told = False  # whether it observed the newest step

    def capture(self, requests: List[Request]) -> List[int]:
        """Target layers whose output the drafter wants of a pass over these requests."""
        return self._drafter.capture if _any_drafted(requests) else ()

    @property
    def decisions(self) -> DecisionLog | None:
        """See `Drafter.decisions`."""
        return self._drafter.decisions

    def propose(self, requests: List[Request], budgets: List[int]) -> list[Draft]:
        """Drafts for all requests. The drafter is asked only about those with a budget whose
        grammar leaves a choice: what must come next is the draft otherwise."""
        drafts = [_forced(*each) for each in zip(requests, budgets, strict=True)]
        asked = [
            i
            for i, request in enumerate(requests)
            if budgets[i] > 0 and not request.drafter_failed and not len(drafts[i])
        ]
        if not asked:
            return drafts
        try:
            proposed = self._ask([requests[i] for i in asked], [budgets[i] for i in asked])
        except Exception:
            proposed = None
        if proposed is None:
            # One by one, to find out which request the drafter cannot serve.
            proposed = [self._ask_about_one(requests[i], budgets[i]) for i in asked]
        for i, draft in zip(asked, proposed, strict=True):
            drafts[i] = draft
        return drafts

    def observe(self, requests: List[Request], scores: Scores, verdicts: List[Verdict]) -> None:
        self._was_told = False
        if not _any_drafted(requests):
            return
        try:
            self._drafter.observe([r.seq for r in requests], scores, verdicts)
            self._was_told = True
        except Exception as error:
            for request in requests:
                self._turn_off(request, error)

    def timed(self, times: StepTimes) -> None:
        if not self._was_told:
            return
        try:
            self._drafter.timed(times)
        except Exception:
            logger.exception("drafter failed to learn what a step took")

    def adopt(self, request: Request, source: Sequence | None, length: int) -> int:
        """From where the target must feed; see `Drafter.adopt`. Whatever is cached will do for a
        request that is decoded plainly, and its drafter is not asked."""
        if not request.draft_limit:
            return length
        try:
            usable = operator.index(self._drafter.adopt(request.seq, source, length))
            if not 0 <= usable <= length:
                raise ValueError(f"drafter adopted {usable} of {length} cached tokens")
        except Exception as error:
            self._turn_off(request, error)
            return length
        return usable

    def release(self, seq: Sequence) -> None:
        try:
            self._drafter.release(seq)
        except Exception:
            logger.exception("drafter failed to release sequence %d", seq.seq_id)

    def check_integrity(self) -> None:
        self._drafter.check_integrity()

    def _ask_about_one(self, request: Request, budget: int) -> Draft:
        try:
            (draft,) = self._ask([request], [budget])
        except Exception as error:
            self._turn_off(request, error)
            return Draft()
        return draft

    def _ask(self, requests: List[Request], budgets: List[int]) -> list[Draft]:
        seqs = [request.seq for request in requests]
        before = [(list(seq.tokens), seq.num_prompt) for seq in seqs]
        try:
            drafts = self._drafter.propose(seqs, budgets)
        finally:
            changed = _restore(seqs, before)
        if changed:
            raise ValueError("drafter changed a sequence in propose()")
        if len(drafts) != len(seqs):
            raise ValueError(f"drafter returned {len(drafts)} drafts for {len(seqs)} sequences")
        checked = [_checked(draft, k) for draft, k in zip(drafts, budgets, strict=True)]
        return [self._fitted(draft, r) for draft, r in zip(checked, requests, strict=True)]

    def _fitted(self, draft: Draft, request: Request) -> Draft:
        """What can be fed and used of a draft. Only where a token stands decides whether it is cut:
        one that was drawn must never be dropped for what it is. Tokens that were not drawn, but
        follow from the text, are dropped from the first on that the grammar forbids."""
        if not (self._takes_trees or draft.is_chain):
            draft = draft.first_path()
        depth, seq = request.draft_depth, request.seq
        if len(draft) > depth:
            draft = draft.no_deeper_than(depth)
        if seq.grammar is not None and draft.is_chain and draft.is_deterministic:
            num_allowed = seq.grammar.num_allowed(seq.tokens, seq.num_prompt, draft.token_ids)
            draft = draft.shortened(num_allowed)
        return draft

    def _turn_off(self, request: Request, error: Exception) -> None:
        if not request.drafter_failed and request.draft_limit:
            name = type(self._drafter).__name__
            logger.error("drafter %s failed; the request goes on plain", name, exc_info=error)
        request.drafter_failed = True
        if request.seq.grammar is None:
            request.draft_limit = 0
        request.stats.num_drafter_errors += 1


def _any_drafted(requests: List[Request]) -> bool:
    """Whether any of them may have drafts, now or later; what is decoded plainly costs no more than
    it would without a drafter."""
    return any(request.draft_limit and not request.drafter_failed for request in requests)


def _forced(request: Request, budget: int) -> Draft:
    """What must come next by the request's grammar."""
    seq = request.seq
    if seq.grammar is None or budget <= 0:
        return NO_DRAFT
    run = seq.grammar.forced(seq.tokens, seq.num_prompt)[: min(budget, request.draft_depth)]
    return Draft(run, origin="grammar" if run else "")


def _checked(draft: Draft, budget: int) -> Draft:
    if len(draft) > budget:
        raise ValueError(f"drafter proposed {len(draft)} tokens with a budget of {budget}")
    if not draft.token_ids:
        return NO_DRAFT
    # Numbers may come as numpy or torch integers; anything else is not an id, nor a place.
    token_ids = tuple(operator.index(token) for token in draft.token_ids)
    parents = draft.parents
    if parents is not None:
        parents = tuple(operator.index(parent) for parent in parents)
    num_probes = operator.index(draft.num_probes)
    for position, token in enumerate(token_ids):
        q = draft.q_at(position)
        if q is not None:
            _check_claim(q, token)
    return replace(draft, token_ids=token_ids, parents=parents, num_probes=num_probes)


def _check_claim(q: object, token: int) -> None:
    """Raise ValueError unless q can be a distribution that `token` was drawn from."""
    if not isinstance(q, np.ndarray) or q.ndim != 1 or not np.issubdtype(q.dtype, np.floating):
        raise ValueError(f"q must be a one-dimensional float array or None, got {type(q).__name__}")
    if not 0 <= token < q.size or not q[token] > 0:
        raise ValueError(f"token {token} cannot have been drawn from its q")
    # Written so that NaN fails.
    if not (abs(float(q.sum(dtype=np.float64)) - 1) < 1e-3 and q.min() >= 0):
        raise ValueError("q is not a distribution: it is negative somewhere or does not sum to 1")


def _restore(seqs: List[Sequence], before: List[tuple[list[int], int]]) -> bool:
    """Put back what a drafter changed in sequences; returns whether it changed anything."""
    changed = False
    for seq, (tokens, num_prompt) in zip(seqs, before, strict=True):
        if seq.tokens != tokens or seq.num_prompt != num_prompt:
            seq.tokens[:] = tokens
            seq.num_prompt = num_prompt
            if seq.grammar is not None:
                seq.grammar.forget()
            changed = True
    return changed
