"""Tiny models of every family as GGUF files, written the way llama.cpp's converter writes them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from model_files import add_value, llama_cpp_order, random_weights, tokenizer_metadata
from transformers import AutoConfig

from outpace.models.config import ModelConfig
from outpace.models.hf.config import config_from_hf

_SIZES: dict[str, Any] = {
    "vocab_size": 264,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 0,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
    "rope_theta": 500000.0,
}
_YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "rope_theta": 1000000.0,
}
_LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0 + 0.1 * i for i in range(8)],
    "long_factor": [2.0 + i for i in range(8)],
    "rope_theta": 10000.0,
}
_GEMMA: dict[str, Any] = {"head_dim": 32, "tie_word_embeddings": True}

# Name -> GGUF architecture, model_type, and how the configuration differs from _SIZES.
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("llama", "llama", {}),
    "llama-bias": ("llama", "llama", {"attention_bias": True, "mlp_bias": True}),
    "llama3-scaled": ("llama", "llama", {"rope_parameters": _LLAMA3}),
    "mistral-window": ("llama", "mistral", {"sliding_window": 16, "head_dim": 32}),
    "qwen2": ("qwen2", "qwen2", {"tie_word_embeddings": True}),
    "qwen2-yarn": ("qwen2", "qwen2", {"rope_parameters": _YARN}),
    "qwen3": ("qwen3", "qwen3", {"head_dim": 32}),
    "smollm3": ("smollm3", "smollm3", {}),
    "gemma": ("gemma", "gemma", _GEMMA),
    "gemma2": ("gemma2", "gemma2", _GEMMA | {"query_pre_attn_scalar": 32, "sliding_window": 16}),
    "gemma3": (
        "gemma3",
        "gemma3_text",
        _GEMMA | {"query_pre_attn_scalar": 32, "sliding_window": 16, "num_hidden_layers": 7},
    ),
    "phi3": ("phi3", "phi3", {"sliding_window": 17}),
    "phi3-longrope": (
        "phi3",
        "phi3",
        {"rope_parameters": _LONGROPE, "original_max_position_embeddings": 64},
    ),
    "gpt2": ("gpt2", "gpt2", {"tie_word_embeddings": True}),
    "gptneox": ("gptneox", "gpt_neox", {}),
    "gptneox-serial": ("gptneox", "gpt_neox", {"use_parallel_residual": False}),
    "stablelm": ("stablelm", "stablelm", {"use_qkv_bias": True}),
}

_STORED = {
    "model.embed_tokens": "token_embd",
    "model.embed_positions": "position_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_SANDWICH = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def hf_values(family: str, **changes: Any) -> dict[str, Any]:
    """`config.json` of a family's tiny model."""
    _, model_type, differences = FAMILIES[family]
    return dict(AutoConfig.for_model(model_type, **(_SIZES | differences | changes)).to_dict())


def family_config(family: str, **changes: Any) -> ModelConfig:
    return config_from_hf(hf_values(family, **changes))


def write_family(
    path: Path,
    family: str,
    weights: dict[str, torch.Tensor] | None = None,
    kind: Kind = Kind.F32,
    **changes: Any,
) -> Path:
    """A GGUF file of a family's tiny model with these weights (of our names and layout).

    kind: how matrices are stored; random blocks, whatever the weights, where the gguf package
    cannot quantise to it.
    """
    architecture = FAMILIES[family][0]
    values = hf_values(family, **changes)
    config = config_from_hf(values)
    weights = random_weights(config) if weights is None else weights
    writer = gguf.GGUFWriter(path, arch=architecture)
    for key, value in _metadata(architecture, config, values).items():
        if key != "general.architecture":  # the writer's own
            add_value(writer, key, value)
    for name, tensor in _stored_tensors(architecture, config, weights).items():
        array = np.ascontiguousarray(tensor.numpy())
        if tensor.ndim == 1 or kind == Kind.F32:
            writer.add_tensor(name, array)
        else:
            writer.add_tensor(name, _quantised(array, kind), raw_dtype=kind)
    for name, factors in _rope_tensors(values).items():
        writer.add_tensor(name, np.array(factors, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def family_metadata(family: str) -> dict[str, Any]:
    """Metadata of a family's tiny model, tokenizer included."""
    values = hf_values(family)
    return _metadata(FAMILIES[family][0], config_from_hf(values), values)


def _metadata(architecture: str, config: ModelConfig, values: dict[str, Any]) -> dict[str, Any]:
    rope = values.get("rope_parameters") or {}
    rope = rope.get("full_attention", rope)
    eps = "layer_norm_rms_epsilon" if config.norm == "rms" else "layer_norm_epsilon"
    stated: dict[str, Any] = {
        "block_count": config.num_hidden_layers,
        "context_length": _max_len(values),
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        f"attention.{eps}": config.norm_eps,
    }
    if architecture not in ("gpt2", "gptneox"):
        stated["attention.head_count_kv"] = config.num_key_value_heads
    if architecture not in ("gpt2", "gptneox", "stablelm", "gemma", "gemma2"):
        stated["rope.freq_base"] = float(rope["rope_theta"])
    if config.head_dim != config.hidden_size // config.num_attention_heads:
        stated |= {
            "attention.key_length": config.head_dim,
            "attention.value_length": config.head_dim,
        }
    if architecture in ("llama", "gptneox", "stablelm", "phi3"):
        stated["rope.dimension_count"] = config.layers[0].rope.dim  # type: ignore[union-attr]
    if architecture in ("gptneox", "stablelm"):
        # The converter's default for StableLM, which is sequential all the same.
        stated["use_parallel_residual"] = values.get("use_parallel_residual", True)
    if values.get("sliding_window") and config.architecture not in ("qwen2", "qwen3", "smollm3"):
        stated["attention.sliding_window"] = values["sliding_window"]
    if architecture == "gemma2":
        stated["attn_logit_softcapping"] = values["attn_logit_softcapping"]
        stated["final_logit_softcapping"] = values["final_logit_softcapping"]
    if rope.get("rope_type") in ("yarn", "linear"):
        stated["rope.scaling.type"] = rope["rope_type"]
        stated["rope.scaling.factor"] = rope["factor"]
    if rope.get("rope_type") == "yarn":
        stated["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
    if architecture == "phi3":
        original = values["original_max_position_embeddings"]
        stated["rope.scaling.original_context_length"] = original
        if rope.get("rope_type") == "longrope":
            scale = _max_len(values) / original
            stated["rope.scaling.attn_factor"] = math.sqrt(1 + math.log(scale) / math.log(original))
    named = {f"{architecture}.{key}": value for key, value in stated.items()}
    return {"general.architecture": architecture} | named | tokenizer_metadata()


def _max_len(values: dict[str, Any]) -> int:
    key = "max_position_embeddings" if "max_position_embeddings" in values else "n_positions"
    return int(values[key])


def _rope_tensors(values: dict[str, Any]) -> dict[str, list[float]]:
    rope = values.get("rope_parameters") or {}
    if rope.get("rope_type") == "longrope":
        return {
            "rope_factors_long.weight": rope["long_factor"],
            "rope_factors_short.weight": rope["short_factor"],
        }
    if rope.get("rope_type") != "llama3":
        return {}
    dim = values["hidden_size"] // values["num_attention_heads"]
    low = rope["original_max_position_embeddings"] / rope["low_freq_factor"]
    high = rope["original_max_position_embeddings"] / rope["high_freq_factor"]
    factors = []
    for pair in range(0, dim, 2):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (pair / dim)
        smooth = (rope["original_max_position_embeddings"] / wavelength - 1.0) / 3.0
        between = 1 / ((1 - smooth) / rope["factor"] + smooth)
        factors.append(
            1.0 if wavelength < high else rope["factor"] if wavelength > low else between
        )
    return {"rope_freqs.weight": factors}


def _stored_tensors(
    architecture: str, config: ModelConfig, weights: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    names = _STORED | (_SANDWICH if config.block == "sandwich" else {})
    stored: dict[str, torch.Tensor] = {}
    for name, tensor in weights.items():
        stem, _, kind = name.rpartition(".")
        prefix, part = "", stem
        if stem.startswith("model.layers."):
            _, _, layer, part = stem.split(".", 3)
            prefix = f"blk.{layer}."
        if stem.endswith("norm"):
            tensor = tensor + config.norm_offset
        if architecture in ("llama", "smollm3"):
            heads = {
                "self_attn.q_proj": config.num_attention_heads,
                "self_attn.k_proj": config.num_key_value_heads,
            }
            tensor = llama_cpp_order(tensor, heads[part]) if part in heads else tensor
        stored[f"{prefix}{names[part]}.{kind}"] = tensor
    if architecture in ("phi3", "gpt2", "gptneox"):
        _fuse(stored, "attn_qkv", ("attn_q", "attn_k", "attn_v"))
    if architecture == "phi3":
        _fuse(stored, "ffn_up", ("ffn_gate", "ffn_up"))
    return stored


def _fuse(stored: dict[str, torch.Tensor], into: str, parts: tuple[str, ...]) -> None:
    for name in [name for name in stored if f".{parts[0]}." in name]:
        pieces = [stored.pop(name.replace(parts[0], part)) for part in parts]
        stored[name.replace(parts[0], into)] = torch.cat(pieces)


def _quantised(array: np.ndarray, kind: Kind) -> np.ndarray:
    try:
        return np.asarray(gguf.quants.quantize(array, kind))
    except NotImplementedError:
        return random_blocks(array.shape, kind)


# Where a block's float16 scales lie.
_SCALES = {Kind.Q4_K: (0, 2), Kind.Q5_K: (0, 2), Kind.Q6_K: (208,), Kind.Q2_K: (80, 82)}


def random_blocks(shape: tuple[int, ...], kind: Kind, seed: int = 0) -> np.ndarray:
    """Random bytes of a K-quant, with scales that keep the values small: uint8 [rows, bytes]."""
    block_len, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (math.prod(shape) // block_len, block_bytes), dtype=np.uint8)
    for place in _SCALES[kind]:
        scales = rng.uniform(1e-4, 5e-4, len(blocks)).astype(np.float16)
        blocks[:, place : place + 2] = scales.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(shape[0], -1)
