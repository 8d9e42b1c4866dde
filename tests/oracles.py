"""Models of `transformers` that hold given weights."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from outpace.models.config import ModelConfig


def llama_oracle(
    config: ModelConfig, weights: Mapping[str, Tensor], *, rope_theta: float
) -> LlamaForCausalLM:
    """The Llama model of a configuration, in float32; `weights` must fill it exactly."""
    oracle = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_hidden_layers,
            num_attention_heads=config.num_attention_heads,
            num_key_value_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            rms_norm_eps=config.norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": rope_theta},
            max_position_embeddings=config.max_position_embeddings,
            tie_word_embeddings=config.tie_word_embeddings,
            attention_bias=config.qkv_bias,
            mlp_bias=config.mlp_bias,
        )
    ).eval()
    missing, unexpected = oracle.load_state_dict(dict(weights), strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}
    return oracle
