"""Readers of the Gemma families, whose norms, embeddings and layers differ from Llama's alike."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from outpace.models.config import ModelConfig, integer, num_layers, positive, refuse
from outpace.models.hf.fields import (
    FULL,
    SLIDING,
    Values,
    activation,
    biases,
    decoder,
    layer_types,
    refuse_features,
    refuse_packaging,
    single_rope,
    stated_head_dim,
    uniform_layers,
    window,
    windowed_layers,
)
from outpace.models.hf.rope import RopeField, resolve_rope, rope_field

GEMMA = {"head_dim": 256, "attention_bias": False, "tie_word_embeddings": True}
GEMMA2 = GEMMA | {
    "num_key_value_heads": 4,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}
# Published files of Gemma 3 leave out most of what its class takes for granted.
GEMMA3 = GEMMA2 | {
    "vocab_size": 262208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-6,
    "sliding_window_pattern": 6,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
}


def gemma(values: Values, name: str) -> ModelConfig:
    """Llama with norm weights stored minus one and embeddings scaled by sqrt(hidden_size)."""
    # The first release says "gelu" and means its approximation by tanh.
    if values["hidden_act"] == "gelu":
        values = {**values, "hidden_act": "gelu_pytorch_tanh"}
    if values.get("hidden_activation") not in (None, "gelu_pytorch_tanh"):
        refuse(name, f"hidden_activation {values['hidden_activation']!r:.80} is not supported")
    rope, max_len = single_rope(values, name)
    layers = uniform_layers(values, name, rope, max_len)
    return decoder(values, name, layers, max_len, **_scales(values, name))


def _scales(values: Values, name: str) -> dict[str, Any]:
    scale = math.sqrt(integer(values, "hidden_size", name))
    return {"norm_offset": 1.0, "embedding_scale": scale, **biases(values)}


def gemma2(values: Values, name: str) -> ModelConfig:
    """Also norms behind attention and MLP, soft caps, and a window in every other layer."""
    rope, max_len = single_rope(values, name)
    kinds = _patterned(values, name, 2)
    layers = windowed_layers(kinds, [rope] * len(kinds), window(values, name), max_len, name)
    return decoder(values, name, layers, max_len, **_changes(values, name))


def _changes(values: Values, name: str) -> dict[str, Any]:
    scalar = positive(name, "query_pre_attn_scalar", values["query_pre_attn_scalar"])
    return {
        "block": "sandwich",
        "activation": activation(values, "hidden_activation", name),
        "attention_scale": 1.0 / math.sqrt(scalar),
        "attention_softcap": values["attn_logit_softcapping"],
        "final_softcap": values["final_logit_softcapping"],
        **_scales(values, name),
    }


def _patterned(values: Values, name: str, pattern: int) -> list[str]:
    """Kinds of layers of which every `pattern`-th sees everything."""
    kinds = layer_types(values, name)
    if kinds is not None:
        return kinds
    count = num_layers(values, "num_hidden_layers", name)
    return [SLIDING if (index + 1) % pattern else FULL for index in range(count)]


def gemma3_text(values: Values, name: str) -> ModelConfig:
    """Also norms of q and k, and two rotations: one for layers with a window, one for the rest."""
    longest = integer(values, "max_position_embeddings", name)
    kinds = _patterned(values, name, integer(values, "sliding_window_pattern", name))
    resolved = {
        kind: resolve_rope(field, stated_head_dim(values, name), longest)
        for kind, field in _ropes(values, name).items()
    }
    max_len = min(limit for _, limit in resolved.values())
    ropes = [resolved[kind][0] for kind in kinds]
    layers = windowed_layers(kinds, ropes, window(values, name), max_len, name)
    if values["attn_logit_softcapping"] is not None:
        # The family's class carries the field and does not apply it.
        refuse(name, "attn_logit_softcapping is not supported for gemma3_text")
    changes = _changes(values, name)
    return decoder(values, name, layers, max_len, qk_norm=True, **changes)


def _ropes(values: Values, name: str) -> dict[str, RopeField]:
    """Rotary parameters of either kind of layer; the older `rope_scaling` is about full ones."""
    stated = values.get("rope_parameters")
    stated = {} if stated is None else stated
    if not isinstance(stated, Mapping) or set(stated) - {FULL, SLIDING}:
        refuse(name, f"rope_parameters must hold {FULL} and {SLIDING}, got {stated!r:.80}")
    scaling = values.get("rope_scaling")
    if scaling is not None and stated:
        refuse(name, "rope_scaling and rope_parameters are both given")
    inner = {FULL: (scaling, "rope_scaling")} if scaling is not None else {}
    keys = {FULL: ("rope_theta", 1e6), SLIDING: ("rope_local_base_freq", 1e4)}
    fields = {}
    for kind, (theta_key, default_theta) in keys.items():
        content, label = inner.get(kind, (stated.get(kind), f"rope_parameters.{kind}"))
        fields[kind] = rope_field(
            content, label, values, name, theta_key=theta_key, default_theta=default_theta
        )
    return fields


def gemma3(values: Values, name: str) -> ModelConfig:
    """The language model of a checkpoint that also reads images, which are left out."""
    text = values.get("text_config")
    if not isinstance(text, Mapping) or text.get("model_type") != "gemma3_text":
        refuse(name, f"text_config must hold a gemma3_text model, got {text!r:.80}")
    refuse_packaging(text, name)
    tied = {"tie_word_embeddings": values["tie_word_embeddings"]}
    completed = {**GEMMA3, **text, **tied}
    refuse_features(completed, name)
    return gemma3_text(completed, name)
