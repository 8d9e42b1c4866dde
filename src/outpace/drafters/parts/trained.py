"""The drafter with weights of its own that `auto` uses beside lookups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outpace.drafters import drafter_class, make_options
from outpace.errors import ModelError

if TYPE_CHECKING:
    from outpace.drafters.base import Drafter, DraftingContext
    from outpace.models.load import LoadedModel

NO_MODEL = "none"
BUNDLED_METHODS = ("eagle3",)
"""Methods whose drafts come with this package, the preferred one first."""


@dataclass(frozen=True, slots=True)
class TrainedDraft:
    """A method and what it takes as `model`."""

    method: str
    model: Any

    def models(self, load_model: Callable[[Any], LoadedModel]) -> list[LoadedModel]:
        """What `Drafter.models` of the method loads."""
        return drafter_class(self.method).models(self._options(1), load_model)

    def row_bytes(self, target: LoadedModel, max_model_len: int) -> int:
        """`Drafter.row_bytes` of the method."""
        return drafter_class(self.method).row_bytes(self._options(1), target, max_model_len)

    def open(self, num_tokens: int, context: DraftingContext) -> Drafter:
        """Build the drafter. num_tokens: most tokens of a draft."""
        return drafter_class(self.method)(self._options(num_tokens), context)

    def _options(self, num_tokens: int) -> Any:
        values = {"model": self.model, "num_speculative_tokens": num_tokens}
        return make_options(drafter_class(self.method), values)


def chosen_draft(model: Any, num_tokens: int, target: LoadedModel) -> TrainedDraft | None:
    """What is to draft at most `num_tokens` tokens beside lookups: the draft that a user named, or
    by default the one that comes with this package."""
    if num_tokens == 0:
        return None
    return bundled_for(target) if model is None else given_draft(model)


def given_draft(model: Any) -> TrainedDraft | None:
    """The draft that a user named: a directory, a model's alias, a loaded model or an open EAGLE
    head; None for "none" and for nothing. Raises ModelError for a directory of another kind."""
    if model is None or model == NO_MODEL:
        return None
    if isinstance(model, str | Path):
        from outpace.heads.kinds import DRAFT_MODEL, detect_kind

        is_directory = Path(model).is_dir()
        return TrainedDraft(detect_kind(model) if is_directory else DRAFT_MODEL, model)
    config = getattr(model, "config", None)
    algorithm = getattr(config, "algorithm", None)
    return TrainedDraft(algorithm if isinstance(algorithm, str) else "draft_model", model)


def bundled_for(target: LoadedModel) -> TrainedDraft | None:
    """The draft that comes with this package for a target, if there is one that can run there."""
    from outpace.heads.bundled import bundled_draft
    from outpace.heads.target_parts import TargetParts

    try:
        parts = TargetParts(target)
    except ModelError:
        return None  # its weights cannot be seen, and heads are run on parts of them
    for method in BUNDLED_METHODS:
        if bundled_draft(parts, method) is not None:
            return TrainedDraft(method, None)
    return None
