"""GGUF metadata: what is read, what is derived from tensors, and what must be refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_files import CONFIG

from outpace.errors import ModelError
from outpace.models.config import LayerKind, ModelConfig, Rope
from outpace.models.gguf.config import config_from_gguf
from outpace.models.hf.config import config_from_hf
from outpace.models.rope import default_frequencies, linear_frequencies

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


YARN = {
    "llama.rope.scaling.type": "yarn",
    "llama.rope.scaling.factor": 4.0,
    "llama.rope.scaling.original_context_length": 32,
}


def from_gguf(changes: dict[str, Any] | None = None, **shapes: tuple[int, ...]) -> ModelConfig:
    named = {name.replace("__", "."): shape for name, shape in shapes.items()}
    return config_from_gguf(GGUF | (changes or {}), SHAPES | named, "tiny")


def test_both_formats_give_the_same_configuration() -> None:
    assert from_gguf() == config_from_hf(CONFIG, "tiny")


def test_what_gguf_leaves_unsaid_is_read_off_the_tensors() -> None:
    config = from_gguf(
        output__weight=(264, 64), blk__0__attn_q__bias=(64,), blk__0__ffn_up__bias=(96,)
    )
    assert not config.tie_word_embeddings
    assert config.qkv_bias
    assert config.mlp_bias


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"general.architecture": "unheard-of"}, r"'unheard-of' is not supported; supported: llama"),
    ({"general.architecture": "mamba"}, r"'mamba' has recurrent"),
    ({"general.architecture": 3}, r"no model architecture"),
    ({"llama.block_count": None}, r"llama.block_count is missing"),
    ({"llama.block_count": 0}, r"llama.block_count must be a positive"),
    ({"llama.attention.head_count": "4"}, r"llama.attention.head_count must be a positive"),
    ({"llama.attention.head_count_kv": [2, 2]}, r"num_key_value_heads must be a positive"),
    ({"llama.attention.layer_norm_rms_epsilon": math.nan}, r"norm_eps must be"),
    ({"llama.rope.freq_base": 10**400}, r"rope_theta must be a positive finite number"),
    ({"llama.rope.scaling.type": "unheard-of"}, r"rope scaling 'unheard-of' is not supported"),
    ({"llama.rope.scaling.type": "longrope"}, r"rope scaling 'longrope' is not supported"),
    ({"llama.rope.scaling.type": 3}, r"rope.scaling.type must be text, got 3"),
    ({"llama.rope.scaling.type": "yarn"}, r"rope.scaling.factor must be a positive"),
    ({"llama.rope.scaling.factor": -1.0}, r"rope.scaling.factor must be a positive"),
    ({**YARN, "llama.rope.scaling.yarn_ext_factor": 0.0}, r"yarn_ext_factor = 0.0"),
    ({**YARN, "llama.rope.scaling.yarn_log_multiplier": 0.1}, r"yarn_log_multiplier = 0.1"),
    ({**YARN, "llama.rope.scaling.yarn_beta_fast": 0.0}, r"beta_fast must be a positive"),
    ({**YARN, "llama.rope.scaling.original_context_length": 0}, r"original_context_length must"),
    ({"llama.rope.dimension_sections": [8, 8]}, r"dimension_sections = \[8, 8\]"),
    ({"llama.rope.dimension_count": 8}, r"llama.rope.dimension_count \(8\) must equal"),
    ({"llama.attention.value_length": 32}, r"llama.attention.value_length \(32\) must equal"),
    ({"llama.attention.sliding_window": -1}, r"sliding_window \(-1\) must be a whole number"),
    ({"llama.attention.sliding_window_pattern": 2}, r"sliding_window_pattern = 2"),
    ({"llama.context_length": "8"}, r"llama.context_length must be a positive"),
    ({"llama.attn_logit_softcapping": 50.0}, r"attn_logit_softcapping = 50.0"),
    ({"llama.expert_count": 8}, r"llama.expert_count = 8"),
    ({"llama.attention.scale": 0.5}, r"llama.attention.scale = 0.5"),
    ({"llama.ssm.state_size": 16}, r"ssm.\* announces recurrent"),
]


@pytest.mark.parametrize(("changes", "reason"), REFUSED, ids=lambda value: str(value)[:40])
def test_refusals(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        from_gguf(changes)


def test_refusals_by_tensor() -> None:
    with pytest.raises(ModelError, match=r"rope_freqs.weight is needed .* cannot be read"):
        from_gguf(rope_freqs__weight=(8,))
    with pytest.raises(ModelError, match=r"rope_freqs.weight must have shape \(8,\), found \(9,\)"):
        from_gguf(rope_freqs__weight=(9,))
    with pytest.raises(ModelError, match=r"rope_freqs.weight with rope scaling 'yarn'"):
        from_gguf(YARN, rope_freqs__weight=(8,))
    with pytest.raises(ModelError, match=r"rope_factors_long.weight with rope scaling 'none'"):
        from_gguf(rope_factors_long__weight=(8,))
    with pytest.raises(ModelError, match=r"token_embd.weight must be a matrix"):
        config_from_gguf(GGUF, {})


@pytest.mark.parametrize("factor", [0.0, -1.0, math.nan, math.inf])
def test_factors_that_are_no_divisors_are_refused(factor: float) -> None:
    shapes = SHAPES | {"rope_freqs.weight": (8,)}
    with pytest.raises(ModelError, match=r"rope_freqs.weight must hold positive finite numbers"):
        config_from_gguf(GGUF, shapes, "tiny", lambda name: [1.0] * 7 + [factor])


def as_family(architecture: str, **changes: Any) -> ModelConfig:
    """GGUF's metadata under another architecture's name; keys are spelled with two underscores."""
    values = {key.replace("llama.", f"{architecture}."): value for key, value in GGUF.items()}
    values |= {
        "general.architecture": architecture,
        f"{architecture}.attention.layer_norm_epsilon": 1e-5,
        f"{architecture}.use_parallel_residual": True,
    }
    named = {f"{architecture}.{key.replace('__', '.')}": value for key, value in changes.items()}
    shapes = SHAPES | {"blk.0.ffn_norm.weight": (64,)}
    if architecture not in ("gptneox", "stablelm"):
        del values[f"{architecture}.use_parallel_residual"]
    return config_from_gguf(values | named, shapes, "tiny")


FAMILY_REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("qwen2", {"attention__sliding_window": 64}, r"sliding_window \(64\) is not supported"),
    ("qwen3", {"use_parallel_residual": True}, r"qwen3.use_parallel_residual = True"),
    ("gptneox", {"use_parallel_residual": 1}, r"use_parallel_residual \(1\) must be true or"),
    ("gptneox", {"use_parallel_residual": None}, r"use_parallel_residual is missing"),
    ("gptneox", {"rope__dimension_count": 7}, r"rope.dimension_count \(7\) must be even"),
    ("gemma2", {"rope__freq_base_swa": 1e4}, r"gemma2.rope.freq_base_swa"),
    ("gemma3", {"attn_logit_softcapping": 50.0}, r"gemma3.attn_logit_softcapping = 50.0"),
    ("gemma2", {"attention__sliding_window_pattern": 0}, r"pattern \(0\) must be a period or 2"),
    ("gemma2", {"attention__sliding_window_pattern": [True]}, r"must be a period or 2 flags"),
    ("gemma3", {"attention__key_length_swa": 8}, r"key_length_swa \(8\) must equal"),
    ("gpt2", {"expert_count": 4}, r"gpt2.expert_count = 4"),
]


@pytest.mark.parametrize(("architecture", "changes", "reason"), FAMILY_REFUSED)
def test_refusals_of_families(architecture: str, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        as_family(architecture, **changes)


def test_parallel_stablelm_is_recognised_by_its_missing_norm() -> None:
    assert as_family("stablelm").block == "pre"
    values = {key.replace("llama.", "stablelm."): value for key, value in GGUF.items()}
    with pytest.raises(ModelError, match="StableLM with parallel attention"):
        config_from_gguf(values | {"general.architecture": "stablelm"}, SHAPES, "tiny")


def test_what_llama_cpp_knows_by_the_name() -> None:
    gemma2 = as_family("gemma2")
    assert (gemma2.attention_softcap, gemma2.final_softcap) == (50.0, 30.0)
    assert gemma2.attention_scale == 16**-0.5
    assert as_family("gemma2", block_count=46, attention__key_length=32).attention_scale == 0.25
    assert as_family("gemma3", block_count=62, attention__key_length=32).attention_scale == 0.25
    # A window no shorter than the longest sequence is none.
    assert {kind.window for kind in gemma2.layers} == {None}
    longer = as_family("gemma2", context_length=8192)
    assert [kind.window for kind in longer.layers] == [4096, None]
    flags = as_family("gemma2", context_length=8192, attention__sliding_window_pattern=[0, 1])
    assert [kind.window for kind in flags.layers] == [None, 4096]
    assert as_family("phi3", context_length=4096).layers[0].window == 2047
    assert as_family("phi3", context_length=4096, attention__sliding_window=0).layers[
        0
    ] == LayerKind(gemma2.layers[0].rope)


def test_gemma3_without_a_window_turns_every_layer_alike() -> None:
    plain = as_family("gemma3", rope__freq_base=1e6)
    assert len(set(plain.layers)) == 1
    mixed = as_family(
        "gemma3",
        rope__freq_base=1e6,
        rope__scaling__factor=8.0,
        attention__sliding_window=16,
        attention__sliding_window_pattern=2,
    )
    near, far = (kind.rope for kind in mixed.layers)
    assert near is not None
    assert far is not None
    assert near.frequencies == default_frequencies(10000.0, 16)
    assert far.frequencies == linear_frequencies(1e6, 16, 8.0)
    own = as_family("gemma3", attention__sliding_window=16, rope__freq_base_swa=5000.0)
    assert own.layers[0].rope == Rope(default_frequencies(5000.0, 16))


def test_scaled_rotation() -> None:
    linear = from_gguf({"llama.rope.scaling.factor": 4.0}).layers[0].rope
    assert linear == Rope(linear_frequencies(10000.0, 16, 4.0))
    none = {"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 4.0}
    assert from_gguf(none) == from_gguf()
    scaled = config_from_gguf(
        GGUF, SHAPES | {"rope_freqs.weight": (8,)}, "tiny", lambda name: [2.0] * 8
    )
    assert scaled.layers[0].rope == Rope(linear_frequencies(10000.0, 16, 2.0))
    stated = from_gguf(YARN | {"llama.rope.scaling.attn_factor": 2.0}).layers[0].rope
    assert stated is not None
    assert stated.attention_factor == pytest.approx(2 * (1 + 0.1 * math.log(4)))
    # The rotation is made for four times the length of pretraining.
    assert from_gguf(YARN).max_position_embeddings == 128
    assert from_gguf(YARN | {"llama.context_length": 32}).max_position_embeddings == 128


def test_numbers_come_back_as_their_authors_wrote_them() -> None:
    stored = float(np.float32(1e-6))
    assert stored != 1e-6
    config = from_gguf({"llama.attention.layer_norm_rms_epsilon": stored})
    assert config.norm_eps == 1e-6
    exact = 1 / 3  # not a float32: kept as it is
    assert from_gguf({"llama.attention.layer_norm_rms_epsilon": exact}).norm_eps == exact


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from([*GGUF, *YARN]), JSON, min_size=1))
def test_any_metadata_is_read_or_refused(changes: dict[str, Any]) -> None:
    try:
        from_gguf(changes)
    except ModelError:
        return
