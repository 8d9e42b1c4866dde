"""The fewest fields of config.json that describe a model of each family."""

from __future__ import annotations

from typing import Any

from model_files import CONFIG

from outpace.models.config import ModelConfig
from outpace.models.hf.config import config_from_hf

SIZES = {
    "vocab_size": 67,
    "hidden_size": 48,
    "intermediate_size": 56,
    "num_hidden_layers": 8,
    "num_attention_heads": 6,
    "max_position_embeddings": 96,
    "rms_norm_eps": 1e-6,
}
# What layer_types may say of these eight layers.
KINDS = ["full_attention", "sliding_attention"] * 4
GPT2_SIZES = {"vocab_size": 67, "n_embd": 48, "n_layer": 8, "n_head": 6, "n_positions": 96}


def from_hf(**changes: Any) -> ModelConfig:
    return config_from_hf(CONFIG | changes, "tiny")


def least_of(family: str) -> dict[str, Any]:
    """The fewest fields of a family that describe a model."""
    sizes = dict(GPT2_SIZES if family == "gpt2" else SIZES)
    if family == "gemma3":
        return {"model_type": family, "text_config": least_of("gemma3_text")}
    # The class's default does not divide the heads of this model.
    heads = {} if family == "gpt2" else {"num_key_value_heads": 2}
    return {"model_type": family} | sizes | heads
