"""One layer of a decoder: attention, MLP, and the three ways of joining them.

Everything a configuration can choose is chosen when the layer is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from outpace.cache import KVCache
from outpace.models.attention import AttentionPlan
from outpace.models.config import ModelConfig
from outpace.models.linear import Linear, make_linear
from outpace.models.norm import make_head_norm, make_norm
from outpace.models.rotation import rotate

Load = Callable[[str], Tensor]
"""Tensor of a layer by its name within the layer, on the model's device and in its dtype."""

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    # A lone row of the gate is contiguous and several are not; in bfloat16 the two take kernels
    # with different last bits.
    "gelu": lambda x: F.gelu(x.contiguous()),
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
}


@dataclass(frozen=True, slots=True)
class Pass:
    """What the layers of one pass share.

    slots: cache slots of the new tokens. rotations: cos and sin of the new tokens' positions, one
    pair for each distinct `Rope` of the model.
    """

    plan: AttentionPlan
    cache: KVCache
    slots: Int[Tensor, " tokens"]
    rotations: Sequence[tuple[Tensor, Tensor]]


class Attention:
    """Grouped-query attention over the cache, output projection included.

    rotation: which of the pass's rotations this layer uses; None where positions do not turn.
    """

    def __init__(self, config: ModelConfig, load: Load, index: int, rotation: int | None) -> None:
        self._index = index
        self._rotation = rotation
        self._num_q, self._num_kv = config.num_attention_heads, config.num_key_value_heads
        self._qkv = _fused(load, [f"self_attn.{x}_proj" for x in "qkv"], config.qkv_bias)
        self._head_norm = make_head_norm(config, load, "self_attn") if config.qk_norm else None
        self._o = _fused(load, ["self_attn.o_proj"], config.o_bias)

    def __call__(
        self,
        x: Float[Tensor, "n hidden"],
        step: Pass,
        residual: Float[Tensor, "n hidden"] | None = None,
    ) -> Float[Tensor, "n hidden"]:
        num_rows, num_tokens = x.shape[0], step.slots.shape[0]
        num_q, num_qk = self._num_q, self._num_q + self._num_kv
        qkv = self._qkv(x).view(num_rows, num_qk + self._num_kv, -1)
        qk = qkv[:, :num_qk]
        if self._head_norm is not None:
            qk = self._head_norm(qk)
        if self._rotation is not None:
            qk = rotate(qk, *step.rotations[self._rotation])
        k, v = qk[:num_tokens, num_q:], qkv[:num_tokens, num_qk:]
        step.cache.write(self._index, step.slots, k, v)
        attended = step.plan(self._index, qk[:num_tokens, :num_q])
        if num_rows > num_tokens:
            attended = attended.repeat(num_rows, 1)
        return self._o(attended, residual=residual)


class MLP:
    """down(act(up(x))), or down(act(gate(x)) * up(x)) with gate and up fused into one product."""

    def __init__(self, config: ModelConfig, load: Load) -> None:
        names = ["mlp.gate_proj", "mlp.up_proj"] if config.gated_mlp else ["mlp.up_proj"]
        self._up = _fused(load, names, config.mlp_bias)
        self._down = _fused(load, ["mlp.down_proj"], config.mlp_bias)
        activation = ACTIVATIONS[config.activation]
        self._inner = _gated(activation) if config.gated_mlp else activation

    def __call__(
        self, x: Float[Tensor, "n hidden"], residual: Float[Tensor, "n hidden"] | None = None
    ) -> Float[Tensor, "n hidden"]:
        return self._down(self._inner(self._up(x)), residual=residual)


class PreNormLayer:
    """Llama: attention and MLP in turn, each of the normed residual stream."""

    def __init__(self, config: ModelConfig, load: Load, index: int, rotation: int | None) -> None:
        self._input_norm = make_norm(config, load, "input_layernorm")
        self._attention = Attention(config, load, index, rotation)
        self._post_attention_norm = make_norm(config, load, "post_attention_layernorm")
        self._mlp = MLP(config, load)

    def __call__(self, x: Float[Tensor, "n hidden"], step: Pass) -> Float[Tensor, "n hidden"]:
        x = self._attention(self._input_norm(x), step, residual=x)
        return self._mlp(self._post_attention_norm(x), residual=x)


class ParallelLayer(PreNormLayer):
    """GPT-NeoX: attention and MLP of the same input, each with its own norm."""

    def __call__(self, x: Float[Tensor, "n hidden"], step: Pass) -> Float[Tensor, "n hidden"]:
        attended = self._attention(self._input_norm(x), step, residual=x)
        return self._mlp(self._post_attention_norm(x), residual=attended)


class SandwichLayer(PreNormLayer):
    """Gemma 2: attention and MLP in turn, their outputs normed as well as their inputs."""

    def __init__(self, config: ModelConfig, load: Load, index: int, rotation: int | None) -> None:
        super().__init__(config, load, index, rotation)
        self._pre_mlp_norm = make_norm(config, load, "pre_feedforward_layernorm")
        self._post_mlp_norm = make_norm(config, load, "post_feedforward_layernorm")

    def __call__(self, x: Float[Tensor, "n hidden"], step: Pass) -> Float[Tensor, "n hidden"]:
        x = x + self._post_attention_norm(self._attention(self._input_norm(x), step))
        return x + self._post_mlp_norm(self._mlp(self._pre_mlp_norm(x)))


LAYERS = {"pre": PreNormLayer, "parallel": ParallelLayer, "sandwich": SandwichLayer}


def _gated(activation: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """act(gate) * up, of gate and up side by side."""

    def inner(gate_up: Float[Tensor, "n two_inner"]) -> Float[Tensor, "n inner"]:
        gate, up = gate_up.chunk(2, dim=-1)
        return activation(gate).mul_(up)

    return inner


def _fused(load: Load, names: Sequence[str], has_bias: bool) -> Linear:
    """The projections `names` of one input as one product, their outputs side by side."""
    matrix = torch.cat([load(f"{name}.weight") for name in names])
    bias = torch.cat([load(f"{name}.bias") for name in names]) if has_bias else None
    return make_linear(matrix, bias)
