"""One tiny model or several of every family that a Hugging Face directory may hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

SMALL = {
    "vocab_size": 67,
    "hidden_size": 40,
    "intermediate_size": 56,
    "num_hidden_layers": 2,
    "num_attention_heads": 5,
    "max_position_embeddings": 96,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
GROUPED = SMALL | {"num_attention_heads": 6, "num_key_value_heads": 2, "hidden_size": 48}
WIDE = GROUPED | {"head_dim": 12}
# 6 is the exact root of 36: transformers rounds the scale of the embeddings to float32.
GEMMA = WIDE | {"hidden_size": 36}
GPT2 = {
    "vocab_size": 67,
    "n_embd": 40,
    "n_layer": 2,
    "n_head": 5,
    "n_positions": 96,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SOFTCAPS = {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 24}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.5, 2.0, 2.5],
    "long_factor": [4.0, 5.0, 6.0, 7.0],
}
TEXT = {
    **GEMMA,
    "num_hidden_layers": 3,
    "sliding_window": 7,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "query_pre_attn_scalar": 20,
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
}
VISION = {
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "image_size": 8,
    "patch_size": 4,
}

# What config.json is to say. The part of a case's name before the space is its model_type.
CASES: dict[str, dict[str, Any]] = {
    "llama": GROUPED | {"tie_word_embeddings": False},
    "llama biases": WIDE | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    "llama llama3": WIDE | {"rope_parameters": LLAMA3 | {"rope_theta": 5e4}},
    "llama linear": SMALL | {"rope_scaling": {"type": "linear", "factor": 3.0}},
    "llama dynamic": SMALL | {"rope_scaling": {"type": "dynamic", "factor": 3.0}},
    "mistral": WIDE | {"sliding_window": 6},
    "mistral full": GROUPED | {"sliding_window": None, "tie_word_embeddings": True},
    "qwen2": GROUPED | {"rope_theta": 1e6, "tie_word_embeddings": True},
    "qwen2 window": GROUPED
    | {
        "num_hidden_layers": 3,
        "use_sliding_window": True,
        "sliding_window": 5,
        "max_window_layers": 1,
        "rope_scaling": YARN | {"type": "yarn"},
    },
    "qwen3": WIDE | {"rope_theta": 1e6},
    "qwen3 window": WIDE
    | {
        "attention_bias": True,
        "use_sliding_window": True,
        "sliding_window": 5,
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": YARN | {"mscale": 1.2, "mscale_all_dim": 0.7, "truncate": False},
    },
    "smollm3": GROUPED | {"num_hidden_layers": 5, "mlp_bias": True},
    "smollm3 window": WIDE
    | {
        "num_hidden_layers": 3,
        "no_rope_layers": [0, 1, 0],
        "use_sliding_window": True,
        "sliding_window": 6,
        "attention_bias": True,
        "tie_word_embeddings": False,
    },
    "gemma": GEMMA | {"num_key_value_heads": 1, "hidden_act": "gelu"},
    "gemma2": GEMMA | SOFTCAPS | {"sliding_window": 6, "query_pre_attn_scalar": 9},
    "gemma2 untied": GEMMA
    | {
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "sliding_window": 6,
        "attention_bias": True,
        "tie_word_embeddings": False,
    },
    "gemma3_text": TEXT | {"final_logit_softcapping": 3.0},
    "gemma3_text pattern": GEMMA
    | {
        "num_hidden_layers": 7,
        "sliding_window": 8,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    },
    "gemma3": {
        "text_config": TEXT | {"model_type": "gemma3_text"},
        "vision_config": VISION,
        "mm_tokens_per_image": 4,
    },
    "phi3": GROUPED | {"sliding_window": 9},
    "phi3 longrope": GROUPED
    | {
        "original_max_position_embeddings": 48,
        "rope_scaling": LONGROPE,
        "tie_word_embeddings": True,
    },
    "phi3 partial": GROUPED | {"partial_rotary_factor": 0.5, "num_key_value_heads": 6},
    "gpt2": GPT2,
    "gpt2 unscaled": GPT2
    | {
        "n_inner": 56,
        "scale_attn_weights": False,
        "activation_function": "gelu",
        "tie_word_embeddings": False,
    },
    "gpt_neox": SMALL | {"rotary_pct": 0.5, "hidden_size": 60},
    "gpt_neox sequential": SMALL
    | {
        "use_parallel_residual": False,
        "rotary_pct": 1.0,
        "rotary_emb_base": 500.0,
        "hidden_act": "gelu_fast",
        "attention_bias": False,
        "tie_word_embeddings": True,
    },
    "stablelm": GROUPED | {"partial_rotary_factor": 0.5, "use_qkv_bias": True},
    "stablelm tied": GROUPED | {"tie_word_embeddings": True, "num_key_value_heads": 6},
}


def family_of(case: str) -> str:
    return case.split(" ")[0]


def config_of(case: str) -> PreTrainedConfig:
    """transformers' configuration of a case."""
    return AutoConfig.for_model(family_of(case), **CASES[case])


def random_model(case: str) -> PreTrainedModel:
    """transformers' model of a case, in float32; equal calls give equal weights."""
    torch.manual_seed(sum(case.encode()))
    model = AutoModelForCausalLM.from_config(config_of(case), attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            # Norms start at one (or zero) and biases at zero, where mistakes would not show.
            noise = torch.randn_like(parameter)
            parameter.copy_(parameter + 0.3 * noise if parameter.ndim == 1 else 0.4 * noise)
    model.tie_weights()
    return model


def save_model(case: str, path: Path) -> PreTrainedModel:
    """The model of a case, after saving it as a directory."""
    model = random_model(case)
    model.save_pretrained(path)
    return model
