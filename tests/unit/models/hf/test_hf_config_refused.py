"""config.json of every family: what is refused, by the name of what is wrong; any JSON is read or
refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hf_configs import KINDS, from_hf, least_of
from hypothesis import given
from hypothesis import strategies as st
from model_files import CONFIG

from outpace.errors import ModelError
from outpace.models.hf.config import SUPPORTED, config_from_hf
from outpace.models.hf.families import FAMILIES

RECURRENT = "recurrent or hybrid layers"
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"model_type": "opt"}, r"'opt' is not supported; supported: llama, mistral, qwen2, qwen3, s"),
    ({"model_type": None}, r"no model architecture is given; supported: llama"),
    ({"model_type": ["llama"]}, r"no model architecture"),
    ({"model_type": "qwen3_next"}, rf"'qwen3_next' has {RECURRENT}"),
    ({"model_type": "mamba2"}, rf"{RECURRENT}, .* rolled back"),
    ({"architectures": ["LlamaForSequenceClassification"]}, r"architectures must hold 'LlamaFor"),
    ({"architectures": "LlamaForCausalLM"}, r"architectures must hold"),
    ({"model_type": "qwen2"}, r"architectures must hold 'Qwen2ForCausalLM'"),
    ({"hidden_act": "quick_gelu"}, r"hidden_act 'quick_gelu' is not supported; supported: silu"),
    ({"hidden_act": ["silu"]}, r"hidden_act \['silu'\] is not supported"),
    ({"auto_map": {"AutoModel": "modeling.X"}}, r"trust_remote_code is not supported, because"),
    ({"speculators_model_type": "eagle3"}, r"eagle3 draft head, not a model"),
    ({"layer_types": ["full_attention", "linear_attention"]}, rf"'linear_attention': {RECURRENT}"),
    ({"layer_types": ["mamba", "full_attention"]}, rf"'mamba': {RECURRENT}"),
    ({"layers_block_type": ["recurrent", "attention"]}, rf"'recurrent': {RECURRENT}"),
    ({"layer_types": ["sliding_attention"] * 2}, r"'sliding_attention', which llama does not have"),
    ({"layer_types": ["chunked_attention"] * 2}, r"'chunked_attention'; supported: full"),
    ({"layer_types": ["full_attention"]}, r"layer_types has 1 entries, but num_hidden_layers is 2"),
    ({"layer_types": "full_attention"}, r"layer_types must be a list"),
    ({"layer_types": [1, 2]}, r"layer_types must be a list"),
    ({"mamba_d_state": 16}, r"mamba_d_state announces recurrent layers"),
    ({"num_local_experts": 8}, r"num_local_experts = 8 is not supported"),
    ({"logit_scale": 0.06}, r"logit_scale = 0.06 is not supported"),
    ({"residual_multiplier": 0.2}, r"residual_multiplier = 0.2 is not supported"),
    ({"use_bidirectional_attention": True}, r"use_bidirectional_attention = True"),
    ({"rope_interleaved": True}, r"rope_interleaved = True is not supported"),
    ({"sliding_window": 64}, r"sliding_window \(64\) is not supported for llama"),
    ({"sliding_window": "64"}, r"sliding_window must be a positive whole number"),
    ({"rope_scaling": {"rope_type": "axial"}}, r"rope_scaling of type 'axial' is not supported"),
    ({"rope_scaling": {"rope_type": ["yarn"]}}, r"of type \['yarn'\] is not supported"),
    ({"rope_parameters": {"full_attention": {}}}, r"per layer kind \(full_attention\)"),
    ({"rope_parameters": {"rope_theta": 1.0}}, r"rope_theta is 10000.0 but .* is 1.0"),
    ({"rope_scaling": {"type": "default", "mrope_section": [1]}}, r"rope_scaling.mrope_section"),
    ({"rope_scaling": "linear"}, r"rope_scaling must be an object"),
    (
        {"rope_scaling": {"type": "default"}, "rope_parameters": {"rope_theta": 1e4}},
        r"are both given and differ",
    ),
    ({"rope_theta": 10**400}, r"rope_theta must be a positive finite number"),
    ({"rope_theta": 1e-300}, r"yields frequencies that are not between 0 and 1e9"),
    ({"partial_rotary_factor": 0.5}, r"partial_rotary_factor 0.5 is not supported for this fam"),
    ({"rope_parameters": {"partial_rotary_factor": "1"}}, r"partial_rotary_factor '1' is not sup"),
]


@pytest.mark.parametrize(("changes", "reason"), REFUSED, ids=lambda value: str(value)[:40])
def test_what_the_decoder_lacks_is_refused_by_name(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelError, match=reason) as caught:
        from_hf(**changes)
    assert str(caught.value).startswith("tiny: ")


REFUSED_BY_FAMILY: list[tuple[str, dict[str, Any], str]] = [
    ("mistral", {"layer_types": KINDS}, r"layer_types must all be 'sliding_attention' for mistral"),
    ("mistral", {"sliding_window": 0}, r"sliding_window must be a positive whole number"),
    ("qwen2", {"layer_types": KINDS}, r"'sliding_attention', but sliding_window is not in use"),
    ("qwen2", {"use_sliding_window": 1}, r"use_sliding_window must be true or false, got 1"),
    ("qwen2", {"max_window_layers": "1"}, r"max_window_layers must be a whole number"),
    ("qwen3", {"head_dim": 7}, r"head_dim must be even for rotary embedding, got 7"),
    ("smollm3", {"no_rope_layers": [1]}, r"no_rope_layers must be a list of 8 zeros and ones"),
    ("smollm3", {"no_rope_layers": [2] * 8}, r"no_rope_layers must be a list of 8"),
    ("smollm3", {"no_rope_layer_interval": 0}, r"no_rope_layer_interval must be a positive"),
    ("gemma", {"hidden_activation": "gelu"}, r"hidden_activation 'gelu' is not supported"),
    ("gemma2", {"sliding_window": None}, r"'sliding_attention', but sliding_window is not in use"),
    ("gemma2", {"query_pre_attn_scalar": -1}, r"query_pre_attn_scalar must be a positive finite"),
    ("gemma2", {"attn_logit_softcapping": "1"}, r"attention_softcap must be a positive finite"),
    ("gemma3_text", {"attn_logit_softcapping": 1.0}, r"attn_logit_softcapping is not supported"),
    ("gemma3_text", {"rope_parameters": {"rope_theta": 1.0}}, r"must hold full_attention and slid"),
    ("gemma3_text", {"rope_parameters": {"full_attention": 3}}, r"full_attention must be an obj"),
    ("gemma3_text", {"use_bidirectional_attention": True}, r"use_bidirectional_attention = True"),
    ("gemma3", {"text_config": None}, r"text_config must hold a gemma3_text model, got None"),
    ("gemma3", {"text_config": {"model_type": "llama"}}, r"text_config must hold a gemma3_text"),
    ("phi3", {"rope_scaling": {"type": "linear", "factor": 2}}, r"'linear' is not supported for p"),
    ("phi3", {"rope_scaling": {"type": "longrope"}}, r"short_factor must be a list of 4 numbers"),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, r"inverse_layer_idx is not supported"),
    ("gpt2", {"add_cross_attention": True}, r"add_cross_attention = True is not supported"),
    ("gpt2", {"activation_function": "relu"}, r"activation_function 'relu' is not supported"),
    ("gpt2", {"n_embd": 50}, r"hidden_size \(50\) must be a multiple of num_attention_heads"),
    ("gpt_neox", {"use_parallel_residual": None}, r"use_parallel_residual must be true or false"),
    ("gpt_neox", {"rotary_pct": 1e308}, r"partial_rotary_factor 1e\+308 turns 16 of 8 channels"),
    ("gpt_neox", {"rotary_pct": 2}, r"partial_rotary_factor 2 turns 16 of 8 channels"),
    ("gpt_neox", {"rotary_pct": 0.4}, r"turns 3 of 8 channels; it must be an even number"),
    ("gpt_neox", {"head_dim": 16}, r"head_dim must be 8 for this family, got 16"),
    (
        "stablelm",
        {"use_parallel_residual": True},
        r"model_impl='transformers' runs it",
    ),
    ("stablelm", {"qk_layernorm": True}, r"qk_layernorm = True is not supported"),
]


@pytest.mark.parametrize(
    ("family", "changes", "reason"), REFUSED_BY_FAMILY, ids=lambda value: str(value)[:40]
)
def test_what_a_family_lacks_is_refused_by_name(
    family: str, changes: dict[str, Any], reason: str
) -> None:
    config_from_hf(least_of(family))
    with pytest.raises(ModelError, match=reason):
        config_from_hf(least_of(family) | changes)


LLAMA3 = {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4}


@pytest.mark.parametrize(
    ("rope", "reason"),
    [
        ({"type": "linear"}, r"rope_scaling.factor is missing for rope type 'linear'"),
        ({"type": "linear", "factor": 0}, r"rope_scaling.factor must be a positive finite"),
        ({"type": "linear", "factor": 5e-324}, r"frequencies that are not between 0 and 1e9"),
        ({"type": "dynamic"}, r"rope_scaling.factor is missing"),
        (LLAMA3 | {"low_freq_factor": 4}, r"low_freq_factor must be below high_freq_factor"),
        (LLAMA3 | {"original_max_position_embeddings": 0.5}, r"original_max_pos.* positive whole"),
        ({"type": "yarn", "factor": 2, "truncate": 1}, r"truncate must be true or false, got 1"),
        ({"type": "yarn", "factor": 2, "attention_factor": -1}, r"attention_factor must be a pos"),
        ({"type": "yarn", "factor": 2, "mscale": "1"}, r"mscale must be a positive finite"),
        ({"type": "longrope", "short_factor": [1.0] * 8}, r"long_factor must be a list of 8"),
        (
            {"type": "longrope", "short_factor": [0] * 8, "long_factor": [1] * 8},
            r"short_factor must hold positive finite numbers",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_scalings_name_the_field(rope: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        from_hf(rope_scaling=rope)


def test_a_base_that_yarn_cannot_take() -> None:
    with pytest.raises(ModelError, match=r"rope_scaling has no frequencies \(.*\)"):
        from_hf(rope_theta=1.0, rope_scaling={"type": "yarn", "factor": 2.0})


@pytest.mark.parametrize(
    "changes",
    [
        {"layer_types": ["full_attention", "full_attention"]},
        {"sliding_window": None},
        {"sliding_window": 64, "use_sliding_window": False},
        {"sliding_window": 128},
        {"partial_rotary_factor": 1.0},
        {"quantization_config": None},
        {"hidden_act": "swish", "pretraining_tp": 1, "use_cache": True},
        {"num_local_experts": None, "logit_scale": 1.0},
        {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
    ],
)
def test_features_stated_but_not_in_use_are_fine(changes: dict[str, Any]) -> None:
    assert from_hf(**changes) == from_hf()


REQUIRED = ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"]
REQUIRED += ["num_attention_heads", "max_position_embeddings"]


@pytest.mark.parametrize("field", [*REQUIRED, "num_key_value_heads", "head_dim"])
@pytest.mark.parametrize("value", [0, -1, 2**40, 2.0, True, "8", [8], math.nan])
def test_bad_sizes_name_the_field(field: str, value: Any) -> None:
    with pytest.raises(ModelError, match=rf"tiny: {field} "):
        from_hf(**{field: value})


@pytest.mark.parametrize("field", ["rms_norm_eps", "rope_theta"])
@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, 10**400, "1e-5", True])
def test_bad_numbers_name_the_field(field: str, value: Any) -> None:
    with pytest.raises(ModelError, match=rf"tiny: {field} must be a positive finite number"):
        from_hf(**{field: value})


@pytest.mark.parametrize("field", ["tie_word_embeddings", "mlp_bias"])
def test_bad_flags_name_the_field(field: str) -> None:
    with pytest.raises(ModelError, match=rf"tiny: {field} must be true or false, got 1"):
        from_hf(**{field: 1})


@pytest.mark.parametrize("field", [*REQUIRED, "rms_norm_eps"])
def test_missing_fields_are_named(field: str) -> None:
    values = {key: value for key, value in CONFIG.items() if key != field}
    with pytest.raises(ModelError, match=rf"{field} is missing"):
        config_from_hf(values)


def test_sizes_that_do_not_fit_together() -> None:
    with pytest.raises(ModelError, match=r"num_attention_heads \(4\) must be a multiple of num_k"):
        from_hf(num_key_value_heads=3)
    with pytest.raises(ModelError, match=r"hidden_size \(66\) must be a multiple"):
        from_hf(hidden_size=66)
    with pytest.raises(ModelError, match=r"head_dim must be even"):
        from_hf(head_dim=15)
    with pytest.raises(ModelError, match=r"num_hidden_layers must be at most 4096"):
        from_hf(num_hidden_layers=2**20)
    with pytest.raises(ModelError, match=r"must hold an object"):
        config_from_hf([1])  # type: ignore[arg-type]


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["full_attention", "sliding_attention", "yarn", "longrope", "gelu"]),
    lambda inner: (
        st.lists(inner, max_size=9)
        | st.dictionaries(
            st.text(max_size=8)
            | st.sampled_from(["rope_type", "type", "factor", "rope_theta", "full_attention"]),
            inner,
        )
    ),
    max_leaves=6,
)
MORE_KEYS = [
    *("rope_scaling", "rope_parameters", "rope_theta", "partial_rotary_factor", "layer_types"),
    *("sliding_window", "use_sliding_window", "head_dim", "quantization_config", "auto_map"),
    *("no_rope_layers", "rope_local_base_freq", "rotary_pct", "rotary_emb_base", "n_inner"),
    *("architectures", "text_config", "num_experts", "layers_block_type", "hidden_activation"),
]


@pytest.mark.parametrize("family", SUPPORTED)
@given(data=st.data())
def test_any_json_is_read_or_refused(family: str, data: st.DataObject) -> None:
    values = least_of(family)
    keys = sorted({*values, *FAMILIES[family].defaults, *MORE_KEYS} - {"model_type"})
    changes = data.draw(st.dictionaries(st.sampled_from(keys), JSON, min_size=1, max_size=4))
    try:
        config = config_from_hf(values | changes)
    except ModelError:
        return
    assert config.num_attention_heads % config.num_key_value_heads == 0
    for kind in config.layers:
        assert kind.rope is None or all(0 < f < math.inf for f in kind.rope.frequencies)
