"""An independent smaller model drafts; same tokenizer, own cache, sampled drafts with true q.

Speculative sampling (Leviathan et al. 2211.17192; Chen et al. 2302.01318).
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as List
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from outpace.drafters.base import Drafter, DrafterOptions, DraftingContext
from outpace.errors import OptionError
from outpace.types import Draft, Sequence

if TYPE_CHECKING:
    from outpace.models.load import LoadedModel

MAX_FEED = 512
"""Most tokens of one sequence fed per draft pass while it catches up with a prompt."""


@dataclass(frozen=True, kw_only=True)
class DraftModelOptions(DrafterOptions):
    """Options of drafting by a second model."""

    model: Any = field(
        default=None,
        metadata={"help": "draft model: alias or path; must have the target's tokenizer"},
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model is None:
            raise OptionError(
                "method 'draft_model' needs a draft model: give `model` "
                "(--speculative-model on the command line)"
            )


class DraftModelDrafter(Drafter):
    """Runs a second model K steps ahead.

    Tokens are drawn under the request's own sampling parameters, and the distribution they were
    drawn from travels with them as q. Seeded requests draw with the noise that the target will
    use at the same position, which makes the two agree more often than independent draws.
    """

    Options = DraftModelOptions

    @classmethod
    def models(
        cls, options: DrafterOptions, load_model: Callable[[Any], LoadedModel]
    ) -> list[LoadedModel]:
        assert isinstance(options, DraftModelOptions)
        return [load_model(options.model)]

    def __init__(self, options: DraftModelOptions, context: DraftingContext) -> None:
        # Heavy imports wait until a draft model is really built: the command line imports this
        # file to read its options.
        from outpace.models.tokenizer import check_same_vocabulary
        from outpace.runner import Runner

        super().__init__(options, context)
        (draft,) = context.models
        check_same_vocabulary(context.target.tokenizer, draft.tokenizer)
        max_len = min(context.max_model_len, draft.max_len)
        self._rng = context.rng
        self._runner = Runner(
            draft.decoder, draft.new_cache(num_rows=context.max_num_seqs, num_tokens=max_len)
        )

    def propose(self, seqs: List[Sequence], budgets: List[int]) -> list[Draft]:
        # Past its own context the draft model stays silent and the request goes on plain.
        limits = [
            min(budget, self._runner.max_len - len(seq.tokens))
            for seq, budget in zip(seqs, budgets, strict=True)
        ]
        drafts = [Draft()] * len(seqs)
        active = [i for i, limit in enumerate(limits) if limit > 0]
        batch = [seqs[i] for i in active]
        self._catch_up(batch)
        if active and self._runner.can_draft and all(map(_takes_the_best, batch)):
            chosen = self._runner.draft_greedy(batch, [limits[i] for i in active])
            for i, token_ids in zip(active, chosen, strict=True):
                drafts[i] = Draft(tuple(token_ids), origin="draft_model")
            return drafts
        while active:
            self._extend(drafts, active, seqs)
            active = [i for i in active if limits[i] > len(drafts[i])]
        return drafts

    def _extend(self, drafts: list[Draft], active: List[int], seqs: List[Sequence]) -> None:
        """Draw one more token for each of the `active` drafts."""
        from outpace.verification.judge import draw_tokens

        so_fars = [drafts[i] for i in active]
        scores = self._runner.extend([seqs[i] for i in active], so_fars, last_only=True)
        # Logits stand in the order of cache rows.
        order = sorted(range(len(active)), key=lambda j: scores.rows[j].start)
        drawn = draw_tokens(
            scores.on_host(),
            [seqs[active[j]] for j in order],
            [so_fars[j] for j in order],
            self._rng,
        )
        for j, (token, q) in zip(order, drawn, strict=True):
            so_far = so_fars[j]
            drafts[active[j]] = Draft(
                (*so_far.token_ids, token), (*(so_far.q or ()), q), origin="draft_model"
            )

    def _catch_up(self, seqs: List[Sequence]) -> None:
        """Bring the draft cache to all but a short rest of each sequence's tokens.

        The cache keeps the longest common prefix of what it was fed and what was committed:
        that one rule covers rejected drafts, stops, and steps slept through.
        """
        for seq in seqs:
            if not self._runner.is_open(seq):
                self._runner.open(seq)
        self._runner.commit(seqs)
        while behind := [s for s in seqs if len(s.tokens) - self._runner.num_cached(s) > MAX_FEED]:
            self._runner.extend(behind, max_feed=[MAX_FEED] * len(behind))

    def release(self, seq: Sequence) -> None:
        self._runner.release(seq)

    def check_integrity(self) -> None:
        self._runner.check_integrity()


def _takes_the_best(seq: Sequence) -> bool:
    """Whether every draft token of the sequence is the argmax of the draft model's own logits."""
    from outpace.sampling import History

    return seq.params.is_greedy and History(seq).is_neutral
