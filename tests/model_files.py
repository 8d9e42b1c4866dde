"""Tiny models on disk, in both formats, for tests of everything that reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import tokenizers
import torch
from gguf import GGMLQuantizationType as Kind
from safetensors.torch import save_file
from tokenizers import decoders, models, pre_tokenizers

from outpace.models.config import ModelConfig
from outpace.models.hf.config import config_from_hf
from outpace.models.tensors import expected_shapes
from outpace.models.tokenizer import Tokenizer

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 264,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
}
TEMPLATE = "{% for m in messages %}<s>{{ m['role'] }}\n{{ m['content'] }}<e>\n{% endfor %}"
_STORED_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def random_weights(config: ModelConfig, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, generator=generator)
        for name, shape in expected_shapes(config).items()
    }


def vocabulary() -> tuple[list[str], list[int], list[str]]:
    """Tokens, GGUF token kinds and merges of a byte-level vocabulary of 264 ids."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = ["h e", "l l", "he ll", "Ġ Ġ"]
    tokens = ["<e>", "<s>", "<tool>", *alphabet, *(merge.replace(" ", "") for merge in merges)]
    kinds = [3, 3, 4] + [1] * (len(tokens) - 3)
    return [*tokens, "[PAD263]"], [*kinds, 5], merges


def write_tokenizer(path: Path) -> None:
    """tokenizer.json and tokenizer_config.json of `vocabulary()`."""
    tokens, _, merges = vocabulary()
    vocab = {token: token_id for token_id, token in enumerate(tokens[:-1])}
    pairs = [tuple(merge.split(" ")) for merge in merges]
    backend = tokenizers.Tokenizer(models.BPE(vocab, pairs))  # type: ignore[arg-type]
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<e>", "<s>"])
    backend.add_tokens([tokenizers.AddedToken("<tool>", normalized=False)])
    backend.save(str(path / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": {"content": "<e>"}, "chat_template": TEMPLATE}
    (path / "tokenizer_config.json").write_text(json.dumps(config))


def write_hf(
    path: Path,
    *,
    config: dict[str, Any] | None = None,
    weights: dict[str, torch.Tensor] | None = None,
    num_shards: int = 1,
) -> Path:
    """A Hugging Face directory; `config` changes entries of CONFIG."""
    path.mkdir(parents=True, exist_ok=True)
    values = CONFIG | (config or {})
    (path / "config.json").write_text(json.dumps(values))
    if weights is None:
        weights = random_weights(config_from_hf(values))
    if num_shards == 1:
        save_file(weights, path / "model.safetensors")
    else:
        files = [f"model-{i + 1:05}-of-{num_shards:05}.safetensors" for i in range(num_shards)]
        weight_map = {name: files[i % num_shards] for i, name in enumerate(sorted(weights))}
        for file in files:
            save_file({n: t for n, t in weights.items() if weight_map[n] == file}, path / file)
        index = {"metadata": {}, "weight_map": weight_map}
        (path / "model.safetensors.index.json").write_text(json.dumps(index))
    write_tokenizer(path)
    return path


def llama_cpp_order(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Rows as llama.cpp stores q and k: channel i of a head's first half, then of its second."""
    head_dim = weight.shape[0] // num_heads
    order = [
        head * head_dim + half * head_dim // 2 + pair
        for head in range(num_heads)
        for pair in range(head_dim // 2)
        for half in range(2)
    ]
    return weight[order]


def write_gguf(
    path: Path,
    *,
    weights: dict[str, torch.Tensor] | None = None,
    kind: Kind = Kind.F32,
    metadata: dict[str, Any] | None = None,
    with_tokenizer: bool = True,
    extra: dict[str, np.ndarray] | None = None,
) -> Path:
    """A GGUF file of the model of CONFIG; matrices are stored as `kind`.

    metadata: replaces values by key (None leaves a key out).
    """
    if weights is None:
        weights = random_weights(config_from_hf(CONFIG))
    writer = gguf.GGUFWriter(path, arch="llama")
    for key, value in (_model_metadata() | (metadata or {})).items():
        add_value(writer, key, value)
    if with_tokenizer:
        for key, value in tokenizer_metadata().items():
            if key not in (metadata or {}):
                add_value(writer, key, value)
    for name, tensor in weights.items():
        stored = _stored_tensor(name, tensor)
        if tensor.ndim == 1:
            writer.add_tensor(_stored_name(name), stored)
        else:
            blocks = gguf.quants.quantize(stored, kind)
            writer.add_tensor(_stored_name(name), blocks, raw_dtype=kind)
    for name, array in (extra or {}).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tokenizer_metadata(**changes: Any) -> dict[str, Any]:
    tokens, kinds, merges = vocabulary()
    values: dict[str, Any] = {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": tokens,
        "token_type": kinds,
        "merges": merges,
        "bos_token_id": 1,
        "eos_token_id": 0,
        "add_bos_token": False,
    }
    named = {f"tokenizer.ggml.{key}": value for key, value in (values | changes).items()}
    return {"tokenizer.chat_template": TEMPLATE} | named


def tokenizer_from_gguf(**changes: Any) -> Tokenizer:
    """The tokenizer of `tokenizer_metadata(**changes)`, called "tiny" in messages."""
    return Tokenizer.from_gguf(tokenizer_metadata(**changes), "tiny")


def _model_metadata() -> dict[str, Any]:
    return {
        "llama.block_count": CONFIG["num_hidden_layers"],
        "llama.context_length": CONFIG["max_position_embeddings"],
        "llama.embedding_length": CONFIG["hidden_size"],
        "llama.feed_forward_length": CONFIG["intermediate_size"],
        "llama.attention.head_count": CONFIG["num_attention_heads"],
        "llama.attention.head_count_kv": CONFIG["num_key_value_heads"],
        "llama.attention.layer_norm_rms_epsilon": CONFIG["rms_norm_eps"],
        "llama.rope.freq_base": CONFIG["rope_theta"],
        "llama.rope.dimension_count": 16,
    }


def add_value(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    """One metadata entry, of the type that converters give such values; none for None."""
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif value is not None:
        writer.add_array(key, value)


def _stored_name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if stem.startswith("model.layers."):
        _, _, layer, part = stem.split(".", 3)
        return f"blk.{layer}.{_STORED_NAMES[part]}.{kind}"
    return f"{_STORED_NAMES[stem]}.{kind}"


def _stored_tensor(name: str, tensor: torch.Tensor) -> np.ndarray:
    if "q_proj" in name:
        tensor = llama_cpp_order(tensor, CONFIG["num_attention_heads"])
    if "k_proj" in name:
        tensor = llama_cpp_order(tensor, CONFIG["num_key_value_heads"])
    return tensor.numpy()
