"""From a draft's directory to an EAGLE head that runs beside its target."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from outpace.errors import ModelError
from outpace.heads.bundled import bundled_draft
from outpace.heads.checkpoint import HEAD, read_eagle
from outpace.heads.eagle_config import read_eagle_config
from outpace.heads.files import read_config
from outpace.heads.target_parts import TargetParts
from outpace.heads.torch_runner import TorchEagle
from outpace.models.native.decoder import NativeDecoder

if TYPE_CHECKING:
    from outpace.heads.base import EagleRunner
    from outpace.heads.config import EagleConfig
    from outpace.models.load import LoadedModel


def open_eagle(path: str | Path | None, target: LoadedModel, algorithm: str) -> EagleRunner:
    """Load an EAGLE head for a target, computed by what computes the target.

    path: the draft's directory; None takes the one that comes with this package. Raises ModelError
    where there is none, or it does not go with the target.
    """
    parts = TargetParts(target)
    checkpoint = read_eagle(_directory(path, parts, algorithm), parts, algorithm)
    weights = checkpoint.weights(parts)
    config, token_ids = checkpoint.config, checkpoint.draft_token_ids
    # Ids ascend, so that rows for what only pads the target's vocabulary come last.
    num_tokens = int((token_ids < parts.num_tokens).sum())
    if num_tokens < len(token_ids):
        config, token_ids = replace(config, draft_vocab_size=num_tokens), token_ids[:num_tokens]
        weights[HEAD] = weights[HEAD][:num_tokens]
    if isinstance(target.decoder, NativeDecoder):
        from outpace.heads.native import NativeEagle

        return NativeEagle(config, weights, parts, token_ids)
    return TorchEagle(config, weights, parts, token_ids)


def eagle_config_of(
    head: str | Path | EagleRunner | None, target: LoadedModel, algorithm: str
) -> EagleConfig:
    """What `open_eagle` will open, by its `config.json` alone; of a head that is open, its own.
    Raises ModelError where there is none or it cannot be read."""
    if head is not None and not isinstance(head, str | Path):
        return head.config
    parts = TargetParts(target)
    directory = _directory(head, parts, algorithm)
    return read_eagle_config(read_config(directory), str(directory), parts.num_layers)


def _directory(path: str | Path | None, parts: TargetParts, algorithm: str) -> Path:
    directory = bundled_draft(parts, algorithm) if path is None else Path(path)
    if directory is None:
        raise ModelError(
            f"no {algorithm!r} draft comes with this package for {parts.name}; train one with "
            f"`outpace train {algorithm} --model {parts.name} ...` and give its directory as "
            "`model` (--speculative-model), or use another method"
        )
    return directory
