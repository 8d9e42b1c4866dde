"""What the decoder must know about a model, read from `config.json` or GGUF metadata.

Everything the decoder does not do is refused here, by name, before a weight is read: a model that
loads is a model that is computed as its authors meant it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from outpace.errors import ModelError

SUPPORTED_ARCHITECTURES = ("llama",)

_RECURRENT_ARCHITECTURES = frozenset(
    {
        "mamba",
        "mamba2",
        "falcon_mamba",
        "falcon_h1",
        "falcon-h1",
        "jamba",
        "bamba",
        "zamba",
        "zamba2",
        "nemotron_h",
        "granitemoehybrid",
        "granitehybrid",
        "recurrent_gemma",
        "rwkv",
        "rwkv6",
        "rwkv7",
        "qwen3_next",
        "qwen3next",
        "qwen3_5",
        "qwen3_5_text",
        "qwen3_5_moe",
        "qwen35",
        "qwen35moe",
        "lfm2",
        "lfm2_moe",
        "lfm2moe",
        "kimi_linear",
        "kimi-linear",
        "olmo_hybrid",
        "plamo2",
        "minimax",
    }
)
_RECURRENT_MARKS = ("mamba", "ssm", "linear_attention", "gated_delta", "gdn", "recurrent", "rwkv")
_MAX_INTEGER = 2**31 - 1

# Metadata that changes the computation of a GGUF "llama" file, and the value that changes nothing.
_GGUF_NEUTRAL = {
    "attention.scale": 0.0,
    "attention.causal": True,
    "attention.clamp_kqv": 0.0,
    "attention.max_alibi_bias": 0.0,
    "attn_logit_softcapping": 0.0,
    "final_logit_softcapping": 0.0,
    "embedding_scale": 1.0,
    "residual_scale": 1.0,
    "logit_scale": 1.0,
    "expert_count": 0,
    "use_parallel_residual": False,
}


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape of a Llama-family decoder. Field names and meaning are those of `config.json`.

    head_dim is even (rotary embedding turns pairs of channels) and need not equal
    hidden_size / num_attention_heads. rope_theta is the base of the unscaled rotary frequencies.
    attention_bias: q, k, v and o projections have biases. mlp_bias: gate, up and down have.
    name: how messages refer to the model.

    Raises ModelError naming the field for a value of the wrong type or without meaning.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    tie_word_embeddings: bool
    attention_bias: bool
    mlp_bias: bool
    name: str = ""

    def __post_init__(self) -> None:
        _check_architecture(self.architecture, self.name)
        for field in _INTEGER_FIELDS:
            value = getattr(self, field)
            if not _is_integer(value) or not 1 <= value <= _MAX_INTEGER:
                _refuse(self.name, f"{field} must be a positive whole number, got {value!r}")
        for field in ("rms_norm_eps", "rope_theta"):
            value = getattr(self, field)
            if not _is_finite(value) or value <= 0:
                _refuse(self.name, f"{field} must be a positive finite number, got {value!r}")
            object.__setattr__(self, field, float(value))
        for field in ("tie_word_embeddings", "attention_bias", "mlp_bias"):
            if not isinstance(getattr(self, field), bool):
                _refuse(self.name, f"{field} must be true or false, got {getattr(self, field)!r}")
        if self.num_attention_heads % self.num_key_value_heads:
            _refuse(
                self.name,
                f"num_attention_heads ({self.num_attention_heads}) must be a multiple of "
                f"num_key_value_heads ({self.num_key_value_heads})",
            )
        if self.head_dim % 2:
            _refuse(self.name, f"head_dim must be even for rotary embedding, got {self.head_dim}")

    @classmethod
    def from_hf(cls, values: Mapping[str, Any], name: str = "") -> ModelConfig:
        """Read the content of a Hugging Face `config.json`.

        Fields that later models added take the value that LlamaConfig gives them when absent.
        Raises ModelError for anything this decoder does not compute and for bad fields.
        """
        if not isinstance(values, Mapping):
            _refuse(name, f"config.json must hold an object, got {type(values).__name__}")
        _refuse_hf_features(values, name)
        hidden_size = _integer(values, "hidden_size", name)
        num_heads = _integer(values, "num_attention_heads", name)
        num_kv_heads = values.get("num_key_value_heads")
        return cls(
            architecture=values["model_type"],
            vocab_size=_required(values, "vocab_size", name),
            hidden_size=hidden_size,
            intermediate_size=_required(values, "intermediate_size", name),
            num_hidden_layers=_required(values, "num_hidden_layers", name),
            num_attention_heads=num_heads,
            num_key_value_heads=num_heads if num_kv_heads is None else num_kv_heads,
            head_dim=_head_dim(values.get("head_dim"), hidden_size, num_heads, name),
            rms_norm_eps=_required(values, "rms_norm_eps", name),
            rope_theta=_rope_theta(values, name),
            max_position_embeddings=_required(values, "max_position_embeddings", name),
            tie_word_embeddings=values.get("tie_word_embeddings", False),
            attention_bias=values.get("attention_bias", False),
            mlp_bias=values.get("mlp_bias", False),
            name=name,
        )

    @classmethod
    def from_gguf(
        cls,
        metadata: Mapping[str, Any],
        tensor_shapes: Mapping[str, tuple[int, ...]],
        name: str = "",
    ) -> ModelConfig:
        """Read the metadata of a GGUF file; `tensor_shapes` are row-major (outermost first).

        What GGUF leaves unsaid is read off the tensors: an absent `output.weight` means tied
        embeddings, a bias tensor means biases. Raises ModelError as `from_hf` does.
        """
        architecture = metadata.get("general.architecture")
        _check_architecture(architecture, name)
        prefix = f"{architecture}."
        values = {
            key.removeprefix(prefix): metadata[key] for key in metadata if key.startswith(prefix)
        }
        _refuse_gguf_features(values, tensor_shapes, prefix, name)

        def field(key: str) -> Any:
            return _required(values, key, name, prefix)

        embedding = tensor_shapes.get("token_embd.weight", ())
        if len(embedding) != 2:
            _refuse(name, f"token_embd.weight must be a matrix, found shape {embedding}")
        hidden_size = _integer(values, "embedding_length", name, prefix)
        num_heads = _integer(values, "attention.head_count", name, prefix)
        head_dim = _head_dim(values.get("attention.key_length"), hidden_size, num_heads, name)
        for key in ("attention.value_length", "rope.dimension_count"):
            if values.get(key, head_dim) != head_dim:
                _refuse(
                    name, f"{prefix}{key} ({values[key]!r}) must equal the head size {head_dim}"
                )
        return cls(
            architecture=str(architecture),
            vocab_size=embedding[0],
            hidden_size=hidden_size,
            intermediate_size=field("feed_forward_length"),
            num_hidden_layers=field("block_count"),
            num_attention_heads=num_heads,
            num_key_value_heads=values.get("attention.head_count_kv", num_heads),
            head_dim=head_dim,
            rms_norm_eps=field("attention.layer_norm_rms_epsilon"),
            rope_theta=values.get("rope.freq_base", 10000.0),
            max_position_embeddings=field("context_length"),
            tie_word_embeddings="output.weight" not in tensor_shapes,
            attention_bias="blk.0.attn_q.bias" in tensor_shapes,
            mlp_bias="blk.0.ffn_up.bias" in tensor_shapes,
            name=name,
        )


def read_json(path: Path, hint: str) -> dict[str, Any]:
    """A JSON object from a file. Raises ModelError with `hint` if it is absent, or if damaged."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path}: not found; {hint}") from None
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror or error})") from None
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: not valid JSON ({error})") from None
    if not isinstance(values, dict):
        raise ModelError(f"{path}: must hold a JSON object, found {type(values).__name__}")
    return values


_INTEGER_FIELDS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
)


def _refuse(name: str, reason: str) -> NoReturn:
    raise ModelError(f"{name}: {reason}" if name else reason)


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_finite(value: object) -> bool:
    """Whether it is a number that a float can hold."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _required(values: Mapping[str, Any], field: str, name: str, prefix: str = "") -> Any:
    if values.get(field) is None:
        _refuse(name, f"{prefix}{field} is missing from the model's configuration")
    return values[field]


def _integer(values: Mapping[str, Any], field: str, name: str, prefix: str = "") -> int:
    value: int = _required(values, field, name, prefix)
    if not _is_integer(value) or not 1 <= value <= _MAX_INTEGER:
        _refuse(name, f"{prefix}{field} must be a positive whole number, got {value!r}")
    return value


def _head_dim(stated: Any, hidden_size: int, num_heads: int, name: str) -> Any:
    if stated is not None:
        return stated
    if hidden_size % num_heads:
        _refuse(
            name,
            f"hidden_size ({hidden_size}) must be a multiple of num_attention_heads "
            f"({num_heads}) where head_dim is not given",
        )
    return hidden_size // num_heads


def _check_architecture(architecture: Any, name: str) -> None:
    if architecture in SUPPORTED_ARCHITECTURES:
        return
    supported = ", ".join(SUPPORTED_ARCHITECTURES)
    if not isinstance(architecture, str) or not architecture:
        _refuse(name, f"no model architecture is given; supported: {supported}")
    if architecture.lower() in _RECURRENT_ARCHITECTURES:
        _refuse(
            name,
            f"architecture {architecture!r} has recurrent or hybrid layers, whose state cannot be "
            f"rolled back after a rejected draft; supported: {supported}",
        )
    _refuse(name, f"architecture {architecture!r} is not supported; supported: {supported}")


def _refuse_hf_features(values: Mapping[str, Any], name: str) -> None:
    if "speculators_model_type" in values or "speculators_config" in values:
        kind = values.get("speculators_model_type", "speculators")
        _refuse(name, f"this is a {kind} draft head, not a model; give it to a drafter instead")
    if values.get("auto_map"):
        _refuse(
            name,
            "config.json asks for code from the model's repository (auto_map); "
            "trust_remote_code is not supported, because it runs code nobody here has checked",
        )
    for key in ("quantization_config", "compression_config"):
        if values.get(key) is not None:
            quantisation = values[key]
            method = quantisation.get("quant_method") if isinstance(quantisation, Mapping) else None
            label = str(method).upper() if method else "quantised"
            _refuse(
                name,
                f"{label} weights ({key}) are not supported; use the unquantised safetensors "
                "checkpoint, or a GGUF file",
            )
    _check_architecture(values.get("model_type"), name)
    _check_model_class(values.get("architectures"), name)
    activation = values.get("hidden_act", "silu")
    if activation != "silu":
        _refuse(name, f"hidden_act {activation!r} is not supported; supported: silu")
    _refuse_layer_kinds(values, name)
    _refuse_sliding_window(values, name)


def _check_model_class(architectures: Any, name: str) -> None:
    if architectures is None:
        return
    if not isinstance(architectures, list) or "LlamaForCausalLM" not in architectures:
        _refuse(name, f"architectures must hold 'LlamaForCausalLM', got {architectures!r}")


def _refuse_layer_kinds(values: Mapping[str, Any], name: str) -> None:
    for key in ("layer_types", "layers_block_type"):
        kinds = values.get(key)
        if kinds is None:
            continue
        if not isinstance(kinds, list) or not all(isinstance(kind, str) for kind in kinds):
            _refuse(name, f"{key} must be a list of layer kinds, got {kinds!r}")
        for kind in kinds:
            if any(mark in kind for mark in _RECURRENT_MARKS):
                _refuse(
                    name,
                    f"{key} holds {kind!r}: recurrent or hybrid layers are not supported, because "
                    "their state cannot be rolled back after a rejected draft",
                )
            if kind not in ("full_attention", "attention"):
                _refuse(name, f"{key} holds {kind!r}; supported: full_attention")
    for key in values:
        if key.startswith(("mamba_", "ssm_", "linear_num_", "linear_conv_")):
            _refuse(name, f"{key} announces recurrent layers, which cannot be rolled back")


def _refuse_sliding_window(values: Mapping[str, Any], name: str) -> None:
    window = values.get("sliding_window")
    if window is None or values.get("use_sliding_window") is False:
        return
    limit = values.get("max_position_embeddings")
    if _is_integer(window) and _is_integer(limit) and window >= limit:
        return
    _refuse(name, f"sliding_window attention ({window!r}) is not supported")


def _rope_theta(values: Mapping[str, Any], name: str) -> Any:
    """The rotary base, from either spelling; refuses every scaling."""
    theta = values.get("rope_theta")
    for key in ("rope_scaling", "rope_parameters"):
        rope = values.get(key)
        if rope is None:
            continue
        if not isinstance(rope, Mapping):
            _refuse(name, f"{key} must be an object or null, got {rope!r}")
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind not in ("default", "none"):
            _refuse(name, f"{key} of type {kind!r} is not supported; supported: default")
        nested = [part for part, value in rope.items() if isinstance(value, Mapping)]
        if nested:
            _refuse(name, f"{key} per layer kind ({', '.join(nested)}) is not supported")
        _refuse_partial_rotary(rope, name)
        stated = rope.get("rope_theta")
        if stated is not None:
            if theta is not None and theta != stated:
                _refuse(name, f"rope_theta is {theta!r} but {key}.rope_theta is {stated!r}")
            theta = stated
    _refuse_partial_rotary(values, name)
    return 10000.0 if theta is None else theta


def _refuse_partial_rotary(values: Mapping[str, Any], name: str) -> None:
    factor = values.get("partial_rotary_factor")
    if factor is not None and factor != 1:
        _refuse(name, f"partial_rotary_factor {factor!r} is not supported; supported: 1")


def _refuse_gguf_features(
    values: Mapping[str, Any], tensor_shapes: Mapping[str, Any], prefix: str, name: str
) -> None:
    for key, neutral in _GGUF_NEUTRAL.items():
        if values.get(key, neutral) != neutral:
            _refuse(name, f"{prefix}{key} = {values[key]!r} is not supported")
    if any(key.startswith("ssm.") for key in values):
        _refuse(name, f"{prefix}ssm.* announces recurrent layers, which cannot be rolled back")
    # llama.cpp takes a factor without a type for linear scaling, and a factor of 0 for none.
    scaling = values.get("rope.scaling.type", "linear")
    factor = values.get("rope.scaling.factor", values.get("rope.scale_linear", 0))
    if scaling != "none" and not (scaling == "linear" and factor in (0, 1)):
        _refuse(name, f"rope scaling {scaling!r} by {factor} is not supported; supported: none")
    for tensor in ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"):
        if tensor in tensor_shapes:
            _refuse(name, f"rotary frequencies scaled per channel ({tensor}) are not supported")
    window = values.get("attention.sliding_window")
    limit = values.get("context_length")
    if window and not (_is_integer(window) and _is_integer(limit) and window >= limit):
        _refuse(name, f"{prefix}attention.sliding_window ({window!r}) is not supported")
