"""From what a run is asked for to a draft in training, for every kind there is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from outpace.errors import ModelError, OptionError
from outpace.heads.kinds import detect_kind
from outpace.training.batches import training_indices
from outpace.training.vocabulary import choose_draft_vocabulary, count_tokens

if TYPE_CHECKING:
    from jaxtyping import Int64

    from outpace.heads.checkpoint import EagleCheckpoint
    from outpace.heads.config import EagleConfig
    from outpace.heads.exit import ExitCheckpoint
    from outpace.heads.medusa import MedusaCheckpoint
    from outpace.heads.target_parts import TargetParts
    from outpace.training.draft_size import ModelSize
    from outpace.training.store import FeatureStore
    from outpace.training.trainee import Trainee

KINDS = ("eagle3", "eagle", "medusa", "draft_model", "early_exit")
DEFAULT_DRAFT_VOCABULARY = 12288
DEFAULT_COST = 0.1
SHAPE = (
    *("intermediate_size", "num_kv_heads", "num_heads"),
    *("cost", "hidden_size", "num_layers"),
)
"""Settings that a draft to go on from has decided."""


@dataclass(frozen=True, kw_only=True)
class DraftSettings:
    """What is trained, and by which loss; None leaves a value to the kind.

    kind: one of `KINDS`, called as the method it is for. init: a draft of the same kind to go on
    from. draft_vocab_size: tokens that it can draft (not of draft models, which draft all).
    ttt_steps: draft steps that EAGLE heads are unrolled for. intermediate_size, num_kv_heads: of
    an EAGLE head. train_head: whether its output head departs from the target's; None: if that of
    `init` does. num_heads: of Medusa. layer: of an early exit. cost, hidden_size, num_layers: of a
    draft model; see `draft_size`.
    """

    kind: str
    loss: str = "kl"
    seed: int = 0
    init: Path | None = None
    draft_vocab_size: int | None = None
    ttt_steps: int | None = None
    intermediate_size: int | None = None
    num_kv_heads: int | None = None
    train_head: bool | None = None
    num_heads: int | None = None
    layer: int | None = None
    cost: float | None = None
    hidden_size: int | None = None
    num_layers: int | None = None

    def check(self, parts: TargetParts) -> None:
        """Raise OptionError or ModelError for settings that no run could follow, before hours of
        one are spent."""
        from outpace.heads.shared_head import check_final_norm
        from outpace.training.losses import loss_named

        assert self.kind in KINDS
        loss_named(self.loss)
        size = self.draft_vocab_size
        if size is not None and not 1 <= size <= parts.num_tokens:
            raise OptionError(
                f"a draft vocabulary has from 1 to {parts.num_tokens} tokens, all of the "
                f"target's; got {size}"
            )
        check_final_norm(parts, "a draft in training")
        if self.init is not None:
            self._check_init(self.init)
        _BUILDERS[self.kind](self, parts).check()

    def _check_init(self, init: Path) -> None:
        if (found := detect_kind(init)) != self.kind:
            raise OptionError(
                f"{init} holds a draft for method {found!r}, and one for {self.kind!r} is to "
                "be trained; a run goes on from a draft of its own kind"
            )
        given = [name for name in SHAPE if getattr(self, name) is not None]
        if given:
            raise OptionError(
                f"{' and '.join(given)} cannot be chosen for a draft that goes on from {init}: its "
                "shape is that draft's; leave the choice out"
            )

    def as_json(self) -> dict[str, Any]:
        values = {key: value for key, value in asdict(self).items() if value is not None}
        return values | ({"init": self.init.name} if self.init is not None else {})


def captured_layers(settings: DraftSettings, parts: TargetParts) -> tuple[int, ...]:
    """The target's layers whose outputs the draft is trained on, ascending."""
    needed = {*_BUILDERS[settings.kind](settings, parts).layers(), parts.num_layers}
    return tuple(sorted(needed))


def make_trainee(settings: DraftSettings, parts: TargetParts, store: FeatureStore) -> Trainee:
    """The draft at its start. Equal arguments make equal ones."""
    return _BUILDERS[settings.kind](settings, parts).trainee(store)


class _Builder(ABC):
    """One kind's part of the work. `settings` are checked where they reach the kind's classes."""

    def __init__(self, settings: DraftSettings, parts: TargetParts) -> None:
        self.settings, self.parts = settings, parts

    def check(self) -> None:
        """Raise OptionError or ModelError for settings of this kind that cannot be."""
        self.layers()

    def layers(self) -> tuple[int, ...]:
        """The captured layers besides the last."""
        return ()

    @abstractmethod
    def trainee(self, store: FeatureStore) -> Trainee:
        """The draft at its start."""

    def vocabulary(self, store: FeatureStore, default: int) -> Int64[np.ndarray, " Vd"]:
        """The draft vocabulary that the training answers ask for."""
        size = self.settings.draft_vocab_size or min(default, self.parts.num_tokens)
        tokens = slice(self.parts.num_tokens)  # what pads the target's vocabulary is never drafted
        answers, prompts = _token_counts(store)
        return choose_draft_vocabulary(answers[tokens], prompts[tokens], size)

    def vocabulary_after(
        self, start: MedusaCheckpoint | ExitCheckpoint | None, store: FeatureStore
    ) -> Int64[np.ndarray, " Vd"]:
        """That of the draft to go on from, unless there is none or a size was asked for."""
        if start is None or self.settings.draft_vocab_size is not None:
            return self.vocabulary(store, DEFAULT_DRAFT_VOCABULARY)
        return start.draft_token_ids

    def given(self, **names: str) -> dict[str, Any]:
        """Keyword arguments from settings that are not None. names: argument = setting."""
        values = {key: getattr(self.settings, setting) for key, setting in names.items()}
        return {key: value for key, value in values.items() if value is not None}

    @property
    def common(self) -> dict[str, Any]:
        from outpace.training.precision import compute_dtype

        return {"loss": self.settings.loss, "compute_dtype": compute_dtype()}


class _Eagle(_Builder):
    def layers(self) -> tuple[int, ...]:
        head = self._start
        return self._config(1).feature_layers if head is None else head.config.feature_layers

    def check(self) -> None:
        self.layers()
        if self._start is not None:
            self._start.check_trainable(self.parts)

    @cached_property
    def _start(self) -> EagleCheckpoint | None:
        from outpace.heads.checkpoint import read_eagle

        init = self.settings.init
        return None if init is None else read_eagle(init, self.parts, self.settings.kind)

    def trainee(self, store: FeatureStore) -> Trainee:
        from outpace.training.eagle import EagleOptions
        from outpace.training.eagle_init import eagle_from_head, eagle_from_target

        settings, head = self.settings, self._start
        given = self.given(ttt_steps="ttt_steps", train_head="train_head")
        if head is not None:
            given.setdefault("train_head", head.stores_head)
        options = EagleOptions(**self.common, **given)
        if head is not None:
            size = settings.draft_vocab_size
            vocabulary = None if size is None else self.vocabulary(store, size)
            return eagle_from_head(head, self.parts, store, options, vocabulary)
        vocabulary = self.vocabulary(store, DEFAULT_DRAFT_VOCABULARY)
        config = self._config(len(vocabulary))
        return eagle_from_target(config, self.parts, store, vocabulary, options, seed=settings.seed)

    def _config(self, draft_vocab_size: int) -> EagleConfig:
        from outpace.training.eagle_init import default_feature_layers, new_eagle_config

        # In a small target some of the layers that are usually taken are the same.
        layers = sorted(set(default_feature_layers(self.parts.num_layers)))
        return new_eagle_config(
            self.parts.config,
            draft_vocab_size,
            algorithm=self.settings.kind,
            feature_layers=tuple(layers),
            **self.given(intermediate_size="intermediate_size", num_key_value_heads="num_kv_heads"),
        )


class _Medusa(_Builder):
    def check(self) -> None:
        start = self._start
        if start is not None and start.lm_heads:
            raise ModelError(
                f"{start.directory} has output heads of its own; they can draft, and cannot be "
                "trained further here: start without --init"
            )

    @cached_property
    def _start(self) -> MedusaCheckpoint | None:
        from outpace.heads.medusa import read_medusa

        init = self.settings.init
        return None if init is None else read_medusa(init, self.parts)

    def trainee(self, store: FeatureStore) -> Trainee:
        from outpace.training.medusa import MedusaOptions, MedusaTrainee

        start = self._start
        vocabulary = self.vocabulary_after(start, store)
        options = MedusaOptions(**self.common, **self.given(num_heads="num_heads"))
        return MedusaTrainee(self.parts, vocabulary, options, start)


class _EarlyExit(_Builder):
    def layers(self) -> tuple[int, ...]:
        return (self._layer(),)

    def check(self) -> None:
        layer, parts = self._layer(), self.parts
        if not 1 <= layer < parts.num_layers:
            raise OptionError(
                f"an exit of {parts.name} is one of its layers 1 to {parts.num_layers - 1}, "
                f"got {layer}"
            )
        start = self._start
        if start is not None and start.config.exit_layer != layer:
            raise OptionError(
                f"an exit after layer {layer} cannot go on from {start.directory}, which was "
                f"trained for layer {start.config.exit_layer}"
            )

    @cached_property
    def _start(self) -> ExitCheckpoint | None:
        from outpace.heads.exit import read_exit

        init = self.settings.init
        return None if init is None else read_exit(init, self.parts)

    def trainee(self, store: FeatureStore) -> Trainee:
        from outpace.training.early_exit import ExitOptions, ExitTrainee

        start = self._start
        vocabulary = self.vocabulary_after(start, store)
        options = ExitOptions(**self.common)
        return ExitTrainee(self.parts, self._layer(), vocabulary, options, start)

    def _layer(self) -> int:
        if self.settings.layer is not None:
            return self.settings.layer
        start = self._start
        return max(1, self.parts.num_layers // 2) if start is None else start.config.exit_layer


class _DraftModel(_Builder):
    def check(self) -> None:
        from outpace.training.draft_model import DraftModelOptions, draft_model_from

        if self.settings.init is None:
            self.size()
        else:  # it is read whole: a start that cannot be is told before hours of answers
            draft_model_from(self.settings.init, self.parts, DraftModelOptions(**self.common))

    def size(self) -> ModelSize:
        """The shape asked for, or proposed for the cost."""
        from outpace.training.draft_size import propose_size, size_of_width

        settings, target = self.settings, self.parts.config
        vocab_size = self.parts.target.decoder.num_logits
        width = settings.hidden_size
        if width is None:
            cost = DEFAULT_COST if settings.cost is None else settings.cost
            size = propose_size(target, cost, vocab_size)
            if settings.num_layers is None:
                return size
            width = size.hidden_size
        return size_of_width(target, width, num_layers=settings.num_layers, vocab_size=vocab_size)

    def trainee(self, store: FeatureStore) -> Trainee:
        import torch

        from outpace.training.draft_model import (
            DraftModelOptions,
            draft_model_from,
            new_draft_model,
        )

        options = DraftModelOptions(**self.common)
        if self.settings.init is not None:
            return draft_model_from(self.settings.init, self.parts, options)
        counts = torch.from_numpy(_token_counts(store)[0])
        return new_draft_model(self.parts, self.size(), counts, options, seed=self.settings.seed)


_BUILDERS: dict[str, type[_Builder]] = {
    "eagle3": _Eagle,
    "eagle": _Eagle,
    "medusa": _Medusa,
    "draft_model": _DraftModel,
    "early_exit": _EarlyExit,
}


def proposed_size(settings: DraftSettings, parts: TargetParts) -> ModelSize | None:
    """Of a new draft model its shape; None for other kinds, and where one goes on."""
    if settings.kind != "draft_model" or settings.init is not None:
        return None
    return _DraftModel(settings, parts).size()


def _token_counts(
    store: FeatureStore,
) -> tuple[Int64[np.ndarray, " V"], Int64[np.ndarray, " V"]]:
    """How often each token occurs in the answers, and in the prompts, that are trained on."""
    indices, vocab_size = training_indices(store), store.header.vocab_size
    texts = [(store.token_ids(i), store.num_prompt(i)) for i in indices]
    answers = count_tokens((ids[start:] for ids, start in texts), vocab_size)
    prompts = count_tokens((ids[:start] for ids, start in texts), vocab_size)
    return answers, prompts
