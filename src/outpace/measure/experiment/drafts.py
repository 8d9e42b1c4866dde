"""The drafts that are compared, and from names to loaded models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outpace.drafters.parts.trained import bundled_for
from outpace.engine.setup import EngineOptions
from outpace.errors import ModelError
from outpace.heads.kinds import DRAFT_MODEL, speculative_config
from outpace.measure.experiment.options import ExperimentOptions
from outpace.measure.experiment.random_draft import describe_random_draft, random_draft
from outpace.models.base import EarlyExit
from outpace.models.load import LoadedModel

UNALIGNED, EARLY_EXIT, TRAINED = "unaligned", "early_exit", "trained"
"""Kinds of drafts: a model of its own that was not made for the target; the target's first layers;
what was trained for the target."""

_OLD_HUB_NAMES = {"gpt2": "openai-community/gpt2", "distilgpt2": "distilbert/distilgpt2"}
"""Names from before ids on the Hub had owners, under which papers still cite these models."""


@dataclass(frozen=True, slots=True)
class StudiedDraft:
    """One draft of the study.

    label: its name in tables. description: what it is, as part of a sentence. config: what
    `LLM(speculative_config=...)` takes, but for the number of draft tokens.
    """

    label: str
    kind: str
    description: str
    config: Mapping[str, Any]

    def with_length(self, k: int) -> dict[str, Any]:
        """The configuration that drafts k tokens a step."""
        return {**self.config, "num_speculative_tokens": k}


def hub_name(name: str) -> str:
    """What to ask `load_model` for: "gpt2" and its like by their present ids."""
    return name if Path(name).exists() else _OLD_HUB_NAMES.get(name, name)


def studied_drafts(
    target: LoadedModel, options: ExperimentOptions, engine: EngineOptions
) -> tuple[list[StudiedDraft], list[str]]:
    """The drafts for a target, and notes on those of the study that it cannot have.

    engine: how the target was loaded; a draft model is loaded accordingly. Raises ModelError or
    OptionError for a draft that was named and cannot be used.
    """
    notes: list[str] = []
    drafts = [_unaligned(target, options, engine), *_early_exits(target, notes)]
    trained = _trained(target, options)
    if trained is None:
        notes.append(
            f"No draft comes with this package for {target.name}, so there is no second table; "
            "`outpace train` makes one, and --trained takes its folder."
        )
    return drafts + ([trained] if trained else []), notes


def _unaligned(
    target: LoadedModel, options: ExperimentOptions, engine: EngineOptions
) -> StudiedDraft:
    if options.draft is None:
        path: str | Path = random_draft(target, options.seed)
        label, description = "random", describe_random_draft(target, options.seed)
    else:
        path = hub_name(options.draft)
        label = Path(options.draft).name
        description = f"{options.draft}, a model of its own that was not made for this target"
    draft = engine.for_draft().load(path)
    return StudiedDraft(label, UNALIGNED, description, {"method": DRAFT_MODEL, "model": draft})


def _early_exits(target: LoadedModel, notes: list[str]) -> list[StudiedDraft]:
    """Exits after about 1/4 and 5/6 of the layers."""
    num_layers = target.decoder.num_layers
    if not isinstance(target.decoder, EarlyExit) or num_layers < 2:
        notes.append(
            f"{target.name} ({target.runs_on}, {num_layers} layers) has no early exit; its rows "
            "are left out."
        )
        return []
    exits = {max(1, round(num_layers / 4)), min(num_layers - 1, max(1, round(5 * num_layers / 6)))}
    return [
        StudiedDraft(
            f"exit {layer}/{num_layers}",
            EARLY_EXIT,
            f"the target's first {layer} of {num_layers} layers with its own norm and head, "
            "not trained for it",
            {"method": "early_exit", "exit_layer": layer},
        )
        for layer in sorted(exits)
    ]


def _trained(target: LoadedModel, options: ExperimentOptions) -> StudiedDraft | None:
    if options.trained is not None:
        config = speculative_config(options.trained)
        description = f"{options.trained.name}, a trained draft ({config['method']})"
        return StudiedDraft(config["method"], TRAINED, description, config)
    try:
        bundled = bundled_for(target)
    except ModelError:
        return None
    if bundled is None:
        return None
    description = f"the draft that comes with this package for {target.name} ({bundled.method})"
    return StudiedDraft(bundled.method, TRAINED, description, {"method": bundled.method})
