"""An independent smaller model drafts; same tokenizer, own cache (`parts/model_drafts.py`)."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as List
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from outpace.drafters.base import Drafter, DrafterOptions, DraftingContext
from outpace.drafters.parts.model_drafts import ModelDraftOptions, ModelDrafts
from outpace.errors import OptionError
from outpace.types import Draft, Sequence

if TYPE_CHECKING:
    from outpace.models.load import LoadedModel

MAX_FEED = 512
"""Most tokens of one sequence fed per draft pass while it catches up with a prompt."""


@dataclass(frozen=True, kw_only=True)
class DraftModelOptions(ModelDraftOptions):
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
    """Runs a second model some steps ahead."""

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
        self._runner = Runner(
            draft.decoder, draft.new_cache(num_rows=context.max_num_seqs, num_tokens=max_len)
        )
        if options.num_branches > 1 and not self._runner.takes_trees:
            raise OptionError(
                f"num_branches={options.num_branches}, but the draft model {draft.name} "
                f"({draft.runs_on}) drafts chains only: its cache takes no trees; use 1"
            )
        self._drafts = ModelDrafts(
            self._runner,
            context.rng,
            origin="draft_model",
            num_branches=options.num_branches,
        )

    def propose(self, seqs: List[Sequence], budgets: List[int]) -> list[Draft]:
        # Past its own context the draft model stays silent and the request goes on plain.
        limits = [
            min(budget, self._runner.max_len - len(seq.tokens))
            for seq, budget in zip(seqs, budgets, strict=True)
        ]
        self._catch_up([seq for seq, limit in zip(seqs, limits, strict=True) if limit > 0])
        return self._drafts.propose(seqs, limits)

    def adopt(self, seq: Sequence, source: Sequence | None, length: int) -> int:
        self._runner.open(seq)
        return length

    def num_unread(self, seq: Sequence) -> int:
        num_read = self._runner.num_cached(seq) if self._runner.is_open(seq) else 0
        return max(len(seq.tokens) - 1 - num_read, 0)

    def _catch_up(self, seqs: List[Sequence]) -> None:
        """Bring the draft cache to all but a short rest of each sequence's tokens.

        The cache keeps what agrees longest of what it was fed and what was committed: that one
        rule covers rejected drafts, stops, and steps slept through.
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
