"""The target's first layers, with its own final norm and head, draft for it: no second model.

Self-speculation with weights and cache shared (LayerSkip, Elhoushi et al. 2404.16710). The training
that makes an early layer good at it is left out, or it is that of a small adapter which takes the
place of the final norm (`heads.exit`): the target itself is never changed.
"""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from outpace.drafters.base import Drafter, DraftingContext, check_whole_number
from outpace.drafters.parts.model_drafts import ModelDraftOptions, ModelDrafts
from outpace.errors import ModelError, OptionError
from outpace.types import Draft, Sequence

if TYPE_CHECKING:
    from outpace.heads.exit_runner import ExitHead

MAX_PENDING = 8
"""A sequence with more tokens that the target has not fed yet is in its prompt: nothing is drafted,
since feeding them here would do a part of the target's work twice."""

DEFAULT_SHARE = 0.93
"""Of the target's layers: the exit where none is given. A model that was not trained for it says
little of use before its last layers, and running those costs nearly a whole pass: every exit loses,
this one about least, and much of its drafts is accepted (docs/measured.md). A model trained to
exit early wants an earlier one."""


@dataclass(frozen=True, kw_only=True)
class EarlyExitOptions(ModelDraftOptions):
    """Options of drafting by the target's first layers.

    model: directory of a trained exit; None drafts with the target's own final norm and head.
    """

    num_speculative_tokens: int = field(
        default=1, metadata={"help": "most draft tokens per step (K), of a tree all its nodes"}
    )
    exit_layer: int | None = field(
        default=None,
        metadata={
            "help": "how many of the target's layers draft (default: 93 % of them, or those that "
            "a trained exit was trained for)"
        },
    )
    model: Any = field(
        default=None,
        metadata={
            "help": "directory of a trained exit (default: the target's own norm and head)",
            "optional": True,
        },
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
        _check_layers(context)
        trained = None if options.model is None else _trained_exit(options, context)
        num_layers = _exit_layer(options, context) if trained is None else trained.num_layers
        self._runner = context.runner.early_exit(num_layers, trained)
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


def _check_layers(context: DraftingContext) -> None:
    """Raise ModelError for a target that has no exit."""
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


def _exit_layer(options: EarlyExitOptions, context: DraftingContext) -> int:
    """The exit to use. Raises OptionError where the target has none there."""
    num_layers = context.runner.model.num_layers
    if options.exit_layer is None:
        return min(num_layers - 1, max(1, round(DEFAULT_SHARE * num_layers)))
    if options.exit_layer >= num_layers:
        raise OptionError(
            f"exit_layer={options.exit_layer}, but {context.target.name} has {num_layers} layers: "
            f"the exit must be one of 1 to {num_layers - 1}"
        )
    return options.exit_layer


def _trained_exit(options: EarlyExitOptions, context: DraftingContext) -> ExitHead:
    """Raises ModelError where the files do not go with the target, OptionError where
    `exit_layer` is not theirs."""
    from outpace.heads.exit_runner import open_exit

    trained = open_exit(options.model, context.target)
    if options.exit_layer not in (None, trained.num_layers):
        raise OptionError(
            f"exit_layer={options.exit_layer}, but {options.model} was trained for layer "
            f"{trained.num_layers}; leave exit_layer out"
        )
    return trained
