"""One reader for every model_type: from `config.json` to the decoder's variations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from outpace.models.config import (
    ModelConfig,
    Rope,
    integer,
    is_integer,
    num_layers,
    positive,
    refuse,
)
from outpace.models.hf.fields import (
    FULL,
    SLIDING,
    Values,
    activation,
    biases,
    decoder,
    layer_types,
    optional_window,
    single_rope,
    stated_head_dim,
    uniform_layers,
    window,
    windowed_layers,
)
from outpace.models.hf.gemma import GEMMA, GEMMA2, GEMMA3, gemma, gemma2, gemma3, gemma3_text


@dataclass(frozen=True, slots=True)
class Family:
    """How the configurations of one model_type are read.

    model_class: what `architectures` must hold where it is given.
    read: from the completed values and the model's name to its configuration.
    defaults: what the family's class gives to fields that are absent.
    had_own_code: official checkpoints name code of their own (auto_map), from before the class was
        part of transformers.
    """

    model_class: str
    read: Callable[[Values, str], ModelConfig]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    had_own_code: bool = False


def _llama(values: Values, name: str) -> ModelConfig:
    rope, max_len = single_rope(values, name)
    layers = uniform_layers(values, name, rope, max_len)
    return decoder(values, name, layers, max_len, mlp_bias=values["mlp_bias"], **biases(values))


def _mistral(values: Values, name: str) -> ModelConfig:
    return _all_windowed(values, name, *single_rope(values, name))


def _all_windowed(values: Values, name: str, rope: Rope, max_len: int) -> ModelConfig:
    length = window(values, name)
    count = num_layers(values, "num_hidden_layers", name)
    kinds = [FULL if length is None else SLIDING] * count
    if (layer_types(values, name) or kinds) != kinds:
        refuse(name, f"layer_types must all be {kinds[0]!r} for {values['model_type']}")
    layers = windowed_layers(kinds, [rope] * count, length, max_len, name)
    return decoder(values, name, layers, max_len)


def _phi3(values: Values, name: str) -> ModelConfig:
    stated = values.get("rope_scaling") or values.get("rope_parameters")
    if isinstance(stated, Mapping):
        kind = stated.get("rope_type", stated.get("type", "default"))
        if kind not in ("default", "longrope", "su", "yarn"):
            refuse(name, f"rope type {kind!r:.80} is not supported for phi3; supported: longrope")
        # Earlier names of LongRoPE. The length of pretraining stands beside the object.
        kind = "default" if kind == "default" else "longrope"
        original = {"original_max_position_embeddings": values["original_max_position_embeddings"]}
        scaling = {key: value for key, value in stated.items() if key != "type"}
        values = {**values, "rope_scaling": {**scaling, "rope_type": kind, **original}}
        values["rope_parameters"] = None
    return _all_windowed(values, name, *single_rope(values, name, default_partial=1.0))


def _qwen2(values: Values, name: str) -> ModelConfig:
    return _qwen(values, name, qkv_bias=True)


def _qwen3(values: Values, name: str) -> ModelConfig:
    return _qwen(values, name, qk_norm=True, **biases(values))


def _qwen(values: Values, name: str, **changes: Any) -> ModelConfig:
    rope, max_len = single_rope(values, name)
    length = optional_window(values, name)
    count = num_layers(values, "num_hidden_layers", name)
    first = values["max_window_layers"]
    if not is_integer(first):
        refuse(name, f"max_window_layers must be a whole number, got {first!r:.80}")
    kinds = layer_types(values, name)
    if kinds is None:
        windowed = range(count) if length is not None else ()
        kinds = [
            SLIDING if index in windowed and index >= first else FULL for index in range(count)
        ]
    layers = windowed_layers(kinds, [rope] * count, length, max_len, name)
    return decoder(values, name, layers, max_len, **changes)


def _smollm3(values: Values, name: str) -> ModelConfig:
    rope, max_len = single_rope(values, name, default_theta=2e6)
    length = optional_window(values, name)
    turning = _turning_layers(values, name)
    kinds = layer_types(values, name)
    if kinds is None:
        kinds = [FULL if turns or length is None else SLIDING for turns in turning]
    ropes = [rope if turns else None for turns in turning]
    layers = windowed_layers(kinds, ropes, length, max_len, name)
    return decoder(values, name, layers, max_len, mlp_bias=values["mlp_bias"], **biases(values))


def _turning_layers(values: Values, name: str) -> list[bool]:
    """Which layers have rotary positions; SmolLM3 leaves them out of every fourth (2501.18795)."""
    count = num_layers(values, "num_hidden_layers", name)
    stated = values.get("no_rope_layers")
    if stated is None:
        interval = integer(values, "no_rope_layer_interval", name)
        return [(index + 1) % interval != 0 for index in range(count)]
    if (
        not isinstance(stated, list)
        or len(stated) != count
        or not all(is_integer(flag) and flag in (0, 1) for flag in stated)
    ):
        refuse(name, f"no_rope_layers must be a list of {count} zeros and ones, got {stated!r:.80}")
    return [flag == 1 for flag in stated]


def _gpt2(values: Values, name: str) -> ModelConfig:
    names = {
        "hidden_size": "n_embd",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "max_position_embeddings": "n_positions",
    }
    sizes = {ours: integer(values, theirs, name) for ours, theirs in names.items()}
    inner = values.get("n_inner")
    sizes["intermediate_size"] = 4 * sizes["hidden_size"] if inner is None else inner
    if values["scale_attn_by_inverse_layer_idx"] is not False:
        refuse(name, "scale_attn_by_inverse_layer_idx is not supported")
    if not isinstance(values["scale_attn_weights"], bool):
        refuse(name, "scale_attn_weights must be true or false")
    unscaled = {} if values["scale_attn_weights"] else {"attention_scale": 1.0}
    values = _plain_heads({**values, **sizes, "num_key_value_heads": None}, name)
    max_len = sizes["max_position_embeddings"]
    return decoder(
        values,
        name,
        uniform_layers(values, name, None, max_len),
        max_len,
        activation=activation(values, "activation_function", name),
        norm_eps=positive(name, "layer_norm_epsilon", values["layer_norm_epsilon"]),
        learned_positions=True,
        qkv_bias=True,
        **_GPT_SHAPE,
        **unscaled,
    )


_GPT_SHAPE: dict[str, Any] = {"norm": "layer", "gated_mlp": False, "mlp_bias": True, "o_bias": True}


def _gpt_neox(values: Values, name: str) -> ModelConfig:
    values = _plain_heads({**values, "num_key_value_heads": None}, name)
    rope, max_len = single_rope(
        values, name, theta_key="rotary_emb_base", partial_key="rotary_pct", default_partial=0.25
    )
    parallel = values["use_parallel_residual"]
    if not isinstance(parallel, bool):
        refuse(name, f"use_parallel_residual must be true or false, got {parallel!r:.80}")
    changes = _GPT_SHAPE | biases(values)
    return decoder(
        values,
        name,
        uniform_layers(values, name, rope, max_len),
        max_len,
        norm_eps=positive(name, "layer_norm_eps", values["layer_norm_eps"]),
        block="parallel" if parallel else "pre",
        **changes,
    )


def _plain_heads(values: Values, name: str) -> Values:
    """For families whose heads share the hidden size evenly, whatever head_dim says."""
    divided = stated_head_dim({**values, "head_dim": None}, name)
    if values.get("head_dim") not in (None, divided):
        refuse(name, f"head_dim must be {divided} for this family, got {values['head_dim']!r:.80}")
    return {**values, "head_dim": divided}


def _stablelm(values: Values, name: str) -> ModelConfig:
    if values["use_parallel_residual"] is not False:
        refuse(
            name,
            "parallel StableLM is not supported; model_impl='transformers' runs it",
        )
    values = _plain_heads(values, name)
    rope, max_len = single_rope(values, name, default_partial=0.25)
    return decoder(
        values,
        name,
        uniform_layers(values, name, rope, max_len),
        max_len,
        norm_eps=positive(name, "layer_norm_eps", values["layer_norm_eps"]),
        norm="layer",
        qkv_bias=values["use_qkv_bias"],
    )


_SILU = {"hidden_act": "silu", "tie_word_embeddings": False}
_QWEN = _SILU | {"num_key_value_heads": 32, "sliding_window": 4096, "max_window_layers": 28}
_NO_BIAS = {"attention_bias": False, "mlp_bias": False}

FAMILIES: dict[str, Family] = {
    "llama": Family("LlamaForCausalLM", _llama, _SILU | _NO_BIAS),
    "mistral": Family(
        "MistralForCausalLM", _mistral, _SILU | {"num_key_value_heads": 8, "sliding_window": 4096}
    ),
    "qwen2": Family("Qwen2ForCausalLM", _qwen2, _QWEN),
    "qwen3": Family("Qwen3ForCausalLM", _qwen3, _QWEN | _NO_BIAS | {"head_dim": 128}),
    "smollm3": Family(
        "SmolLM3ForCausalLM",
        _smollm3,
        _NO_BIAS
        | {
            "hidden_act": "silu",
            "tie_word_embeddings": True,
            "num_key_value_heads": 4,
            "no_rope_layer_interval": 4,
        },
    ),
    "gemma": Family(
        "GemmaForCausalLM",
        gemma,
        GEMMA | {"num_key_value_heads": 16, "hidden_act": "gelu_pytorch_tanh"},
    ),
    "gemma2": Family("Gemma2ForCausalLM", gemma2, GEMMA2),
    "gemma3_text": Family("Gemma3ForCausalLM", gemma3_text, GEMMA3),
    "gemma3": Family("Gemma3ForConditionalGeneration", gemma3, {"tie_word_embeddings": True}),
    "phi3": Family(
        "Phi3ForCausalLM",
        _phi3,
        _SILU | {"original_max_position_embeddings": 4096},
        had_own_code=True,
    ),
    "gpt2": Family(
        "GPT2LMHeadModel",
        _gpt2,
        {
            "activation_function": "gelu_new",
            "layer_norm_epsilon": 1e-5,
            "scale_attn_weights": True,
            "scale_attn_by_inverse_layer_idx": False,
            "tie_word_embeddings": True,
        },
    ),
    "gpt_neox": Family(
        "GPTNeoXForCausalLM",
        _gpt_neox,
        {
            "hidden_act": "gelu",
            "layer_norm_eps": 1e-5,
            "use_parallel_residual": True,
            "attention_bias": True,
            "tie_word_embeddings": False,
        },
    ),
    "stablelm": Family(
        "StableLmForCausalLM",
        _stablelm,
        _SILU
        | {
            "num_key_value_heads": 32,
            "layer_norm_eps": 1e-5,
            "use_qkv_bias": False,
            "use_parallel_residual": False,
        },
        had_own_code=True,
    ),
}
