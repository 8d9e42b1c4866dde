"""A model's configuration and weights as the native library takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, UInt8

from outpace.models.config import LayerKind, ModelConfig, Rope
from outpace.models.native.weights import Matrix, WeightSource, vector
from outpace.models.rotation import Rotation
from outpace.native.config import NativeConfig, NativeLayer
from outpace.native.interface import ActivationFunction, Activations, Block, KVType, NormKind
from outpace.native.weights import Norm, PackedLinear

_NORMS = {"rms": NormKind.RMS, "layer": NormKind.LAYER}
_BLOCKS = {"pre": Block.PRE, "sandwich": Block.SANDWICH, "parallel": Block.PARALLEL}
_FUNCTIONS = {
    "silu": ActivationFunction.SILU,
    "gelu": ActivationFunction.GELU,
    "gelu_tanh": ActivationFunction.GELU_TANH,
}
_NORM_STEMS = {
    "input_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
}
_SANDWICH_STEMS = {
    "pre_mlp_norm": "pre_feedforward_layernorm",
    "post_mlp_norm": "post_feedforward_layernorm",
}

Packed = Mapping[str, tuple[Matrix, UInt8[np.ndarray, " nbytes"]]]
"""Each matrix of a model with its packed bytes, by name."""


def native_config(
    config: ModelConfig,
    source: WeightSource,
    packed: Packed,
    *,
    num_logits: int,
    activations: Activations,
    kv_type: KVType,
    scale_dtype: torch.dtype = torch.float32,
) -> NativeConfig:
    """The whole model. Vectors (norms, biases) and position embeddings are read from `source`.

    scale_dtype: what the scale of the embeddings is rounded to.
    """
    weights = _Weights(config, source, packed)
    embedding = weights.linear("embedding")
    scale = torch.tensor(config.embedding_scale, dtype=scale_dtype).item()
    ropes = distinct_ropes(config)
    return NativeConfig(
        vocab_size=config.vocab_size,
        num_logits=num_logits,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        embedding=embedding,
        head=embedding if config.tie_word_embeddings else weights.linear("head"),
        final_norm=weights.norm("model.norm"),
        layers=[weights.layer(index, kind, ropes) for index, kind in enumerate(config.layers)],
        attention_scale=config.attention_scale,
        norm_eps=config.norm_eps,
        norm=_NORMS[config.norm],
        block=_BLOCKS[config.block],
        activation=_FUNCTIONS[config.activation],
        gated_mlp=config.gated_mlp,
        activations=activations,
        kv_type=kv_type,
        num_ropes=len(ropes),
        attention_softcap=config.attention_softcap or 0.0,
        final_softcap=config.final_softcap or 0.0,
        embedding_scale=scale,
        position_embedding=(
            vector(source, "model.embed_positions.weight") if config.learned_positions else None
        ),
    )


def distinct_ropes(config: ModelConfig) -> list[Rope]:
    """The rotations that the layers name by index."""
    return list(dict.fromkeys(kind.rope for kind in config.layers if kind.rope is not None))


def rope_table(
    rope: Rope, num_positions: int
) -> tuple[Float32[np.ndarray, "positions half"], Float32[np.ndarray, "positions half"]]:
    """cos and sin of every pair that turns, at positions 0 and up."""
    rotation = Rotation(rope, rope.dim, torch.float32, "cpu")
    rotation.reach(num_positions)
    cos, sin = rotation(torch.arange(num_positions))
    half = rope.dim // 2
    return cos[:, 0, :half].contiguous().numpy(), sin[:, 0].contiguous().numpy()


@dataclass(frozen=True, slots=True)
class _Weights:
    """A model's weights, as the parts of a `NativeConfig`."""

    config: ModelConfig
    source: WeightSource
    packed: Packed

    def layer(self, index: int, kind: LayerKind, ropes: Sequence[Rope]) -> NativeLayer:
        config, name, prefix = self.config, f"layers.{index}.", f"model.layers.{index}."
        stems = _NORM_STEMS | (_SANDWICH_STEMS if config.block == "sandwich" else {})
        norms: dict[str, Any] = {norm: self.norm(prefix + stem) for norm, stem in stems.items()}
        if config.qk_norm:
            for norm in ("q_norm", "k_norm"):
                stem = f"{prefix}self_attn.{norm}.weight"
                norms[norm] = vector(self.source, stem, offset=config.norm_offset)
        return NativeLayer(
            qkv=self.linear(f"{name}qkv", has_bias=config.qkv_bias),
            o=self.linear(f"{name}o", has_bias=config.o_bias),
            up=self.linear(f"{name}up", has_bias=config.mlp_bias),
            down=self.linear(f"{name}down", has_bias=config.mlp_bias),
            rope=-1 if kind.rope is None else ropes.index(kind.rope),
            window=kind.window or 0,
            **norms,
        )

    def linear(self, name: str, *, has_bias: bool = False) -> PackedLinear:
        matrix, data = self.packed[name]
        biases = [part.removesuffix("weight") + "bias" for part in matrix.parts] if has_bias else []
        return matrix.linear(data, [vector(self.source, bias) for bias in biases])

    def norm(self, stem: str) -> Norm:
        weight = vector(self.source, f"{stem}.weight", offset=self.config.norm_offset)
        has_bias = self.config.norm == "layer"
        return Norm(weight, vector(self.source, f"{stem}.bias") if has_bias else None)
