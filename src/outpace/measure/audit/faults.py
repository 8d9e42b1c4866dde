"""Faults to plant: mistakes in circulation, each where it would really be made.

A wrong rule is a judge (`engine.instruments`), a false claim about draws is a drafter, and a cache
that keeps what was rejected is a cache. All of them are planted in the engine as it runs, on the
model that is audited. Greedy and seeded requests are spared by the wrong rules, as in real life.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as List
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from jaxtyping import Float

from outpace.cache import CacheRows, CopyableRows
from outpace.drafters.base import Drafter, DrafterOptions, DraftingContext
from outpace.engine.instruments import Judge
from outpace.measure.audit.text_law import Text, TextLaw
from outpace.models.load import LoadedModel
from outpace.sampling import draw
from outpace.types import Draft, Scores, Sequence, Verdict
from outpace.verification.judge import TargetRows, verify
from outpace.verification.lossy import TypicalAcceptance

Replace = Callable[[TargetRows, Draft, Verdict, np.random.Generator], int | None]
"""The token to say instead of a verdict's last one; None: no other."""


def wrong_last_token(replacement: Replace) -> Judge:
    """A judge that decides like `verify`, but for the token after the accepted ones."""

    def judge(
        scores: Scores,
        seqs: List[Sequence],
        drafts: List[Draft],
        rng: np.random.Generator,
        lossy: TypicalAcceptance | None = None,
    ) -> list[Verdict]:
        verdicts = verify(scores, seqs, drafts, rng, lossy)
        logits = scores.on_host()
        for i, (seq, draft, verdict) in enumerate(zip(seqs, drafts, verdicts, strict=True)):
            is_free = not seq.params.is_greedy and seq.params.seed is None
            if is_free and len(verdict.token_ids) > verdict.num_accepted:
                rows = TargetRows(logits[scores.rows[i]], seq, draft)
                token = replacement(rows, draft, verdict, rng)
                if token is not None:
                    kept = (*verdict.token_ids[:-1], token)
                    verdicts[i] = Verdict(kept, verdict.num_accepted, nodes=verdict.nodes)
        return verdicts

    return judge


def recovered_from_p(
    rows: TargetRows, draft: Draft, verdict: Verdict, rng: np.random.Generator
) -> int | None:
    """After a rejection, a token drawn from p instead of the residual."""
    place = _place(verdict)
    return draw(rows[place], float(rng.random())) if draft.children()[place] else None


def bonus_by_argmax(
    rows: TargetRows, draft: Draft, verdict: Verdict, rng: np.random.Generator
) -> int | None:
    """After full acceptance, the most probable token instead of one drawn from p."""
    place = _place(verdict)
    is_bonus = verdict.num_accepted and not draft.children()[place]
    return int(rows[place].argmax()) if is_bonus else None


def _place(verdict: Verdict) -> int:
    """The row after the last accepted token."""
    return verdict.accepted_nodes[-1] + 1 if verdict.num_accepted else 0


@dataclass(frozen=True, kw_only=True)
class InformedOptions(DrafterOptions):
    """laws: of the texts after each prompt that is drafted for, by the prompt's ids."""

    num_speculative_tokens: int = 2
    laws: dict[Text, TextLaw] = field(default_factory=dict)


class InformedDrafter(Drafter):
    """Draws every token from half the target's own distribution and half its most probable token.

    So it is accepted often and rejected often, on any model and without weights. It knows what
    follows from the laws it is given, and drafts nothing where they end. Honest.
    """

    Options = InformedOptions

    def __init__(self, options: InformedOptions, context: DraftingContext) -> None:
        super().__init__(options, context)
        self._laws = options.laws
        self._rng = context.rng

    def propose(self, seqs: List[Sequence], budgets: List[int]) -> list[Draft]:
        return [self._chain(seq, budget) for seq, budget in zip(seqs, budgets, strict=True)]

    def _chain(self, seq: Sequence, budget: int) -> Draft:
        law = self._laws.get(tuple(seq.tokens[: seq.num_prompt]))
        text = tuple(seq.tokens[seq.num_prompt :])
        token_ids: tuple[int, ...] = ()
        claims: tuple[Float[np.ndarray, " V"], ...] = ()
        while law is not None and len(token_ids) < budget:
            after = law.following.get((*text, *token_ids))
            if after is None:
                break
            q = after.p / 2
            q[after.p.argmax()] += after.p.dtype.type(0.5)
            token = self.choose(q)
            if token is None:
                break
            token_ids, claims = (*token_ids, token), (*claims, q)
        return Draft(token_ids, claims, origin="informed")

    def choose(self, q: Float[np.ndarray, " V"]) -> int | None:
        """The next draft token; None ends the draft."""
        return draw(q, float(self._rng.random()))


class ArgmaxWithSoftQ(InformedDrafter):
    """Drafts the most probable token and claims to have drawn it."""

    def choose(self, q: Float[np.ndarray, " V"]) -> int | None:
        return int(q.argmax())


class DropsUnlikely(InformedDrafter):
    """Draws, looks at the token, and ends the draft before one that it thinks unlikely."""

    def choose(self, q: Float[np.ndarray, " V"]) -> int | None:
        token = super().choose(q)
        return token if token is not None and q[token] >= 0.5 * q.max() else None


class RepeatingDrafter(Drafter):
    """Drafts the newest token again and again: nearly always wrong, so that caches roll back."""

    def propose(self, seqs: List[Sequence], budgets: List[int]) -> list[Draft]:
        return [
            Draft((seq.tokens[-1],) * budget, origin="repeating")
            for seq, budget in zip(seqs, budgets, strict=True)
        ]


class StaleCacheModel(LoadedModel):
    """A model whose caches keep a rejected token's entry, in place of the last accepted one's."""

    def new_cache(self, *, num_rows: int, num_tokens: int) -> CacheRows:
        cache = super().new_cache(num_rows=num_rows, num_tokens=num_tokens)
        _keep_rejected(cache)
        return cache


def has_copyable_cache(loaded: LoadedModel) -> bool:
    """Whether a stale entry can be planted: the adapter's caches are transformers' own."""
    return isinstance(loaded.new_cache(num_rows=1, num_tokens=1), CopyableRows)


def stale(loaded: LoadedModel) -> StaleCacheModel:
    return StaleCacheModel(**{f.name: getattr(loaded, f.name) for f in fields(LoadedModel)})


def _keep_rejected(cache: Any) -> None:
    """Make `rollback` of an open row leave the first forgotten entry where the last kept one was.

    Prefixes that are taken over from closed rows are cut by the same call; those stay right.
    """
    rollback, open_row = cache.rollback, cache.open
    opening = False

    def stale_rollback(row: int, length: int) -> None:
        if not opening and 0 < length < cache.length(row):
            cache._move_slots(row, length - 1, [1])
        rollback(row, length)

    def honest_open(*args: Any) -> tuple[int, int]:
        nonlocal opening
        opening = True
        try:
            found: tuple[int, int] = open_row(*args)
            return found
        finally:
            opening = False

    cache.rollback, cache.open = stale_rollback, honest_open
