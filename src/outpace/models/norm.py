"""The norms of a decoder, as functions of the activations alone.

Each row is normalised by itself: on the CPU kernels of torch its bits do not depend on the others.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from outpace.models.config import ModelConfig

Norm = Callable[[Tensor], Tensor]
"""[..., channels] -> [..., channels], in the dtype of its input."""


def make_norm(config: ModelConfig, load: Callable[[str], Tensor], name: str) -> Norm:
    """The norm of the residual stream whose tensors are called `name`.

    "rms": w x / sqrt(mean(x^2) + eps) (1910.07467); "layer": w (x - mean) / sqrt(var + eps) + b
    (1607.06450); w is the stored weight plus `norm_offset`.
    """
    stored = load(f"{name}.weight")
    weight = _with_offset(stored, config.norm_offset)
    shape, eps = weight.shape, config.norm_eps
    if config.norm == "layer":
        bias = load(f"{name}.bias").to(weight.dtype)

        def norm(x: Tensor) -> Tensor:
            return F.layer_norm(x, shape, weight, bias, eps)
    else:

        def norm(x: Tensor) -> Tensor:
            return F.rms_norm(x, shape, weight, eps)

    return norm if weight.dtype == stored.dtype else _in_float32(norm)


def make_head_norm(config: ModelConfig, load: Callable[[str], Tensor], name: str) -> Norm:
    """The RMS norms of q and k, applied to [N, query heads then key heads, head_dim] at once."""
    stored = load(f"{name}.q_norm.weight"), load(f"{name}.k_norm.weight")
    q, k = (_with_offset(weight, config.norm_offset) for weight in stored)
    heads = (config.num_attention_heads, config.num_key_value_heads)
    weight = torch.cat([q.expand(heads[0], -1), k.expand(heads[1], -1)])

    def norm(x: Float[Tensor, "n heads dim"]) -> Float[Tensor, "n heads dim"]:
        return F.rms_norm(x, x.shape[-1:], eps=config.norm_eps) * weight

    return norm if weight.dtype == stored[0].dtype else _in_float32(norm)


def _with_offset(weight: Tensor, offset: float) -> Tensor:
    """weight + offset; in float32 for half precision, where the sum would lose digits."""
    if not offset:
        return weight
    return (weight.float() if weight.dtype in (torch.bfloat16, torch.float16) else weight) + offset


def _in_float32(norm: Norm) -> Norm:
    return lambda x: norm(x.float()).to(x.dtype)
