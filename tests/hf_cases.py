"""Random tiny models of architectures that our own decoder does not have, as `transformers` makes
them, on disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from model_files import write_tokenizer

VOCAB = 264
_COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 160,
    "bos_token_id": 1,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
_GATED = _COMMON | {"intermediate_size": 48, "num_key_value_heads": 2}
_GPT = {
    "vocab_size": VOCAB,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 160,
    "bos_token_id": 1,
    "eos_token_id": 0,
}
_SLIDING = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}
_BLOOM = {"vocab_size": VOCAB, "hidden_size": 32, "n_layer": 2, "n_head": 4, "eos_token_id": 0}
_MPT = {"vocab_size": VOCAB, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 160}
_GPT_NEO = {
    "num_layers": 2,
    "num_heads": 4,
    "attention_types": [[["global", "local"], 1]],
    "window_size": 8,
}
_SMALL = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}


@dataclass(frozen=True)
class Case:
    """seed: one whose greedy text is varied. dtype: float32 where transformers' own code for the
    architecture fails in float64."""

    fields: dict[str, Any]
    seed: int = 3
    dtype: str = "float64"


RUN: dict[str, Case] = {
    # rotary, norms after attention and MLP, query and key norms
    "olmo2": Case(_GATED),
    # parallel attention and MLP, one key/value head
    "falcon": Case(_COMMON | {"new_decoder_architecture": False, "multi_query": True}),
    # ALiBi instead of positions
    "bloom": Case(_BLOOM, seed=1),
    # learned positions, counted from the mask
    "opt": Case(_COMMON | {"ffn_dim": 48, "word_embed_proj_dim": 32}),
    # learned positions, every second layer with a window that only the mask has
    "gpt_neo": Case(_COMMON | _GPT_NEO),
    # interleaved partial rotary
    "gptj": Case(_GPT | {"rotary_dim": 4}),
    # sliding windows, in layers that alternate with full ones
    "olmo3": Case(_GATED | _SLIDING),
    # sliding windows everywhere
    "starcoder2": Case(_GATED | {"sliding_window": 8}),
    # mixture of experts
    "mixtral": Case(_GATED | {"num_local_experts": 4}, dtype="float32"),
}
RUN_SLOWLY: dict[str, Case] = {
    "codegen": Case(_GPT | {"rotary_dim": 4}),
    "phi": Case(_COMMON | {"intermediate_size": 48}),
    "cohere": Case(_GATED),
    "cohere2": Case(_GATED | _SLIDING),
    "granite": Case(_GATED),
    "glm4": Case(_GATED | {"head_dim": 8}),
    "persimmon": Case(_COMMON | {"intermediate_size": 48}, seed=0),
    "mpt": Case(_MPT, seed=3),
    "biogpt": Case(_COMMON | {"intermediate_size": 48}, seed=0),
    "xglm": Case(
        _COMMON | {"d_model": 32, "ffn_dim": 48, "num_layers": 2, "attention_heads": 4},
        seed=7,
        dtype="float32",
    ),
    "helium": Case(_GATED | {"head_dim": 8}),
    "nemotron": Case(_GATED),
    "olmo": Case(_GATED),
    "exaone4": Case(_GATED | _SLIDING),
    "arcee": Case(_GATED),
    "apertus": Case(_GATED),
    "gpt_bigcode": Case(_GPT),
    # chunks instead of windows
    "llama4_text": Case(
        _GATED
        | {
            "head_dim": 8,
            "intermediate_size_mlp": 48,
            "num_local_experts": 2,
            "attention_chunk_size": 8,
            "layer_types": ["chunked_attention", "full_attention"],
        },
        dtype="float32",
    ),
    # latent attention: keys and values of different widths
    "deepseek_v3": Case(
        _GATED
        | {
            "num_key_value_heads": 4,
            "q_lora_rank": 8,
            "kv_lora_rank": 8,
            "qk_rope_head_dim": 4,
            "qk_nope_head_dim": 8,
            "v_head_dim": 8,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_group": 1,
            "topk_group": 1,
            "moe_intermediate_size": 16,
            "first_k_dense_replace": 1,
        },
        dtype="float32",
    ),
    # layers that share another layer's keys and values
    "gemma3n_text": Case(
        _GATED
        | {
            "head_dim": 8,
            "num_hidden_layers": 4,
            "num_kv_shared_layers": 2,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "sliding_window": 8,
            "vocab_size_per_layer_input": VOCAB,
            "hidden_size_per_layer_input": 8,
            "laurel_rank": 4,
            "altup_num_inputs": 2,
            "activation_sparsity_pattern": [0.0] * 4,
        },
        dtype="float32",
    ),
    "gpt_oss": Case(_GATED | _SLIDING | {"num_local_experts": 4, "head_dim": 8}, dtype="float32"),
}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "mamba": (_SMALL, "recurrent"),
    "mamba2": ({}, "recurrent"),
    "rwkv": (_SMALL, "recurrent"),
    "recurrent_gemma": (_SMALL, "recurrent"),
    "jamba": (_SMALL, "recurrent"),
    "zamba": ({}, "recurrent"),
    "qwen3_next": (_SMALL, "recurrent"),
    "falcon_h1": (_SMALL, "recurrent"),
    "xlstm": ({}, "recurrent"),
    "lfm2": (_SMALL | {"layer_types": ["conv", "full_attention"]}, "LinearAttentionLayer"),
    "minimax": (_SMALL | {"layer_types": ["linear_attention", "full_attention"]}, "LinearAtt"),
    "deepseek_v32": ({}, "DynamicIndexedLayer"),
    "t5": ({}, "encoder-decoder"),
    "bart": ({}, "encoder-decoder"),
    "xlnet": ({}, "takes no key/value cache"),
    "openai-gpt": ({}, "takes no key/value cache"),
    "clip": ({}, "no causal language model"),
}


def build(model_type: str, case: Case) -> Any:
    """A random model, its weights large enough for greedy text not to run in a short circle."""
    config = transformers.AutoConfig.for_model(model_type, **case.fields)
    torch.manual_seed(case.seed)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    for name, tensor in model.named_parameters():
        if tensor.ndim >= 2 and not name.endswith("bias"):
            torch.nn.init.normal_(tensor, std=3.0 * tensor.shape[-1] ** -0.5)
    return model


def write(path: Path, model_type: str, case: Case) -> Path:
    """The model of `build` as a Hugging Face directory with a tokenizer."""
    build(model_type, case).save_pretrained(path)
    write_tokenizer(path)
    return path


def write_config(path: Path, model_type: str, fields: dict[str, Any]) -> Path:
    """A Hugging Face directory without weights."""
    transformers.AutoConfig.for_model(model_type, **fields).save_pretrained(path)
    write_tokenizer(path)
    return path
