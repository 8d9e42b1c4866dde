"""Configurations: what is read, what is derived, and everything that must be refused."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_files import CONFIG
from transformers import LlamaConfig

from outpace.errors import ModelError
from outpace.models.config import ModelConfig

GGUF = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.context_length": 128,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 96,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 10000.0,
}
SHAPES: dict[str, tuple[int, ...]] = {"token_embd.weight": (264, 64)}


def from_hf(**changes: Any) -> ModelConfig:
    return ModelConfig.from_hf(CONFIG | changes, "tiny")


def from_gguf(changes: dict[str, Any] | None = None, **shapes: tuple[int, ...]) -> ModelConfig:
    named = {name.replace("__", "."): shape for name, shape in shapes.items()}
    return ModelConfig.from_gguf(GGUF | (changes or {}), SHAPES | named, "tiny")


def test_both_formats_give_the_same_configuration() -> None:
    expected = ModelConfig(
        architecture="llama",
        vocab_size=264,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        attention_bias=False,
        mlp_bias=False,
        name="tiny",
    )
    assert from_hf() == expected
    assert from_gguf() == expected


def test_absent_fields_take_the_defaults_of_llama() -> None:
    optional = ("num_key_value_heads", "rope_theta", "tie_word_embeddings")
    values = {key: value for key, value in CONFIG.items() if key not in optional}
    found, reference = ModelConfig.from_hf(values), LlamaConfig(**values)
    for key in ("num_key_value_heads", "head_dim", "attention_bias", "mlp_bias"):
        assert getattr(found, key) == getattr(reference, key)
    assert found.tie_word_embeddings is bool(reference.tie_word_embeddings)
    assert found.rope_theta == reference.rope_parameters["rope_theta"]


def test_configuration_written_by_transformers_is_read() -> None:
    reference = LlamaConfig(**CONFIG, head_dim=32, rope_parameters={"rope_theta": 5e5})
    found = ModelConfig.from_hf({**reference.to_dict(), "architectures": ["LlamaForCausalLM"]})
    assert found.head_dim == 32
    assert found.rope_theta == reference.rope_parameters["rope_theta"]


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_theta": 5e5},
        {"rope_theta": 5e5, "rope_scaling": None},
        {"rope_theta": 5e5, "rope_scaling": {"type": "default"}},
        {"rope_theta": None, "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}},
        {"rope_theta": 5e5, "rope_parameters": {"rope_theta": 5e5}},
    ],
)
def test_spellings_of_rope(rope: dict[str, Any]) -> None:
    assert from_hf(**rope).rope_theta == 5e5


def test_what_gguf_leaves_unsaid_is_read_off_the_tensors() -> None:
    config = from_gguf(
        output__weight=(264, 64), blk__0__attn_q__bias=(64,), blk__0__ffn_up__bias=(96,)
    )
    assert not config.tie_word_embeddings
    assert config.attention_bias
    assert config.mlp_bias


REFUSED_HF: list[tuple[dict[str, Any], str]] = [
    ({"model_type": "gemma3"}, r"architecture 'gemma3' is not supported; supported: llama"),
    ({"model_type": "mistral"}, r"'mistral' is not supported; supported: llama"),
    ({"model_type": None}, r"no model architecture is given; supported: llama"),
    ({"model_type": ["llama"]}, r"no model architecture"),
    ({"model_type": "qwen3_next"}, r"'qwen3_next' has recurrent or hybrid layers"),
    ({"model_type": "mamba2"}, r"recurrent or hybrid layers, .* rolled back"),
    ({"architectures": ["LlamaForSequenceClassification"]}, r"architectures must hold"),
    ({"hidden_act": "gelu"}, r"hidden_act 'gelu' is not supported; supported: silu"),
    ({"quantization_config": {"quant_method": "awq"}}, r"AWQ weights"),
    ({"quantization_config": {"quant_method": "gptq"}}, r"GPTQ weights"),
    ({"quantization_config": {}}, r"quantised weights"),
    ({"compression_config": {"quant_method": "compressed-tensors"}}, r"COMPRESSED-TENSORS"),
    ({"auto_map": {"AutoModel": "modeling.X"}}, r"trust_remote_code is not supported, because"),
    ({"speculators_model_type": "eagle3"}, r"eagle3 draft head, not a model"),
    ({"layer_types": ["full_attention", "linear_attention"]}, r"'linear_attention': recurrent"),
    ({"layer_types": ["mamba", "full_attention"]}, r"'mamba': recurrent"),
    ({"layers_block_type": ["recurrent", "attention"]}, r"'recurrent': recurrent"),
    ({"layer_types": ["sliding_attention"] * 2}, r"'sliding_attention'; supported: full"),
    ({"layer_types": "full_attention"}, r"layer_types must be a list"),
    ({"mamba_d_state": 16}, r"mamba_d_state announces recurrent layers"),
    ({"sliding_window": 64}, r"sliding_window attention \(64\) is not supported"),
    ({"sliding_window": "64"}, r"sliding_window"),
    ({"rope_scaling": {"rope_type": "llama3", "factor": 8}}, r"rope_scaling of type 'llama3'"),
    ({"rope_scaling": {"type": "linear", "factor": 2}}, r"rope_scaling of type 'linear'"),
    ({"rope_parameters": {"rope_type": "yarn"}}, r"rope_parameters of type 'yarn'"),
    ({"rope_parameters": {"full_attention": {}}}, r"per layer kind \(full_attention\)"),
    ({"rope_parameters": {"rope_theta": 1.0}}, r"rope_theta is 10000.0 but .* is 1.0"),
    ({"rope_scaling": "linear"}, r"rope_scaling must be an object"),
    ({"partial_rotary_factor": 0.5}, r"partial_rotary_factor 0.5"),
    ({"rope_parameters": {"partial_rotary_factor": 0.5}}, r"partial_rotary_factor 0.5"),
]


@pytest.mark.parametrize(("changes", "reason"), REFUSED_HF, ids=lambda value: str(value)[:40])
def test_features_the_decoder_lacks_are_refused_by_name(
    changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ModelError, match=reason) as caught:
        from_hf(**changes)
    assert str(caught.value).startswith("tiny: ")


@pytest.mark.parametrize(
    "changes",
    [
        {"layer_types": ["full_attention", "full_attention"]},
        {"sliding_window": None},
        {"sliding_window": 64, "use_sliding_window": False},
        {"sliding_window": 128},
        {"partial_rotary_factor": 1.0},
        {"quantization_config": None},
        {"hidden_act": "silu", "pretraining_tp": 1, "use_cache": True},
    ],
)
def test_features_stated_but_not_in_use_are_fine(changes: dict[str, Any]) -> None:
    assert from_hf(**changes) == from_hf()


@pytest.mark.parametrize(
    "field",
    [
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "max_position_embeddings",
    ],
)
@pytest.mark.parametrize("value", [0, -1, 2**40, 2.0, True, "8", [8], math.nan])
def test_bad_sizes_name_the_field(field: str, value: Any) -> None:
    with pytest.raises(ModelError, match=rf"tiny: {field} "):
        from_hf(**{field: value})


@pytest.mark.parametrize("field", ["rms_norm_eps", "rope_theta"])
@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, "1e-5", True])
def test_bad_numbers_name_the_field(field: str, value: Any) -> None:
    with pytest.raises(ModelError, match=rf"tiny: {field} must be a positive finite number"):
        from_hf(**{field: value})


@pytest.mark.parametrize("field", ["tie_word_embeddings", "attention_bias", "mlp_bias"])
def test_bad_flags_name_the_field(field: str) -> None:
    with pytest.raises(ModelError, match=rf"tiny: {field} must be true or false, got 1"):
        from_hf(**{field: 1})


@pytest.mark.parametrize(
    "field",
    [
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "rms_norm_eps",
        "max_position_embeddings",
    ],
)
def test_missing_fields_are_named(field: str) -> None:
    values = {key: value for key, value in CONFIG.items() if key != field}
    with pytest.raises(ModelError, match=rf"{field} is missing"):
        ModelConfig.from_hf(values)


def test_sizes_that_do_not_fit_together() -> None:
    with pytest.raises(ModelError, match=r"num_attention_heads \(4\) must be a multiple of num_k"):
        from_hf(num_key_value_heads=3)
    with pytest.raises(ModelError, match=r"hidden_size \(66\) must be a multiple"):
        from_hf(hidden_size=66)
    with pytest.raises(ModelError, match=r"head_dim must be even"):
        from_hf(head_dim=15)
    with pytest.raises(ModelError, match=r"must hold an object"):
        ModelConfig.from_hf([1])  # type: ignore[arg-type]


REFUSED_GGUF: list[tuple[dict[str, Any], str]] = [
    ({"general.architecture": "gemma2"}, r"'gemma2' is not supported; supported: llama"),
    ({"general.architecture": "mamba"}, r"'mamba' has recurrent"),
    ({"general.architecture": 3}, r"no model architecture"),
    ({"llama.block_count": None}, r"llama.block_count is missing"),
    ({"llama.block_count": 0}, r"num_hidden_layers must be a positive"),
    ({"llama.attention.head_count": "4"}, r"llama.attention.head_count must be a positive"),
    ({"llama.attention.head_count_kv": [2, 2]}, r"num_key_value_heads must be a positive"),
    ({"llama.attention.layer_norm_rms_epsilon": math.nan}, r"rms_norm_eps must be"),
    ({"llama.rope.freq_base": 10**400}, r"rope_theta must be a positive finite number"),
    ({"llama.rope.scaling.type": "yarn"}, r"rope scaling 'yarn'"),
    ({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}, r"'linear' by 4.0"),
    ({"llama.rope.scaling.factor": 4.0}, r"rope scaling 'linear' by 4.0"),
    ({"llama.rope.dimension_count": 8}, r"llama.rope.dimension_count \(8\) must equal"),
    ({"llama.attention.value_length": 32}, r"llama.attention.value_length \(32\) must equal"),
    ({"llama.attention.sliding_window": 64}, r"sliding_window \(64\)"),
    ({"llama.attention.sliding_window": 64, "llama.context_length": "8"}, r"sliding_window \(64\)"),
    ({"llama.context_length": "8"}, r"max_position_embeddings must be a positive"),
    ({"llama.expert_count": 8}, r"llama.expert_count = 8"),
    ({"llama.attention.scale": 0.5}, r"llama.attention.scale = 0.5"),
    ({"llama.ssm.state_size": 16}, r"ssm.\* announces recurrent"),
]


@pytest.mark.parametrize(("changes", "reason"), REFUSED_GGUF, ids=lambda value: str(value)[:40])
def test_gguf_refusals(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        from_gguf(changes)


def test_gguf_refusals_by_tensor() -> None:
    with pytest.raises(ModelError, match=r"scaled per channel \(rope_freqs.weight\)"):
        from_gguf(rope_freqs__weight=(8,))
    with pytest.raises(ModelError, match=r"token_embd.weight must be a matrix"):
        ModelConfig.from_gguf(GGUF, {})


@pytest.mark.parametrize("field", ["rms_norm_eps", "rope_theta"])
@pytest.mark.parametrize("value", [10**400, -(10**400), math.inf, math.nan, 0, True, "1"])
def test_numbers_that_no_float_holds_are_refused(field: str, value: Any) -> None:
    with pytest.raises(ModelError, match=f"{field} must be a positive finite number"):
        from_hf(**{field: value})


def test_a_configuration_cannot_be_made_wrong() -> None:
    with pytest.raises(ModelError, match="num_hidden_layers"):
        replace(from_hf(), num_hidden_layers=0)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=5,
)
KEYS = [
    *CONFIG,
    *("rope_scaling", "rope_parameters", "layer_types", "sliding_window", "head_dim"),
    *("quantization_config", "hidden_act", "partial_rotary_factor", "auto_map", "mlp_bias"),
]


@given(st.dictionaries(st.sampled_from(KEYS), JSON, min_size=1, max_size=4))
def test_any_json_is_read_or_refused(changes: dict[str, Any]) -> None:
    try:
        config = from_hf(**changes)
    except ModelError:
        return
    assert config.head_dim % 2 == 0
    assert config.num_attention_heads % config.num_key_value_heads == 0


@given(st.dictionaries(st.sampled_from([*GGUF, "llama.rope.scaling.type"]), JSON, min_size=1))
def test_any_metadata_is_read_or_refused(changes: dict[str, Any]) -> None:
    try:
        from_gguf(changes)
    except ModelError:
        return


def test_importing_config_and_hub_does_not_import_torch() -> None:
    code = "import sys, outpace.models.config, outpace.models.hub; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
