"""config.json of every family: what is read, and what an absent field means.

What is refused is tested in test_hf_config_refused.py.
"""

from __future__ import annotations

from typing import Any

import pytest
from families import CASES, TEXT, config_of, family_of
from hf_configs import KINDS, from_hf, least_of
from model_files import CONFIG
from transformers import AutoConfig, Gemma3TextConfig, LlamaConfig

from outpace.models.config import LayerKind, ModelConfig, Rope
from outpace.models.hf.config import SUPPORTED, config_from_hf
from outpace.models.rope import default_frequencies


def completed_by_transformers(values: dict[str, Any]) -> dict[str, Any]:
    """The same with every field that its class has, in the spelling of today."""
    rest = {key: value for key, value in values.items() if key != "model_type"}
    return AutoConfig.for_model(values["model_type"], **rest).to_dict()


def test_llama() -> None:
    layer = LayerKind(Rope(default_frequencies(10000.0, 16)))
    assert from_hf() == ModelConfig(
        architecture="llama",
        vocab_size=264,
        hidden_size=64,
        intermediate_size=96,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=128,
        layers=(layer, layer),
        norm_eps=1e-5,
        tie_word_embeddings=True,
        attention_scale=0.25,
        name="tiny",
    )


@pytest.mark.parametrize("family", SUPPORTED)
def test_absent_fields_mean_what_they_mean_to_transformers(family: str) -> None:
    values = least_of(family)
    found = config_from_hf(values)
    assert found == config_from_hf(completed_by_transformers(values))
    assert found.num_hidden_layers == 8
    assert found.max_position_embeddings == 96


@pytest.mark.parametrize("family", sorted(set(SUPPORTED) - {"gemma3", "gpt2", "gpt_neox"}))
def test_an_absent_number_of_key_value_heads(family: str) -> None:
    values = least_of(family) | {"num_attention_heads": 32, "hidden_size": 512}
    del values["num_key_value_heads"]
    assert config_from_hf(values) == config_from_hf(completed_by_transformers(values))


@pytest.mark.parametrize("case", CASES)
def test_both_spellings_of_a_configuration(case: str) -> None:
    written = {"model_type": family_of(case), "rms_norm_eps": 1e-6} | CASES[case]
    if family_of(case) in ("gpt2", "gpt_neox", "stablelm", "gemma3"):
        del written["rms_norm_eps"]
    rewritten = config_of(case).to_dict()
    if "rms_norm_eps" in written and "rms_norm_eps" in rewritten:
        rewritten["rms_norm_eps"] = 1e-6
    assert config_from_hf(written) == config_from_hf(rewritten)


def test_configuration_written_by_transformers_is_read() -> None:
    reference = LlamaConfig(**CONFIG, head_dim=32, rope_parameters={"rope_theta": 5e5})
    found = config_from_hf({**reference.to_dict(), "architectures": ["LlamaForCausalLM"]})
    assert found.head_dim == 32
    assert found.layers[0].rope == Rope(default_frequencies(5e5, 32))


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_theta": 5e5},
        {"rope_theta": 5e5, "rope_scaling": None},
        {"rope_theta": 5e5, "rope_scaling": {}},
        {"rope_theta": 5e5, "rope_scaling": {"type": "default"}},
        {"rope_theta": None, "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}},
        {"rope_theta": 5e5, "rope_parameters": {"rope_theta": 5e5}},
    ],
)
def test_spellings_of_rope(rope: dict[str, Any]) -> None:
    assert from_hf(**rope).layers[0].rope == Rope(default_frequencies(5e5, 16))


def windows_of(**values: Any) -> list[int | None]:
    config = config_from_hf(least_of(values["model_type"]) | values)
    return [kind.window for kind in config.layers]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"model_type": "mistral"}, [None] * 8),  # 4096 tokens, more than the model's 96
        ({"model_type": "mistral", "sliding_window": 7}, [7] * 8),
        ({"model_type": "mistral", "sliding_window": 96}, [None] * 8),
        ({"model_type": "phi3"}, [None] * 8),
        ({"model_type": "phi3", "sliding_window": 7}, [7] * 8),
        ({"model_type": "qwen2", "sliding_window": 7}, [None] * 8),
        (
            {
                "model_type": "qwen2",
                "sliding_window": 7,
                "use_sliding_window": True,
                "max_window_layers": 6,
            },
            [None] * 6 + [7] * 2,
        ),
        (
            {
                "model_type": "qwen3",
                "sliding_window": 7,
                "use_sliding_window": True,
                "layer_types": KINDS,
            },
            [None, 7] * 4,
        ),
        (
            {"model_type": "smollm3", "sliding_window": 7, "use_sliding_window": True},
            [None, None, None, 7] * 2,
        ),
        ({"model_type": "gemma2", "sliding_window": 7}, [7, None] * 4),
        ({"model_type": "gemma2", "sliding_window": 7, "layer_types": KINDS}, [None, 7] * 4),
        ({"model_type": "gemma3_text", "sliding_window": 7}, [7] * 5 + [None] + [7] * 2),
        (
            {"model_type": "gemma3_text", "sliding_window": 7, "sliding_window_pattern": 4},
            [7, 7, 7, None] * 2,
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_windows(values: dict[str, Any], expected: list[int | None]) -> None:
    assert windows_of(**values) == expected


def test_layers_without_rotation() -> None:
    layers = config_from_hf(least_of("smollm3")).layers
    assert [kind.rope is None for kind in layers] == [False, False, False, True] * 2
    stated = config_from_hf(least_of("smollm3") | {"no_rope_layers": [0, 1] * 4}).layers
    assert [kind.rope is None for kind in stated] == [True, False] * 4


def test_the_two_rotations_of_gemma3() -> None:
    layers = config_from_hf(least_of("gemma3_text")).layers
    assert layers[0].rope == Rope(default_frequencies(1e4, 256))
    assert layers[5].rope == Rope(default_frequencies(1e6, 256))


def test_the_language_model_of_gemma3_is_read_alone() -> None:
    both = {"model_type": "gemma3", "text_config": TEXT | {"model_type": "gemma3_text"}}
    alone = Gemma3TextConfig(**TEXT).to_dict()
    assert config_from_hf(both) == config_from_hf(alone)
    assert config_from_hf(both).architecture == "gemma3_text"


def test_lengths_that_scaling_changes() -> None:
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 96}
    qwen = config_from_hf(least_of("qwen2") | {"rope_scaling": yarn})
    assert qwen.max_position_embeddings == 4 * 96
    unstated = {key: yarn[key] for key in ("type", "factor")}
    same = config_from_hf(least_of("qwen2") | {"rope_scaling": unstated})
    assert same.max_position_embeddings == 96
    long = {"type": "su", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    phi = least_of("phi3") | {"original_max_position_embeddings": 32, "rope_scaling": long}
    assert config_from_hf(phi).max_position_embeddings == 32


@pytest.mark.parametrize("family", ["phi3", "stablelm"])
def test_code_that_transformers_has_replaced_is_not_needed(family: str) -> None:
    values = least_of(family)
    assert config_from_hf(values | {"auto_map": {"AutoModel": "modeling.X"}}) == config_from_hf(
        values
    )


# What the files of some published models say, as far as it bears on how they are read.
PUBLISHED: dict[str, dict[str, Any]] = {
    "Mistral 7B": {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "max_position_embeddings": 32768,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-05,
        "rope_theta": 10000.0,
        "sliding_window": 4096,
        "tie_word_embeddings": False,
        "vocab_size": 32000,
    },
    "Qwen2.5 0.5B": {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_act": "silu",
        "hidden_size": 896,
        "intermediate_size": 4864,
        "max_position_embeddings": 32768,
        "max_window_layers": 21,
        "num_attention_heads": 14,
        "num_hidden_layers": 24,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0,
        "sliding_window": 32768,
        "tie_word_embeddings": True,
        "use_mrope": False,
        "use_sliding_window": False,
        "vocab_size": 151936,
    },
    "Gemma 3 4B": {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "mm_tokens_per_image": 256,
        "text_config": {
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "model_type": "gemma3_text",
            "num_hidden_layers": 34,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "sliding_window": 1024,
        },
        "vision_config": {"hidden_size": 1152, "model_type": "siglip_vision_model"},
    },
    "Phi-3 mini 4k": {
        "architectures": ["Phi3ForCausalLM"],
        "auto_map": {"AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM"},
        "model_type": "phi3",
        "hidden_act": "silu",
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "max_position_embeddings": 4096,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 32,
        "original_max_position_embeddings": 4096,
        "rms_norm_eps": 1e-05,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "sliding_window": 2047,
        "tie_word_embeddings": False,
        "vocab_size": 32064,
    },
    "GPT-2": {
        "activation_function": "gelu_new",
        "architectures": ["GPT2LMHeadModel"],
        "attn_pdrop": 0.1,
        "layer_norm_epsilon": 1e-05,
        "model_type": "gpt2",
        "n_ctx": 1024,
        "n_embd": 768,
        "n_head": 12,
        "n_layer": 12,
        "n_positions": 1024,
        "vocab_size": 50257,
    },
    "Pythia 70M": {
        "architectures": ["GPTNeoXForCausalLM"],
        "hidden_act": "gelu",
        "hidden_size": 512,
        "intermediate_size": 2048,
        "layer_norm_eps": 1e-05,
        "max_position_embeddings": 2048,
        "model_type": "gpt_neox",
        "num_attention_heads": 8,
        "num_hidden_layers": 6,
        "rotary_emb_base": 10000,
        "rotary_pct": 0.25,
        "tie_word_embeddings": False,
        "use_parallel_residual": True,
        "vocab_size": 50304,
    },
}


@pytest.mark.parametrize("model", PUBLISHED)
def test_published_files_mean_what_they_mean_to_transformers(model: str) -> None:
    values = PUBLISHED[model]
    config = config_from_hf(values)
    rewritten = completed_by_transformers(values)
    assert config == config_from_hf(rewritten | {"architectures": values["architectures"]})
    windows = [kind.window for kind in config.layers]
    rotating = {kind.rope.dim if kind.rope else 0 for kind in config.layers}
    assert (windows[0], windows[-1], rotating) == {
        "Mistral 7B": (4096, 4096, {128}),
        "Qwen2.5 0.5B": (None, None, {64}),
        "Gemma 3 4B": (1024, 1024, {256}),
        "Phi-3 mini 4k": (2047, 2047, {96}),
        "GPT-2": (None, None, {0}),
        "Pythia 70M": (None, None, {16}),
    }[model]
