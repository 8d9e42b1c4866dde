"""The target's first layers, with its own final norm and head, draft for it: no second model.

Self-speculation with weights and cache shared (LayerSkip, Elhoushi et al. 2404.16710), without the
training that makes an early layer good at it.
"""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import dataclass, field

from outpace.drafters.base import Drafter, DraftingContext, check_whole_number
from outpace.drafters.parts.model_drafts import ModelDraftOptions, ModelDrafts
from outpace.errors import ModelError, OptionError
from outpace.types import Draft, Sequence

MAX_PENDING = 8
"""A sequence with more tokens that the target has not fed yet is in its prompt: nothing is drafted,
since feeding them here would do a part of the target's work twice."""

DEFAULT_SHARE = 0.93
"""Of the target's layers: the exit where none is given. A model that was not trained for it says
little of use before its last layers, and running those costs nearly a whole pass: every exit loses,
this one about least, and much of its drafts is accepted (docs/performance.md). A model trained to
exit early wants an earlier one."""


@dataclass(frozen=True, kw_only=True)
class EarlyExitOptions(ModelDraftOptions):
    """Options of drafting by the target's first layers."""

    num_speculative_tokens: int = field(
        default=1, metadata={"help": "most draft tokens per step (K), of a tree all its nodes"}
    )
    exit_layer: int | None = field(
        default=None,
        metadata={"help": "how many of the target's layers draft (default: 93 % of them)"},
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.exit_layer is not None:
            check_whole_number("exit_layer", self.exit_layer, low=1)


class EarlyExitDrafter(Drafter):
    """Runs the first layers of the target some steps ahead, over the target's own cache."""

    Options = EarlyExitOptions

    def __init__(self, options: EarlyExitOptions, context: DraftingContext) -> None:
        super().__init__(options, context)
        num_layers = _exit_layer(options, context)
        self._runner = context.runner.early_exit(num_layers)
        self._drafts = ModelDrafts(
            self._runner,
            context.rng,
            origin="early_exit",
            num_branches=options.num_branches,
        )

    def propose(self, seqs: List[Sequence], budgets: List[int]) -> list[Draft]:
        limits = [self._limit(seq, budget) for seq, budget in zip(seqs, budgets, strict=True)]
        return self._drafts.propose(seqs, limits)

    def _limit(self, seq: Sequence, budget: int) -> int:
        num_pending = self._runner.num_pending(seq)
        if num_pending is None or num_pending > MAX_PENDING:
            return 0
        return min(budget, self._runner.max_len - len(seq.tokens))


def _exit_layer(options: EarlyExitOptions, context: DraftingContext) -> int:
    """The exit to use. Raises ModelError or OptionError where the target has none there."""
    from outpace.models.base import EarlyExit

    target, model = context.target, context.runner.model
    if not isinstance(model, EarlyExit):
        raise ModelError(
            f"method 'early_exit' drafts with the first layers of {target.name}, but the "
            f"{target.runs_on} runs all layers or none; use another method"
        )
    if model.num_layers < 2:
        raise ModelError(
            f"method 'early_exit' drafts with some layers of {target.name}, which has one only; "
            "use another method"
        )
    if options.exit_layer is None:
        return min(model.num_layers - 1, max(1, round(DEFAULT_SHARE * model.num_layers)))
    if options.exit_layer >= model.num_layers:
        raise OptionError(
            f"exit_layer={options.exit_layer}, but {target.name} has {model.num_layers} layers: "
            f"the exit must be one of 1 to {model.num_layers - 1}"
        )
    return options.exit_layer
