"""`config.json` of an EAGLE head, in the layout of the speculators library (and so of vLLM).

Every flag that changes what is computed is read. `norm_before_residual` must be stated, because
engines differ in what they take where it is not; the others may be absent and are then false, which
all of them take. What is not known, here or in the layer's own configuration, is refused.

"eagle" heads (EAGLE-1) have a file of our own: the same, with `speculators_model_type` "eagle" and
the flags `layernorms` and `fusion_bias`, which older versions of speculators had. Those and the
flags of EAGLE-3 may be absent, and must not be true. Tensors are called as EAGLE-3's; files of
those older versions call them otherwise and are refused.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NoReturn

from outpace.errors import ModelError
from outpace.heads.binding import KEY, Binding
from outpace.heads.config import EagleConfig
from outpace.heads.plain_rope import plain_theta
from outpace.models.config import is_integer
from outpace.models.hf.config import config_from_hf

SPECULATORS_VERSION = "0.3.0"
ALGORITHMS = ("eagle3", "eagle")
_FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
_EAGLE1_FLAGS = ("layernorms", "fusion_bias")
_LAYERS = "eagle_aux_hidden_state_layer_ids"
_KNOWN = {
    "architectures",
    "speculators_model_type",
    "speculators_version",
    "speculators_config",
    "transformer_layer_config",
    "draft_vocab_size",
    *_FLAGS,
    _LAYERS,
    "target_hidden_size",
    "embed_requires_grad",
    "tie_word_embeddings",
    KEY,
}
# Say nothing about what a head computes; the code that `auto_map` names is not run.
_IGNORED = {
    "dtype",
    "torch_dtype",
    "transformers_version",
    "model_type",
    "_name_or_path",
    "auto_map",
    "has_no_defaults_at_init",
}
_LAYER_KNOWN = {
    "model_type",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "rms_norm_eps",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "max_position_embeddings",
    "attention_bias",
    "mlp_bias",
    "layer_types",
    "sliding_window",
}
# About training, generation and how weights are stored. A head has an output head of its own,
# whatever its layer's configuration says of tying.
_LAYER_IGNORED = _IGNORED | {
    "architectures",
    "attention_dropout",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "initializer_range",
    "pretraining_tp",
    "tie_word_embeddings",
    "use_cache",
    "_attn_implementation",
    "_attn_implementation_autoset",
}


def read_eagle_config(values: Mapping[str, Any], name: str, num_layers: int) -> EagleConfig:
    """An EAGLE head's configuration from the content of its `config.json`.

    num_layers: of the target, which decides the captured layers where the file does not: 2, the
    middle and the third from the end. Layer i there is the output of the i-th layer.
    Raises ModelError for other kinds of drafts, for flags that are missing or unknown, and for what
    would make acceptance lossy.
    """
    algorithm = values.get("speculators_model_type")
    if algorithm not in ALGORITHMS:
        _refuse(name, f"speculators_model_type must be one of {ALGORITHMS}, got {algorithm!r}")
    known = _KNOWN | set(_EAGLE1_FLAGS) if algorithm == "eagle" else _KNOWN
    _check_known(values, known | _IGNORED, name)
    _check_proposals(values.get("speculators_config"), algorithm, name)
    layer = _transformer_layer(values, name)
    # Whether training changed the embedding, says the file of weights.
    _flag(values, "embed_requires_grad", name)
    if _flag(values, "tie_word_embeddings", name):
        _refuse(name, "tie_word_embeddings is true; heads have an output head of their own")
    hidden_size = layer.hidden_size
    # Required: absent, it is the target's vocabulary to some readers and 32,000 to others.
    draft_vocab_size: Any = values.get("draft_vocab_size")
    if not is_integer(draft_vocab_size) or not 1 <= draft_vocab_size <= layer.vocab_size:
        _refuse(
            name,
            f"draft_vocab_size must be a whole number from 1 to {layer.vocab_size}, got "
            f"{draft_vocab_size!r}",
        )
    rope = layer.layers[0].rope
    assert rope is not None
    return EagleConfig(
        algorithm=algorithm,
        feature_layers=_feature_layers(values.get(_LAYERS), algorithm, num_layers, name),
        hidden_size=hidden_size,
        target_hidden_size=_size(values, "target_hidden_size", hidden_size, name),
        intermediate_size=layer.intermediate_size,
        num_attention_heads=layer.num_attention_heads,
        num_key_value_heads=layer.num_key_value_heads,
        head_dim=layer.head_dim,
        rms_norm_eps=layer.norm_eps,
        rope=rope,
        max_position_embeddings=layer.max_position_embeddings,
        vocab_size=layer.vocab_size,
        draft_vocab_size=draft_vocab_size,
        **_flags(values, algorithm, name),
    )


def eagle_config_json(
    config: EagleConfig,
    binding: Binding,
    *,
    verifier_class: str,
    num_draft_tokens: int = 3,
) -> dict[str, Any]:
    """The content of `config.json`, complete for this library, speculators and vLLM.

    verifier_class: what `transformers` calls the class of the target. Raises ModelError for a
    rotation that is stretched or partial; see `plain_rope`.
    """
    theta = plain_theta(config.rope, config.head_dim)
    if theta is None:
        raise ModelError(
            "the head's rotation is stretched or partial, which its file cannot say; make the head "
            "with `plain_rope`"
        )
    layer = {
        "model_type": "llama",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": theta,
        "rope_parameters": {"rope_theta": theta, "rope_type": "default"},
        "max_position_embeddings": config.max_position_embeddings,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
    }
    proposal = {
        "proposal_type": "greedy",
        "speculative_tokens": num_draft_tokens,
        "verifier_accept_k": 1,
        "accept_tolerance": 0.0,
    }
    return {
        "architectures": ["Eagle3DraftModel" if config.algorithm == "eagle3" else "EagleDraft"],
        "speculators_model_type": config.algorithm,
        "speculators_version": SPECULATORS_VERSION,
        "draft_vocab_size": config.draft_vocab_size,
        **{flag: getattr(config, flag) for flag in _FLAGS},
        **(dict.fromkeys(_EAGLE1_FLAGS, False) if config.algorithm == "eagle" else {}),
        "target_hidden_size": config.target_hidden_size,
        _LAYERS: list(config.feature_layers),
        "embed_requires_grad": False,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
        "transformer_layer_config": layer,
        "speculators_config": {
            "algorithm": config.algorithm,
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": {
                "name_or_path": binding.target_name,
                "architectures": [verifier_class],
            },
        },
        KEY: binding.as_json(),
    }


def _transformer_layer(values: Mapping[str, Any], name: str) -> Any:
    """The one decoder layer, read as a model of one layer."""
    layer = values.get("transformer_layer_config")
    if not isinstance(layer, Mapping):
        _refuse(name, "transformer_layer_config is missing")
    kind, count = layer.get("model_type"), layer.get("num_hidden_layers", 1)
    if kind != "llama":
        _refuse(name, f"its layer is of type {kind!r}; heads with 'llama' layers are supported")
    if count != 1:
        _refuse(name, f"it has {count!r} layers; heads with one are supported")
    _check_known(layer, _LAYER_KNOWN | _LAYER_IGNORED, name, "transformer_layer_config.")
    kept = {key: value for key, value in layer.items() if key not in ("architectures", "auto_map")}
    config = config_from_hf({**kept, "num_hidden_layers": 1}, name)
    if config.qkv_bias or config.o_bias or config.mlp_bias:
        _refuse(name, "attention_bias and mlp_bias must be false")
    if config.activation != "silu":
        _refuse(name, f"hidden_act must be silu, got {config.activation}")
    return config


def _check_known(
    values: Mapping[str, Any], known: Collection[str], name: str, prefix: str = ""
) -> None:
    """Refuse fields that are not known. One that is null states nothing."""
    unknown = sorted(key for key, value in values.items() if key not in known and value is not None)
    if unknown:
        _refuse(name, f"{prefix}{unknown[0]} is not known and may change what the head computes")


def _flags(values: Mapping[str, Any], algorithm: str, name: str) -> dict[str, bool]:
    """The fields of `EagleConfig` that are flags."""
    if algorithm == "eagle":
        for key in (*_FLAGS, *_EAGLE1_FLAGS):
            if _flag(values, key, name):
                _refuse(name, f"{key} is true, which 'eagle' heads here do not compute")
        return {}
    if "norm_before_residual" not in values:
        _refuse(
            name,
            "norm_before_residual is missing; vLLM takes true and speculators false for it, so "
            "that it must be stated",
        )
    flags = {key: _flag(values, key, name) for key in _FLAGS}
    if flags["norm_before_fc"] and flags["fc_norm"]:
        _refuse(name, "norm_before_fc and fc_norm exclude each other")
    return flags


def _check_proposals(stated: object, algorithm: str, name: str) -> None:
    """Refuse proposals that are not what this library does with drafts."""
    if stated is None:
        return
    if not isinstance(stated, Mapping):
        _refuse(name, f"speculators_config must be an object, got {stated!r:.80}")
    if stated.get("algorithm", algorithm) != algorithm:
        _refuse(name, f"it says algorithm {stated['algorithm']!r} and type {algorithm!r}")
    methods = stated.get("proposal_methods") or []
    for method in methods if isinstance(methods, list) else [methods]:
        if not isinstance(method, Mapping):
            _refuse(name, f"proposal_methods must hold objects, got {method!r:.80}")
        for key, exact in (("verifier_accept_k", 1), ("accept_tolerance", 0)):
            if method.get(key, exact) != exact:
                _refuse(name, f"{key}={method[key]!r} makes acceptance lossy; {exact} is exact")


def _feature_layers(stated: Any, algorithm: str, num_layers: int, name: str) -> tuple[int, ...]:
    if algorithm == "eagle":
        if stated not in (None, [num_layers]):
            _refuse(name, f"an 'eagle' head reads layer {num_layers}, got {_LAYERS}={stated!r}")
        return (num_layers,)
    layers = [2, num_layers // 2, num_layers - 3] if stated is None else stated
    are_layers = (
        isinstance(layers, list)
        and layers
        and all(is_integer(layer) and 0 <= layer <= num_layers for layer in layers)
        and len(set(layers)) == len(layers)
    )
    if not are_layers:
        usual = " (the usual ones, because the file states none)" if stated is None else ""
        _refuse(
            name,
            f"{_LAYERS} must list different layers of the target, from 0 (its embedding) to "
            f"{num_layers}, got {layers!r}{usual}",
        )
    return tuple(layers)


def _size(values: Mapping[str, Any], key: str, default: int, name: str) -> int:
    value = values.get(key)
    if value is None:
        return default
    if not is_integer(value) or value < 1:
        _refuse(name, f"{key} must be a positive whole number, got {value!r}")
    return int(value)


def _flag(values: Mapping[str, Any], key: str, name: str) -> bool:
    value = values.get(key, False)
    if not isinstance(value, bool):
        _refuse(name, f"{key} must be true or false, got {value!r}")
    return value


def _refuse(name: str, reason: str) -> NoReturn:
    raise ModelError(f"{name}: this draft cannot be used: {reason}")
