"""Medusa heads (Cai et al. 2401.10774): what they are, their network, their files.

Head k (from 1) reads the target's feature of token i, its last layer through its final norm, and
guesses token i + 1 + k: the target itself says token i + 1.

The files are vLLM's: `config.json` with `model_type` "medusa", tensors `blocks.i.layers.j.weight`
(and `.bias` with `medusa_fc_bias`), `lm_heads.i.weight`, and `token_map`, the target id of each
draft token, where the vocabulary is a part of the target's (`truncated_vocab_size`). With
`original_lm_head` all heads share `lm_heads.0.weight`, which is left out where it is the target's
own rows (`Binding.lm_head`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from outpace.errors import ModelError
from outpace.heads.binding import KEY, STORED, TARGET, Binding, read_binding
from outpace.heads.fields import Fields
from outpace.heads.files import read_config, read_tensors, write_draft
from outpace.heads.shared_head import check_target, check_tensors

if TYPE_CHECKING:
    from jaxtyping import Int64

    from outpace.heads.target_parts import TargetParts

MODEL_TYPE = "medusa"
_MAP = "token_map"
_KNOWN = {
    "architectures",
    "model_type",
    "hidden_size",
    "vocab_size",
    "truncated_vocab_size",
    "num_heads",
    "num_hidden_layers",
    "original_lm_head",
    "medusa_fc_bias",
    KEY,
}
# Say nothing about what a head computes: they shape trees elsewhere.
_IGNORED = {"max_paths", "topk", "max_seq_len"}


@dataclass(frozen=True, kw_only=True)
class MedusaConfig:
    """hidden_size, vocab_size: of the target; draft_vocab_size: how many of its tokens can be
    drafted. num_layers: residual layers of each head. bias: whether they have one. shared_lm_head:
    whether all heads share one output head; otherwise each has its own."""

    hidden_size: int
    vocab_size: int
    draft_vocab_size: int
    num_heads: int = 3
    num_layers: int = 1
    bias: bool = True
    shared_lm_head: bool = True


class _Block(nn.Module):
    def __init__(self, config: MedusaConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.layers = nn.ModuleList(
            [nn.Linear(size, size, bias=config.bias) for _ in range(config.num_layers)]
        )


class MedusaModule(nn.Module):
    """The heads up to their output head, called as in their file.

    New heads leave the feature as it is, so that each starts by guessing what the target says next.
    """

    def __init__(self, config: MedusaConfig) -> None:
        super().__init__()
        self.config = config
        self.blocks = nn.ModuleList([_Block(config) for _ in range(config.num_heads)])
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def forward(self, head: int, x: Float[Tensor, "n H"]) -> Float[Tensor, "n H"]:
        """What head number `head` (from 0) shows its output head: x + silu(W x + b), layer by
        layer, in the dtype of x. x: features through the target's final norm."""
        block = self.blocks[head]
        assert isinstance(block, _Block)
        for layer in block.layers:
            assert isinstance(layer, nn.Linear)
            bias = None if layer.bias is None else layer.bias.to(x.dtype)
            x = x + F.silu(F.linear(x, layer.weight.to(x.dtype), bias))
        return x


@dataclass(frozen=True, eq=False)
class MedusaCheckpoint:
    """Heads as their files say.

    tensors: of `MedusaModule`, as stored. lm_heads: stored output heads: one for each head, one for
    all, or none (the target's). draft_token_ids: the target id of each draft token, ascending.
    """

    directory: Path
    config: MedusaConfig
    tensors: Mapping[str, Tensor]
    lm_heads: tuple[Tensor, ...]
    draft_token_ids: Int64[np.ndarray, " Vd"]
    binding: Binding | None

    def module(self) -> MedusaModule:
        """The heads in torch, in float32."""
        module = MedusaModule(self.config)
        weights = {name: tensor.float() for name, tensor in self.tensors.items()}
        module.load_state_dict(weights, strict=True)
        return module


def read_medusa(directory: str | Path, parts: TargetParts) -> MedusaCheckpoint:
    """Read Medusa heads and check that they go with the target.

    Raises ModelError for files that are damaged, incomplete, of another kind, with tensors or flags
    that are not known, or of another target.
    """
    directory = Path(directory)
    values, name = read_config(directory), str(directory)
    config = read_medusa_config(values, name)
    binding = read_binding(values, name)
    if binding is not None:
        binding.check(parts, name)
    check_target(parts, name, vocab_size=config.vocab_size, hidden_size=config.hidden_size)
    tensors = read_tensors(directory)
    lm_heads = [] if binding is not None and binding.lm_head == TARGET else _lm_head_names(config)
    shapes = _shapes(config) | dict.fromkeys(
        lm_heads, (config.draft_vocab_size, config.hidden_size)
    )
    is_reduced = config.draft_vocab_size < config.vocab_size
    check_tensors(tensors, shapes, [_MAP] if is_reduced else [], directory)
    return MedusaCheckpoint(
        directory,
        config,
        {key: tensors[key] for key in shapes if key not in lm_heads},
        tuple(tensors[key] for key in lm_heads),
        _token_ids(tensors.get(_MAP), config, name),
        binding,
    )


def write_medusa(
    directory: str | Path,
    module: MedusaModule,
    draft_token_ids: Int64[np.ndarray, " Vd"],
    parts: TargetParts,
    *,
    lm_head: str = TARGET,
) -> None:
    """Write heads that share the target's output head into an existing directory, in bfloat16.

    lm_head: "target" leaves the output head out; "stored" puts it in, which other libraries need.
    """
    config = module.config
    assert config.shared_lm_head, "heads with output heads of their own are read, never made"
    tensors = {
        name: tensor.detach().to("cpu", torch.bfloat16)
        for name, tensor in module.state_dict().items()
    }
    if lm_head == STORED:
        rows = torch.from_numpy(parts.head_rows(draft_token_ids.tolist()))
        tensors[_lm_head_names(config)[0]] = rows.to(torch.bfloat16)
    if config.draft_vocab_size < config.vocab_size:
        tensors[_MAP] = torch.from_numpy(draft_token_ids)
    values = {
        "architectures": ["MedusaModel"],
        "model_type": MODEL_TYPE,
        "hidden_size": config.hidden_size,
        "vocab_size": config.vocab_size,
        "truncated_vocab_size": config.draft_vocab_size,
        "num_heads": config.num_heads,
        "num_hidden_layers": config.num_layers,
        "original_lm_head": True,
        "medusa_fc_bias": config.bias,
        KEY: Binding.to(parts, lm_head=lm_head).as_json(),
    }
    write_draft(Path(directory), values, tensors)


def read_medusa_config(values: Mapping[str, Any], name: str) -> MedusaConfig:
    """Medusa heads by the content of their `config.json`. Raises ModelError for other kinds and for
    fields that are not known."""
    fields = Fields(values, name)
    fields.check_kind(MODEL_TYPE, "Medusa heads in vLLM's layout")
    if fields.values.get("logit_scale", 1.0) != 1.0:
        fields.refuse(f"logit_scale is {values['logit_scale']!r}; only 1.0 is supported")
    fields.check_known({*_KNOWN, *_IGNORED, "logit_scale"})
    vocab_size = fields.count("vocab_size")
    return MedusaConfig(
        hidden_size=fields.count("hidden_size"),
        vocab_size=vocab_size,
        draft_vocab_size=fields.count("truncated_vocab_size", most=vocab_size, default=vocab_size),
        num_heads=fields.count("num_heads"),
        num_layers=fields.count("num_hidden_layers"),
        bias=fields.flag("medusa_fc_bias", default=False),
        shared_lm_head=fields.flag("original_lm_head", default=False),
    )


def _lm_head_names(config: MedusaConfig) -> list[str]:
    count = 1 if config.shared_lm_head else config.num_heads
    return [f"lm_heads.{head}.weight" for head in range(count)]


def _shapes(config: MedusaConfig) -> dict[str, tuple[int, ...]]:
    with torch.device("meta"):
        module = MedusaModule(config)
    return {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}


def _token_ids(
    token_map: Tensor | None, config: MedusaConfig, name: str
) -> Int64[np.ndarray, " Vd"]:
    """The target id of each draft token. Ascending, so that ties mean the same everywhere."""
    if token_map is None:
        return np.arange(config.vocab_size, dtype=np.int64)
    ids = token_map.numpy()
    is_vocabulary = (
        np.issubdtype(ids.dtype, np.integer)
        and ids.shape == (config.draft_vocab_size,)
        and ids[0] >= 0
        and ids[-1] < config.vocab_size
        and bool((np.diff(ids) > 0).all())
    )
    if not is_vocabulary:
        raise ModelError(
            f"{name}: {_MAP} must hold {config.draft_vocab_size} ascending token ids from 0 to "
            f"{config.vocab_size - 1}"
        )
    return ids.astype(np.int64)
