"""Shapes and weights of native models, as the library takes them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import numpy as np
from jaxtyping import Float, Int32

from outpace.native.interface import (
    ABI_VERSION,
    ActivationFunction,
    Activations,
    Block,
    ConfigStruct,
    EagleKind,
    EagleStruct,
    KVType,
    LayerStruct,
    NormKind,
)
from outpace.native.weights import (
    Norm,
    PackedLinear,
    address,
    address_or_null,
    check_ids,
    check_vector,
)

NO_NORM = Norm()


@dataclass(frozen=True, eq=False)
class NativeLayer:
    """One layer's weights; `op_layer` in the C header says how they are stacked and interleaved."""

    qkv: PackedLinear
    o: PackedLinear
    up: PackedLinear
    down: PackedLinear
    input_norm: Norm = NO_NORM
    post_attention_norm: Norm = NO_NORM
    pre_mlp_norm: Norm = NO_NORM
    post_mlp_norm: Norm = NO_NORM
    q_norm: Float[np.ndarray, " head_dim"] | None = None
    k_norm: Float[np.ndarray, " head_dim"] | None = None
    rope: int = -1
    window: int = 0

    def struct(self) -> LayerStruct:
        struct = LayerStruct()
        for name in ("qkv", "o", "up", "down"):
            setattr(struct, name, getattr(self, name).struct)
        for name in ("input_norm", "post_attention_norm", "pre_mlp_norm", "post_mlp_norm"):
            setattr(struct, name, getattr(self, name).struct)
        for name in ("q_norm", "k_norm"):
            check_vector(getattr(self, name), None)
            setattr(struct, name, address_or_null(getattr(self, name)))
        struct.rope, struct.window = self.rope, self.window
        return struct


@dataclass(frozen=True, kw_only=True, eq=False)
class EagleParts:
    """`op_eagle`: what makes an EAGLE head of a model with one layer.

    draft_ids: the token that each of the head's logits is for. fc: of EAGLE-1; hidden_norm: of
    EAGLE-3.
    """

    kind: EagleKind
    draft_ids: Int32[np.ndarray, " num_logits"]
    fc: PackedLinear | None = None
    hidden_norm: Norm = NO_NORM
    norm_before_residual: bool = False
    norm_output: bool = False

    def struct(self) -> EagleStruct:
        check_ids(self.draft_ids)
        struct = EagleStruct(self.kind, self.norm_before_residual, self.norm_output)
        if self.fc is not None:
            struct.fc = self.fc.struct
        struct.hidden_norm = self.hidden_norm.struct
        struct.draft_ids = address(self.draft_ids)
        return struct


@dataclass(frozen=True, kw_only=True, eq=False)
class NativeConfig:
    """`op_config`: a model's shape and weights. Weights stay referenced by the model made of it."""

    vocab_size: int
    num_logits: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    embedding: PackedLinear
    head: PackedLinear
    final_norm: Norm
    layers: Sequence[NativeLayer] = field(repr=False)
    attention_scale: float
    norm_eps: float
    norm: NormKind = NormKind.RMS
    block: Block = Block.PRE
    activation: ActivationFunction = ActivationFunction.SILU
    gated_mlp: bool = True
    activations: Activations = Activations.BF16
    kv_type: KVType = KVType.BF16
    num_ropes: int = 1
    attention_softcap: float = 0.0
    final_softcap: float = 0.0
    embedding_scale: float = 1.0
    position_embedding: Float[np.ndarray, "positions hidden"] | None = None
    eagle: EagleParts | None = None

    def struct(
        self, layers: ctypes.Array[LayerStruct], eagle: EagleStruct | None = None
    ) -> ConfigStruct:
        """layers, eagle: those of this configuration; they must outlive the struct."""
        struct = ConfigStruct(abi_version=ABI_VERSION, num_layers=len(self.layers))
        special = {"layers", "embedding", "head", "final_norm", "position_embedding", "eagle"}
        for each in fields(self):
            if each.name not in special:
                setattr(struct, each.name, getattr(self, each.name))
        for name in ("embedding", "head", "final_norm"):
            setattr(struct, name, getattr(self, name).struct)
        check_vector(self.position_embedding, None)
        struct.position_embedding = address_or_null(self.position_embedding)
        if self.position_embedding is not None:
            struct.num_positions = len(self.position_embedding)
        struct.layers = ctypes.addressof(layers)
        if eagle is not None:
            struct.eagle = ctypes.addressof(eagle)
        return struct
