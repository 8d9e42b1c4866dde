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

from collections.abc import Mapping
from typing import Any

from outpace.errors import ModelError
from outpace.heads.binding import KEY, Binding
from outpace.heads.config import EagleConfig, usual_feature_layers
from outpace.heads.fields import Fields
from outpace.heads.plain_rope import plain_theta
from outpace.models.config import ModelConfig, is_integer
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
_IGNORED = {"model_type", "auto_map", "has_no_defaults_at_init"}
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

    num_layers: of the target, which decides the captured layers where the file does not
    (`usual_feature_layers`).
    Raises ModelError for other kinds of drafts, for flags that are missing or unknown, and for what
    would make acceptance lossy.
    """
    fields = Fields(values, name)
    algorithm = values.get("speculators_model_type")
    if algorithm not in ALGORITHMS:
        fields.refuse(f"speculators_model_type must be one of {ALGORITHMS}, got {algorithm!r}")
    known = _KNOWN | set(_EAGLE1_FLAGS) if algorithm == "eagle" else _KNOWN
    fields.check_known(known | _IGNORED)
    _check_proposals(fields, algorithm)
    layer = _transformer_layer(fields, name)
    # Whether training changed the embedding, says the file of weights.
    fields.flag("embed_requires_grad", default=False)
    if fields.flag("tie_word_embeddings", default=False):
        fields.refuse("tie_word_embeddings is true; heads have an output head of their own")
    rope = layer.layers[0].rope
    assert rope is not None
    return EagleConfig(
        algorithm=algorithm,
        feature_layers=_feature_layers(fields, algorithm, num_layers),
        hidden_size=layer.hidden_size,
        target_hidden_size=fields.count("target_hidden_size", default=layer.hidden_size),
        intermediate_size=layer.intermediate_size,
        num_attention_heads=layer.num_attention_heads,
        num_key_value_heads=layer.num_key_value_heads,
        head_dim=layer.head_dim,
        rms_norm_eps=layer.norm_eps,
        rope=rope,
        max_position_embeddings=layer.max_position_embeddings,
        vocab_size=layer.vocab_size,
        # Required: absent, it is the target's vocabulary to some readers and 32,000 to others.
        draft_vocab_size=fields.count("draft_vocab_size", most=layer.vocab_size),
        **_flags(fields, algorithm),
    )


def eagle_config_json(
    config: EagleConfig,
    binding: Binding,
    *,
    verifier: str,
    verifier_class: str,
    num_draft_tokens: int = 3,
) -> dict[str, Any]:
    """The content of `config.json`, complete for this library, speculators and vLLM.

    verifier: what others call the target. verifier_class: what `transformers` calls its class.
    Raises ModelError for a rotation that is stretched or partial; see `plain_rope`.
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
                "name_or_path": verifier,
                "architectures": [verifier_class],
            },
        },
        KEY: binding.as_json(),
    }


def _transformer_layer(fields: Fields, name: str) -> ModelConfig:
    """The one decoder layer, read as a model of one layer."""
    layer = fields.values.get("transformer_layer_config")
    if not isinstance(layer, Mapping):
        fields.refuse("transformer_layer_config is missing")
    kind, count = layer.get("model_type"), layer.get("num_hidden_layers", 1)
    if kind != "llama":
        fields.refuse(f"its layer is of type {kind!r}; heads with 'llama' layers are supported")
    if count != 1:
        fields.refuse(f"it has {count!r} layers; heads with one are supported")
    Fields(layer, f"{name}: transformer_layer_config").check_known(_LAYER_KNOWN | _LAYER_IGNORED)
    kept = {key: value for key, value in layer.items() if key not in ("architectures", "auto_map")}
    config = config_from_hf({**kept, "num_hidden_layers": 1}, name)
    if config.qkv_bias or config.o_bias or config.mlp_bias:
        fields.refuse("attention_bias and mlp_bias must be false")
    if config.activation != "silu":
        fields.refuse(f"hidden_act must be silu, got {config.activation}")
    return config


def _flags(fields: Fields, algorithm: str) -> dict[str, bool]:
    """The fields of `EagleConfig` that are flags."""
    if algorithm == "eagle":
        for key in (*_FLAGS, *_EAGLE1_FLAGS):
            if fields.flag(key, default=False):
                fields.refuse(f"{key} is true, which 'eagle' heads here do not compute")
        return {}
    if "norm_before_residual" not in fields.values:
        fields.refuse(
            "norm_before_residual is missing; vLLM takes true and speculators false for it, so "
            "that it must be stated"
        )
    flags = {key: fields.flag(key, default=False) for key in _FLAGS}
    if flags["norm_before_fc"] and flags["fc_norm"]:
        fields.refuse("norm_before_fc and fc_norm exclude each other")
    return flags


def _check_proposals(fields: Fields, algorithm: str) -> None:
    """Refuse proposals that are not what this library does with drafts."""
    stated = fields.values.get("speculators_config")
    if stated is None:
        return
    if not isinstance(stated, Mapping):
        fields.refuse(f"speculators_config must be an object, got {stated!r:.80}")
    if stated.get("algorithm", algorithm) != algorithm:
        fields.refuse(f"it says algorithm {stated['algorithm']!r} and type {algorithm!r}")
    methods = stated.get("proposal_methods") or []
    for method in methods if isinstance(methods, list) else [methods]:
        if not isinstance(method, Mapping):
            fields.refuse(f"proposal_methods must hold objects, got {method!r:.80}")
        for key, exact in (("verifier_accept_k", 1), ("accept_tolerance", 0)):
            if method.get(key, exact) != exact:
                fields.refuse(f"{key}={method[key]!r} makes acceptance lossy; {exact} is exact")


def _feature_layers(fields: Fields, algorithm: str, num_layers: int) -> tuple[int, ...]:
    stated: Any = fields.values.get(_LAYERS)
    if algorithm == "eagle":
        if stated not in (None, [num_layers]):
            fields.refuse(f"an 'eagle' head reads layer {num_layers}, got {_LAYERS}={stated!r}")
        return (num_layers,)
    layers = list(usual_feature_layers(num_layers)) if stated is None else stated
    are_layers = (
        isinstance(layers, list)
        and layers
        and all(is_integer(layer) and 0 <= layer <= num_layers for layer in layers)
        and len(set(layers)) == len(layers)
    )
    if not are_layers:
        usual = " (the usual ones, because the file states none)" if stated is None else ""
        fields.refuse(
            f"{_LAYERS} must list different layers of the target, from 0 (its embedding) to "
            f"{num_layers}, got {layers!r}{usual}"
        )
    return tuple(layers)
