"""What the readers of Hugging Face configurations share: sizes, windows, and what all refuse."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from outpace.errors import ModelError
from outpace.models.architectures import RECURRENT_MARKS
from outpace.models.config import (
    Activation,
    LayerKind,
    ModelConfig,
    Rope,
    head_size,
    integer,
    is_integer,
    num_layers,
    positive,
    refuse,
    required,
)
from outpace.models.hf.quantised import read_scheme
from outpace.models.hf.rope import flat_rope, resolve_rope

Values = Mapping[str, Any]
"""The content of a config.json, completed by the defaults of its family."""

Layers = tuple[LayerKind, ...]

FULL, SLIDING = "full_attention", "sliding_attention"

_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
}
# Fields by which other models announce what is not computed here, and the value that is harmless.
_NEUTRAL: dict[str, Any] = {
    "num_experts": 0,
    "num_local_experts": 0,
    "n_routed_experts": 0,
    "num_kv_shared_layers": 0,
    "hidden_size_per_layer_input": 0,
    "attention_chunk_size": 0,
    "clip_qkv": False,
    "alibi": False,
    "use_qk_norm": False,
    "qk_layernorm": False,
    "use_bidirectional_attention": False,
    "rope_interleaved": False,
    "use_mrope": False,
    "add_cross_attention": False,
    "is_encoder_decoder": False,
    "attention_multiplier": None,
    "logit_scale": 1,
    "logits_scaling": 1,
    "embedding_multiplier": 1,
    "residual_multiplier": 1,
}
_RECURRENT_KEYS = ("mamba_", "ssm_", "linear_num_", "linear_conv_")


def refuse_packaging(values: Values, name: str) -> None:
    """Raise ModelError for draft heads and for quantised weights that are not read."""
    if "speculators_model_type" in values or "speculators_config" in values:
        kind = values.get("speculators_model_type", "speculators")
        refuse(name, f"this is a {kind} draft head, not a model; give it to a drafter instead")
    read_scheme(values, name)


def refuse_lora(path: Path) -> None:
    """Raise ModelError for a directory that holds a LoRA adapter instead of a model."""
    if (path / "adapter_config.json").exists():
        raise ModelError(
            f"{path}: this directory is a LoRA adapter (it has adapter_config.json); adapters "
            "are not supported: merge it into its base model and give the merged model"
        )


def refuse_own_code(values: Values, name: str) -> None:
    """Raise ModelError for a config.json that asks for code from the model's repository."""
    if values.get("auto_map"):
        refuse(
            name,
            "config.json asks for code from the model's repository (auto_map); "
            "trust_remote_code is not supported, because it runs code nobody here has checked",
        )


def refuse_features(values: Values, name: str) -> None:
    """Raise ModelError for what no family here computes: recurrent layers, experts, scales."""
    for key in ("layer_types", "layers_block_type"):
        kinds = values.get(key)
        if kinds is None:
            continue
        if not isinstance(kinds, list) or not all(isinstance(kind, str) for kind in kinds):
            refuse(name, f"{key} must be a list of layer kinds, got {kinds!r:.80}")
        for kind in kinds:
            if any(mark in kind for mark in RECURRENT_MARKS):
                refuse(
                    name,
                    f"{key} holds {kind!r}: recurrent or hybrid layers are not supported, because "
                    "their state cannot be rolled back after a rejected draft",
                )
    for key in values:
        if isinstance(key, str) and key.startswith(_RECURRENT_KEYS):
            refuse(name, f"{key} announces recurrent layers, which cannot be rolled back")
    for key, neutral in _NEUTRAL.items():
        if values.get(key) is not None and values[key] != neutral:
            refuse(name, f"{key} = {values[key]!r:.80} is not supported")


def activation(values: Values, key: str, name: str) -> Activation:
    """The activation a field names. Raises ModelError unless one of ours equals it."""
    stated = required(values, key, name)
    if not isinstance(stated, str) or stated not in _ACTIVATIONS:
        known = ", ".join(_ACTIVATIONS)
        refuse(name, f"{key} {stated!r:.80} is not supported; supported: {known}")
    return _ACTIVATIONS[stated]


def decoder(values: Values, name: str, layers: Layers, max_len: int, **changes: Any) -> ModelConfig:
    """The configuration of a family that names its fields as Llama does.

    changes: fields of ModelConfig in which the family differs from Llama.
    """
    head_dim = stated_head_dim(values, name)
    num_kv_heads = values.get("num_key_value_heads")
    if num_kv_heads is None:
        num_kv_heads = values["num_attention_heads"]
    # Checked by ModelConfig; only what is divided by here must be a number already.
    scale = 1.0 / math.sqrt(head_dim) if is_integer(head_dim) and head_dim > 0 else 1.0
    fields = {
        "architecture": values["model_type"],
        "vocab_size": required(values, "vocab_size", name),
        "hidden_size": integer(values, "hidden_size", name),
        "intermediate_size": required(values, "intermediate_size", name),
        "num_attention_heads": integer(values, "num_attention_heads", name),
        "num_key_value_heads": num_kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": max_len,
        "layers": layers,
        "tie_word_embeddings": values["tie_word_embeddings"],
        "attention_scale": scale,
        "name": name,
    }
    if "norm_eps" not in changes:
        fields["norm_eps"] = positive(name, "rms_norm_eps", required(values, "rms_norm_eps", name))
    if "activation" not in changes:
        fields["activation"] = activation(values, "hidden_act", name)
    return ModelConfig(**(fields | changes))


def biases(values: Values) -> dict[str, Any]:
    """Biases of all four projections of attention, where `attention_bias` says so."""
    return {"qkv_bias": values["attention_bias"], "o_bias": values["attention_bias"]}


def stated_head_dim(values: Values, name: str) -> Any:
    """`head_dim`, unchecked, or the even share of hidden_size."""
    hidden_size = integer(values, "hidden_size", name)
    num_heads = integer(values, "num_attention_heads", name)
    return head_size(values.get("head_dim"), hidden_size, num_heads, name)


def single_rope(values: Values, name: str, **family: Any) -> tuple[Rope, int]:
    """The rotation that all layers share, and the most tokens it is valid for.

    family: what `rope_field` is to know about it.
    """
    max_len = integer(values, "max_position_embeddings", name)
    field = flat_rope(values, name, **family)
    return resolve_rope(field, stated_head_dim(values, name), max_len)


def window(values: Values, name: str) -> int | None:
    """`sliding_window`: how many tokens one sees, itself included; None: all before it."""
    if values.get("sliding_window") is None:
        return None
    return integer(values, "sliding_window", name)


def optional_window(values: Values, name: str) -> int | None:
    """The window where `use_sliding_window` says that it is in use."""
    used = values.get("use_sliding_window")
    if used is not None and not isinstance(used, bool):
        refuse(name, f"use_sliding_window must be true or false, got {used!r:.80}")
    return window(values, name) if used else None


def layer_types(values: Values, name: str) -> list[str] | None:
    """`layer_types`, checked: one of full_attention and sliding_attention for every layer."""
    kinds: list[str] | None = values.get("layer_types")
    if kinds is None:
        return None
    for kind in kinds:
        if kind not in (FULL, SLIDING):
            refuse(name, f"layer_types holds {kind!r:.80}; supported: {FULL}, {SLIDING}")
    count = num_layers(values, "num_hidden_layers", name)
    if len(kinds) != count:
        refuse(name, f"layer_types has {len(kinds)} entries, but num_hidden_layers is {count}")
    return kinds


def uniform_layers(values: Values, name: str, rope: Rope | None, max_len: int) -> Layers:
    """Layers that are all alike, of a family whose attention has no windows."""
    count = num_layers(values, "num_hidden_layers", name)
    length = window(values, name)
    if values.get("use_sliding_window") is not False and length is not None and length < max_len:
        refuse(name, f"sliding_window ({length}) is not supported for {values['model_type']}")
    if SLIDING in (layer_types(values, name) or ()):
        refuse(name, f"layer_types holds {SLIDING!r}, which {values['model_type']} does not have")
    return (LayerKind(rope),) * count


def windowed_layers(
    kinds: Sequence[str], ropes: Sequence[Rope | None], length: int | None, max_len: int, name: str
) -> Layers:
    """One LayerKind a layer. A window no shorter than the longest sequence is none."""
    if SLIDING in kinds and length is None:
        refuse(name, f"layer_types holds {SLIDING!r}, but sliding_window is not in use")
    if length is not None and length >= max_len:
        length = None
    return tuple(
        LayerKind(rope, length if kind == SLIDING else None)
        for kind, rope in zip(kinds, ropes, strict=True)
    )
