"""The tensors that a configuration implies, and whether a checkpoint holds just those."""

from __future__ import annotations

import math
import re

from outpace.errors import ModelError
from outpace.models.checkpoint import Checkpoint
from outpace.models.config import ModelConfig
from outpace.models.gguf.quants import DEQUANTISERS
from outpace.models.hf.quantised import STORED_DTYPES
from outpace.models.hf.tensor_files import FLOAT_DTYPES

_MAX_LISTED = 5


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor a model of this configuration has.

    Names are those of Hugging Face's Llama, Gemma 2 (`sandwich` norms) and Qwen 3 (`q_norm`);
    what other families call theirs is translated before anyone here sees it.
    """
    hidden = config.hidden_size
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, hidden)}
    if config.learned_positions:
        shapes["model.embed_positions.weight"] = (config.max_position_embeddings, hidden)
    shapes |= _norm_shapes(config, "model.norm")
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    layer_shapes = _layer_shapes(config)
    for layer in range(config.num_hidden_layers):
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in layer_shapes.items()}
    return shapes


def _layer_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden, inner = config.hidden_size, config.intermediate_size
    query_dim = config.num_attention_heads * config.head_dim
    kv_dim = config.num_key_value_heads * config.head_dim
    projections = {
        "self_attn.q_proj": (query_dim, hidden, config.qkv_bias),
        "self_attn.k_proj": (kv_dim, hidden, config.qkv_bias),
        "self_attn.v_proj": (kv_dim, hidden, config.qkv_bias),
        "self_attn.o_proj": (hidden, query_dim, config.o_bias),
        "mlp.up_proj": (inner, hidden, config.mlp_bias),
        "mlp.down_proj": (hidden, inner, config.mlp_bias),
    }
    if config.gated_mlp:
        projections["mlp.gate_proj"] = (inner, hidden, config.mlp_bias)
    shapes: dict[str, tuple[int, ...]] = {}
    for name, (rows, columns, has_bias) in projections.items():
        shapes[f"{name}.weight"] = (rows, columns)
        if has_bias:
            shapes[f"{name}.bias"] = (rows,)
    norms = ["input_layernorm", "post_attention_layernorm"]
    if config.block == "sandwich":
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    for name in norms:
        shapes |= _norm_shapes(config, name)
    if config.qk_norm:
        shapes["self_attn.q_norm.weight"] = (config.head_dim,)
        shapes["self_attn.k_norm.weight"] = (config.head_dim,)
    return shapes


def _norm_shapes(config: ModelConfig, name: str) -> dict[str, tuple[int, ...]]:
    kinds = ("weight", "bias") if config.norm == "layer" else ("weight",)
    return {f"{name}.{kind}": (config.hidden_size,) for kind in kinds}


def num_parameters(config: ModelConfig) -> int:
    """How many weights a model of this configuration has; tied embeddings count once."""
    return sum(math.prod(shape) for shape in expected_shapes(config).values())


def check_tensors(checkpoint: Checkpoint) -> None:
    """Compare every tensor with the configuration, by name, shape and readable type.

    Raises ModelError naming the stored tensor with expected and found shape, missing tensors, or
    tensors that the decoder would not use.
    """
    names = checkpoint.names()
    # A tiny file may claim any number of layers; do not list the tensors of a million of them.
    if checkpoint.config.num_hidden_layers > max(len(names), 1):
        raise ModelError(
            f"{checkpoint.path}: the configuration has {checkpoint.config.num_hidden_layers} "
            f"layers, but only {len(names)} tensors are stored"
        )
    expected = expected_shapes(checkpoint.config)
    missing = sorted(set(expected) - names, key=_layer_order)
    if missing:
        raise ModelError(f"{checkpoint.path}: missing tensors: {_listed(missing)}")
    for name, shape in expected.items():
        _check_shape(checkpoint, name, shape)
        _check_dtype(checkpoint, name)
    unused = sorted(names - set(expected), key=_layer_order)
    extra = [name for name in unused if not _is_zero_bias(checkpoint, name)]
    if checkpoint.config.tie_word_embeddings and "lm_head.weight" in extra:
        _check_tied_head(checkpoint)
        extra.remove("lm_head.weight")
    if extra:
        stored = list(dict.fromkeys(map(checkpoint.stored_name, extra)))
        raise ModelError(
            f"{checkpoint.path}: tensors that this model does not use: {_listed(stored)}"
        )


def _check_shape(checkpoint: Checkpoint, name: str, shape: tuple[int, ...]) -> None:
    found, stored = checkpoint.shape(name), checkpoint.stored_name(name)
    if found == shape:
        return
    what = f"tensor {stored}" if stored == name else f"tensor {stored} ({name} in it)"
    raise ModelError(
        f"{checkpoint.path}: {what} must have shape {shape} by the configuration, found {found}"
    )


def _check_dtype(checkpoint: Checkpoint, name: str) -> None:
    dtype = checkpoint.dtype(name)
    readable = {*DEQUANTISERS, *FLOAT_DTYPES, *STORED_DTYPES}
    if dtype not in readable:
        raise ModelError(
            f"{checkpoint.path}: tensor {name} is stored as {dtype}, which is not supported; "
            f"supported: {', '.join(sorted(readable))}"
        )


def _is_zero_bias(checkpoint: Checkpoint, name: str) -> bool:
    """Older tools wrote a bias of zeros for every projection they quantised."""
    return name.endswith("_proj.bias") and not bool(checkpoint.load(name).any())


def _check_tied_head(checkpoint: Checkpoint) -> None:
    import torch

    head = checkpoint.load("lm_head.weight")
    if not torch.equal(head, checkpoint.load("model.embed_tokens.weight")):
        raise ModelError(
            f"{checkpoint.path}: tie_word_embeddings is true, but lm_head.weight differs from "
            "model.embed_tokens.weight"
        )


def _layer_order(name: str) -> tuple[list[int], str]:
    return [int(digits) for digits in re.findall(r"\d{1,9}", name)], name


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return ", ".join(names[:_MAX_LISTED]) + more
