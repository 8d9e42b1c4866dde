"""`cpp/outpace_native.h` in ctypes: constants, structs and signatures, field for field."""

from __future__ import annotations

import ctypes
from ctypes import c_char_p, c_double, c_float, c_int32, c_int64, c_size_t, c_void_p
from enum import IntEnum

ABI_VERSION = 5
ERROR_BYTES = 256


class WeightFormat(IntEnum):
    """How a matrix is stored. The Q formats are GGUF's blocks of 32 along `in`, kept packed."""

    F32 = 0
    BF16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q8_0 = 4


class Activations(IntEnum):
    """What activations are rounded to before they meet packed (Q) weights."""

    BF16 = 0
    INT16 = 1
    INT8 = 2


class NormKind(IntEnum):
    RMS = 0
    LAYER = 1


class Block(IntEnum):
    PRE = 0
    SANDWICH = 1
    PARALLEL = 2


class ActivationFunction(IntEnum):
    SILU = 0
    GELU = 1
    GELU_TANH = 2


class KVType(IntEnum):
    F32 = 0
    BF16 = 1


class EagleKind(IntEnum):
    EAGLE1 = 1
    EAGLE3 = 3


class Choice(IntEnum):
    """How an EAGLE head's draft tokens are chosen from its logits."""

    BEST = 0
    DRAWN = 1
    RACED = 2


class LinearStruct(ctypes.Structure):
    _fields_ = (
        ("format", c_int32),
        ("out", c_int32),
        ("in", c_int32),
        ("reserved", c_int32),
        ("data", c_void_p),
        ("bias", c_void_p),
    )


class NormStruct(ctypes.Structure):
    _fields_ = (("weight", c_void_p), ("bias", c_void_p))


class LayerStruct(ctypes.Structure):
    _fields_ = (
        ("qkv", LinearStruct),
        ("o", LinearStruct),
        ("up", LinearStruct),
        ("down", LinearStruct),
        ("input_norm", NormStruct),
        ("post_attention_norm", NormStruct),
        ("pre_mlp_norm", NormStruct),
        ("post_mlp_norm", NormStruct),
        ("q_norm", c_void_p),
        ("k_norm", c_void_p),
        ("rope", c_int32),
        ("window", c_int32),
    )


class EagleStruct(ctypes.Structure):
    _fields_ = (
        ("kind", c_int32),
        ("norm_before_residual", c_int32),
        ("norm_output", c_int32),
        ("reserved", c_int32),
        ("fc", LinearStruct),
        ("hidden_norm", NormStruct),
        ("draft_ids", c_void_p),
    )


class ConfigStruct(ctypes.Structure):
    _fields_ = (
        ("abi_version", c_int32),
        ("vocab_size", c_int32),
        ("num_logits", c_int32),
        ("hidden_size", c_int32),
        ("intermediate_size", c_int32),
        ("num_layers", c_int32),
        ("num_heads", c_int32),
        ("num_kv_heads", c_int32),
        ("head_dim", c_int32),
        ("norm", c_int32),
        ("block", c_int32),
        ("activation", c_int32),
        ("gated_mlp", c_int32),
        ("activations", c_int32),
        ("kv_type", c_int32),
        ("num_ropes", c_int32),
        ("norm_eps", c_float),
        ("attention_scale", c_float),
        ("attention_softcap", c_float),
        ("final_softcap", c_float),
        ("embedding_scale", c_float),
        ("num_positions", c_int32),
        ("embedding", LinearStruct),
        ("head", LinearStruct),
        ("final_norm", NormStruct),
        ("position_embedding", c_void_p),
        ("layers", c_void_p),
        ("eagle", c_void_p),
    )


class SegmentStruct(ctypes.Structure):
    _fields_ = (
        ("row", c_int32),
        ("start", c_int32),
        ("num_tokens", c_int32),
        ("reserved", c_int32),
        ("parents", c_void_p),
    )


class BatchStruct(ctypes.Structure):
    _fields_ = (
        ("num_tokens", c_int32),
        ("num_segments", c_int32),
        ("num_logit_rows", c_int32),
        ("num_capture", c_int32),
        ("num_layers", c_int32),
        ("reserved", c_int32),
        ("token_ids", c_void_p),
        ("segments", c_void_p),
        ("logit_rows", c_void_p),
        ("logits", c_void_p),
        ("best", c_void_p),
        ("capture", c_void_p),
        ("hidden", c_void_p),
        ("x", c_void_p),
        ("outputs", c_void_p),
    )


class ChainStruct(ctypes.Structure):
    _fields_ = (
        ("row", c_int32),
        ("start", c_int32),
        ("num_pending", c_int32),
        ("num_steps", c_int32),
        ("choice", c_int32),
        ("temperature", c_float),
    )


class RankingStruct(ctypes.Structure):
    _fields_ = (
        ("width", c_int32),
        ("reserved", c_int32),
        ("token_ids", c_void_p),
        ("chances", c_void_p),
    )


STRUCTS: dict[str, type[ctypes.Structure]] = {
    "op_linear": LinearStruct,
    "op_norm": NormStruct,
    "op_layer": LayerStruct,
    "op_eagle": EagleStruct,
    "op_config": ConfigStruct,
    "op_segment": SegmentStruct,
    "op_batch": BatchStruct,
    "op_chain": ChainStruct,
    "op_ranking": RankingStruct,
}

# Addresses are passed as plain integers: ctypes converts those fastest.
_P = c_void_p
SIGNATURES: dict[str, tuple[type | None, tuple[type, ...]]] = {
    "op_paths_built": (c_char_p, ()),
    "op_paths_usable": (c_char_p, ()),
    "op_abi_version": (c_int32, ()),
    "op_pool_new": (_P, (c_int32, _P)),
    "op_pool_free": (None, (_P,)),
    "op_pool_read": (c_double, (_P, _P, c_size_t)),
    "op_packed_bytes": (c_int64, (c_int32, c_int32, c_int32, _P)),
    "op_pack": (c_int32, (c_int32, c_int32, c_int32, _P, _P, _P)),
    "op_unpack_row": (None, (_P, c_int32, _P)),
    "op_linear_forward": (c_int32, (_P, c_char_p, _P, c_int32, c_int32, _P, _P, _P)),
    "op_model_new": (_P, (_P, _P, c_char_p, _P)),
    "op_model_free": (None, (_P,)),
    "op_set_rope": (c_int32, (_P, c_int32, c_int32, c_int32, _P, _P, _P)),
    "op_cache_new": (_P, (_P, c_int32, c_int32, _P)),
    "op_cache_free": (None, (_P,)),
    "op_cache_bytes": (c_int64, (_P, c_int32, c_int32)),
    "op_cache_copy": (None, (_P, c_int32, c_int32, c_int32, c_int32)),
    "op_cache_keep": (None, (_P, c_int32, c_int32, _P, c_int32)),
    "op_forward": (c_int32, (_P, _P, _P, _P)),
    "op_layer_forward": (c_int32, (_P, _P, c_int32, _P, _P, _P)),
    "op_draft": (c_int32, (_P, _P, c_int32, _P, _P, _P, _P, _P, c_int32, _P, _P)),
    "op_eagle_draft": (c_int32, (_P, _P, c_int32, _P, _P, _P, c_int32, _P, _P, _P, _P, _P)),
}


def declare(library: ctypes.CDLL) -> None:
    """Give every function of the C interface its types."""
    for name, (result, arguments) in SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
