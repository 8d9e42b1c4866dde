"""Rotary frequencies: every number against transformers, and what each way of stretching means."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from model_files import CONFIG
from transformers import Gemma3TextConfig, LlamaConfig, Phi3Config, PreTrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXConfig, GPTNeoXRotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from outpace.errors import ModelError
from outpace.models import rope
from outpace.models.config import Rope
from outpace.models.hf.config import config_from_hf

SIZES = {
    "vocab_size": 64,
    "hidden_size": 256,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 8192,
}
# float32 keeps 7 digits, and transformers takes powers in it.
CLOSE = 2e-6


def llama(theta: float, **parameters: Any) -> LlamaConfig:
    return LlamaConfig(**SIZES, rope_parameters=parameters | {"rope_theta": theta})


def ours(config: PreTrainedConfig, layer: int = 0) -> Rope:
    found = config_from_hf(config.to_dict()).layers[layer].rope
    assert found is not None
    return found


def assert_equals_transformers(
    config: PreTrainedConfig, *, layer: int = 0, layer_type: str | None = None
) -> None:
    parameters = config.rope_parameters
    kind = (parameters[layer_type] if layer_type else parameters)["rope_type"]
    frequencies, attention_factor = ROPE_INIT_FUNCTIONS[kind](config, layer_type=layer_type)
    found = ours(config, layer)
    assert found.frequencies == pytest.approx(frequencies.tolist(), rel=CLOSE)
    assert found.attention_factor == pytest.approx(attention_factor, rel=1e-12)


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0 + pair / 10 for pair in range(32)],
    "long_factor": [2.0 + pair for pair in range(32)],
}


@pytest.mark.parametrize("theta", [20.0, 500.0, 1e4, 5e5])
@pytest.mark.parametrize(
    "parameters",
    [
        {"rope_type": "linear", "factor": 2.5},
        {"rope_type": "dynamic", "factor": 4.0},
        LLAMA3,
        LLAMA3 | {"original_max_position_embeddings": 1024, "factor": 32.0},
        LLAMA3 | {"low_freq_factor": 0.5, "high_freq_factor": 20.0},
        YARN,
        YARN | {"original_max_position_embeddings": 2048},
        YARN | {"original_max_position_embeddings": 2048, "truncate": False},
        YARN | {"original_max_position_embeddings": 2048, "factor": None},
        YARN | {"beta_fast": 20, "beta_slow": 2},
        YARN | {"beta_fast": 400},
        YARN | {"beta_fast": 1, "beta_slow": 1},
        YARN | {"attention_factor": 1.25},
        YARN | {"mscale": 0.7, "mscale_all_dim": 1.3},
        YARN | {"mscale": 0.7},
        YARN | {"mscale": 0.7, "mscale_all_dim": 0},
        YARN | {"factor": 0.5},
        LONGROPE,
        LONGROPE | {"original_max_position_embeddings": 1024},
        LONGROPE | {"factor": 16.0},
        LONGROPE | {"factor": 16.0, "attention_factor": 1.5},
    ],
    ids=lambda value: str(value)[:60],
)
def test_every_way_of_stretching(theta: float, parameters: dict[str, Any]) -> None:
    assert_equals_transformers(llama(theta, **parameters))


@pytest.mark.parametrize("theta", [500.0, 1e4, 5e5])
def test_plain_frequencies(theta: float) -> None:
    config = llama(theta, rope_type="default")
    expected = LlamaRotaryEmbedding(config).inv_freq.tolist()
    assert ours(config).frequencies == pytest.approx(expected, rel=CLOSE)


@pytest.mark.parametrize("share", [0.25, 0.5, 0.75, 1.0])
def test_partial_rotation(share: float) -> None:
    sizes = SIZES | {"rotary_pct": share, "rotary_emb_base": 3000.0}
    config = GPTNeoXConfig(**sizes)
    found = ours(config)
    assert found.dim == int(64 * share)
    expected = GPTNeoXRotaryEmbedding(config).inv_freq.tolist()
    assert found.frequencies == pytest.approx(expected, rel=CLOSE)


def test_partial_rotation_that_is_stretched() -> None:
    factors = {key: [1.0 + pair for pair in range(24)] for key in ("short_factor", "long_factor")}
    config = Phi3Config(
        **SIZES,
        partial_rotary_factor=0.75,
        original_max_position_embeddings=4096,
        rope_scaling={"type": "longrope"} | factors,
    )
    assert_equals_transformers(config)
    assert ours(config).dim == 48


def test_gemma3_stretches_one_kind_of_layer() -> None:
    scaling = {"rope_type": "linear", "factor": 8.0}
    config = Gemma3TextConfig(**SIZES, head_dim=64, rope_scaling=scaling)
    config.layer_types = ["full_attention", "sliding_attention"]
    assert_equals_transformers(config, layer_type="full_attention")
    assert ours(config, 1) == Rope(rope.default_frequencies(1e4, 64))


def test_dynamic_and_longrope_end_where_their_rotation_would_change() -> None:
    """Up to there transformers uses these frequencies, and one token further it does not."""
    for parameters in (
        {"rope_type": "dynamic", "factor": 4.0},
        LONGROPE | {"original_max_position_embeddings": 1024},
    ):
        config = llama(1e4, **parameters)
        found = config_from_hf(config.to_dict())
        table = LlamaRotaryEmbedding(config)
        for length, same in (
            (found.max_position_embeddings, True),
            (found.max_position_embeddings + 1, False),
        ):
            table(torch.zeros(1), torch.arange(length)[None])
            expected = pytest.approx(table.inv_freq.tolist(), rel=CLOSE)
            assert (found.layers[0].rope.frequencies == expected) is same


def test_a_pair_that_turns_often_is_kept_and_one_that_hardly_turns_is_stretched() -> None:
    plain = rope.default_frequencies(1e4, 64)
    llama3 = rope.llama3_frequencies(
        1e4, 64, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_len=1024
    )
    yarn = rope.yarn_frequencies(1e4, 64, factor=8.0, original_len=1024)
    for stretched in (llama3, yarn):
        assert stretched[0] == plain[0]
        assert stretched[-1] == pytest.approx(plain[-1] / 8)
        assert all(a >= b for a, b in pairwise(stretched))


def test_attention_factors() -> None:
    assert rope.yarn_attention_factor(1.0) == 1.0
    assert rope.yarn_attention_factor(math.e) == pytest.approx(1.1)
    assert rope.longrope_attention_factor(1.0, 4096) == 1.0
    assert rope.longrope_attention_factor(32.0, 4096) == pytest.approx(math.sqrt(1 + 5 / 12))


@pytest.mark.parametrize("kind", ["llama3", "yarn", "longrope"])
def test_the_length_of_pretraining_may_stand_beside_the_scaling(kind: str) -> None:
    """As transformers reads it; a scaling that says another is refused."""
    half = 8
    scaling: dict[str, Any] = {"rope_type": kind, "factor": 4.0}
    scaling |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0} if kind == "llama3" else {}
    if kind == "longrope":
        scaling |= {"short_factor": [1.0] * half, "long_factor": [2.0] * half}
    length = {"original_max_position_embeddings": 32}
    inside = config_from_hf(CONFIG | {"rope_scaling": scaling | length})
    beside = config_from_hf(CONFIG | {"rope_scaling": scaling} | length)
    assert beside == inside
    assert beside != config_from_hf(CONFIG | {"rope_scaling": scaling})
    other = {"original_max_position_embeddings": 64}
    with pytest.raises(ModelError, match="original_max_position_embeddings is 32 but"):
        config_from_hf(CONFIG | {"rope_scaling": scaling | other} | length)
