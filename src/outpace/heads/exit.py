"""A trained exit: an adapter on a middle layer of the target, before its own output head.

z = w h / rms(h) for an output h of layer m; logits = (z + A z) E^T with E the target's output head,
or its rows at a draft vocabulary. A is a square matrix, or the product of two thin ones (`rank`). w
and A are trained so that the layer says what the last one will. (LayerSkip, Elhoushi et al.
2404.16710, trains the layers instead; Kangaroo, Liu et al. 2404.18911, puts an attention layer
there.)

The files are our own: `config.json` with `model_type` "outpace_early_exit", `exit_layer`,
`hidden_size`, `vocab_size`, `draft_vocab_size`, `rank` (null: square), `rms_norm_eps`, and the
binding; tensors `norm.weight` [H], `linear.weight` [H, H] or `down.weight` [rank, H] and
`up.weight` [H, rank], `d2t` and `t2d` as in EAGLE-3 where the vocabulary is a part of the target's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from outpace.errors import ModelError
from outpace.heads.binding import KEY, TARGET, Binding, read_binding
from outpace.heads.draft_vocabulary import read_vocabulary, vocabulary_names, vocabulary_tensors
from outpace.heads.eagle import RMSNorm
from outpace.heads.fields import Fields
from outpace.heads.files import read_config, read_tensors, write_draft
from outpace.heads.shared_head import check_target, check_tensors

if TYPE_CHECKING:
    from jaxtyping import Int64

    from outpace.heads.target_parts import TargetParts

MODEL_TYPE = "outpace_early_exit"
_KNOWN = {
    "model_type",
    "exit_layer",
    "hidden_size",
    "vocab_size",
    "draft_vocab_size",
    "rank",
    "rms_norm_eps",
    KEY,
}


@dataclass(frozen=True, kw_only=True)
class ExitConfig:
    """exit_layer: m, how many of the target's layers draft. hidden_size, vocab_size: of the target;
    draft_vocab_size: how many of its tokens can be drafted. rank: of A; None: it is square."""

    exit_layer: int
    hidden_size: int
    vocab_size: int
    draft_vocab_size: int
    rms_norm_eps: float
    rank: int | None = None


class ExitModule(nn.Module):
    """The adapter, called as in its file. A new one has A = 0, and w as it is given."""

    def __init__(self, config: ExitConfig, norm: Float[Tensor, " H"] | None = None) -> None:
        """norm: w to start from, the target's final norm; ones if None."""
        super().__init__()
        self.config = config
        size = config.hidden_size
        self.norm = RMSNorm(size, config.rms_norm_eps)
        if norm is not None:
            self.norm.weight.data.copy_(norm)
        if config.rank is None:
            self.linear = nn.Linear(size, size, bias=False)
            nn.init.zeros_(self.linear.weight)
        else:
            self.down = nn.Linear(size, config.rank, bias=False)
            self.up = nn.Linear(config.rank, size, bias=False)
            nn.init.zeros_(self.up.weight)

    def forward(self, hidden: Float[Tensor, "n H"]) -> Float[Tensor, "n H"]:
        """What the output head reads, in the dtype of `hidden`: outputs of the layer."""
        dtype = hidden.dtype
        z = self.norm(hidden)
        if self.config.rank is None:
            added = F.linear(z, self.linear.weight.to(dtype))
        else:
            added = F.linear(F.linear(z, self.down.weight.to(dtype)), self.up.weight.to(dtype))
        adapted: Tensor = z + added
        return adapted


@dataclass(frozen=True, eq=False)
class ExitCheckpoint:
    """A trained exit as its files say. tensors: of `ExitModule`, as stored. draft_token_ids: the
    target id of each draft token, ascending."""

    directory: Path
    config: ExitConfig
    tensors: Mapping[str, Tensor]
    draft_token_ids: Int64[np.ndarray, " Vd"]
    binding: Binding

    def module(self) -> ExitModule:
        """The adapter in torch, in float32."""
        module = ExitModule(self.config)
        weights = {name: tensor.float() for name, tensor in self.tensors.items()}
        module.load_state_dict(weights, strict=True)
        return module


def read_exit(directory: str | Path, parts: TargetParts) -> ExitCheckpoint:
    """Read a trained exit and check that it goes with the target.

    Raises ModelError for files that are damaged, incomplete, of another kind, with tensors or
    fields that are not known, or of another target.
    """
    directory = Path(directory)
    values, name = read_config(directory), str(directory)
    config = read_exit_config(values, name)
    binding = read_binding(values, name)
    if binding is None or binding.lm_head != TARGET:
        raise ModelError(
            f"{name}: config.json must say under {KEY!r} which target the exit belongs to, with "
            f"lm_head {TARGET!r}: an exit is of no use without its target's output head"
        )
    binding.check(parts, name)
    check_target(parts, name, vocab_size=config.vocab_size, hidden_size=config.hidden_size)
    if config.exit_layer >= parts.num_layers:
        raise ModelError(
            f"{name}: exit_layer is {config.exit_layer}, and {parts.name} has {parts.num_layers} "
            "layers, of which an exit must leave one out"
        )
    tensors, shapes = read_tensors(directory), _shapes(config)
    vocabulary = vocabulary_names(config.vocab_size, config.draft_vocab_size)
    check_tensors(tensors, shapes, vocabulary, directory)
    token_ids = read_vocabulary(tensors, config.vocab_size, config.draft_vocab_size, directory)
    network = {key: tensors[key] for key in shapes}
    return ExitCheckpoint(directory, config, network, token_ids, binding)


def write_exit(
    directory: str | Path,
    module: ExitModule,
    draft_token_ids: Int64[np.ndarray, " Vd"],
    parts: TargetParts,
) -> None:
    """Write an exit into an existing directory, weights in bfloat16."""
    tensors = {
        name: tensor.detach().to("cpu", torch.bfloat16)
        for name, tensor in module.state_dict().items()
    }
    tensors |= vocabulary_tensors(draft_token_ids, module.config.vocab_size)
    binding = Binding.to(parts, lm_head=TARGET)
    values = {"model_type": MODEL_TYPE, **asdict(module.config), KEY: binding.as_json()}
    write_draft(Path(directory), values, tensors)


def read_exit_config(values: Mapping[str, Any], name: str) -> ExitConfig:
    """A trained exit by the content of its `config.json`. Raises ModelError for other kinds and for
    fields that are not known."""
    fields = Fields(values, name)
    fields.check_kind(MODEL_TYPE, "a trained exit")
    fields.check_known(_KNOWN)
    vocab_size, hidden_size = fields.count("vocab_size"), fields.count("hidden_size")
    return ExitConfig(
        exit_layer=fields.count("exit_layer"),
        hidden_size=hidden_size,
        vocab_size=vocab_size,
        draft_vocab_size=fields.count("draft_vocab_size", most=vocab_size),
        rms_norm_eps=fields.positive("rms_norm_eps"),
        rank=None if values.get("rank") is None else fields.count("rank", most=hidden_size),
    )


def _shapes(config: ExitConfig) -> dict[str, tuple[int, ...]]:
    with torch.device("meta"):
        module = ExitModule(config)
    return {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
