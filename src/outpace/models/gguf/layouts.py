"""Which stored tensor of a GGUF file each tensor of the decoder comes from, and how it is cut out.

llama.cpp's converter renames, fuses and reorders. Two things are undone here: projections fused
into one tensor (`attn_qkv`, and Phi-3's `ffn_up`, which holds gate and up), and the row order of
query and key in Llama-like files, where the two halves that rotary positions turn are interleaved.
Norm weights of Gemma are stored with their +1 added and stay so (`norm_offset` is 0).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from outpace.models.checkpoint import Source
from outpace.models.config import ModelConfig, refuse
from outpace.models.gguf.rope import ROPE_TENSORS

if TYPE_CHECKING:
    import torch

# The converter interleaves query and key rows for these.
INTERLEAVED = frozenset({"llama", "smollm3"})

_NAMES = {
    "token_embd": "model.embed_tokens",
    "position_embd": "model.embed_positions",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_QK_NORM_NAMES = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_SANDWICH_NAMES = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_LAYER = re.compile(r"blk\.(0|[1-9][0-9]{0,8})\.(\w+)\.(weight|bias)")

Part = Callable[["torch.Tensor"], "torch.Tensor"]


def gguf_layout(
    config: ModelConfig, architecture: str, stored_names: Iterable[str]
) -> dict[str, Source]:
    """Canonical name -> source, for every stored tensor but those of rotary frequencies.

    architecture: as GGUF spells it. A tensor of no known name keeps the one it has.
    Raises ModelError if two stored tensors are the same one of ours.
    """
    layout: dict[str, Source] = {}
    for stored in stored_names:
        if stored in ROPE_TENSORS:
            continue
        for name, source in _sources(config, architecture, stored).items():
            if name in layout:
                refuse(config.name, f"{layout[name].stored} and {stored} both hold {name}")
            layout[name] = source
    return layout


def _sources(config: ModelConfig, architecture: str, stored: str) -> dict[str, Source]:
    stem, _, kind = stored.rpartition(".")
    if stem in _NAMES:
        return {f"{_NAMES[stem]}.{kind}": Source(stored)}
    match = _LAYER.fullmatch(stored)
    if match is None:
        return {stored: Source(stored)}
    layer, part, kind = f"model.layers.{int(match[1])}", match[2], match[3]
    interleaved = architecture in INTERLEAVED
    if part == "attn_qkv":
        return {
            f"{layer}.self_attn.{name}_proj.{kind}": Source(stored, take)
            for name, take in _qkv_parts(config, interleaved).items()
        }
    if part == "ffn_up" and architecture == "phi3":
        inner = config.intermediate_size
        return {
            f"{layer}.mlp.gate_proj.{kind}": Source(stored, _rows(config, 0, inner, 2 * inner)),
            f"{layer}.mlp.up_proj.{kind}": Source(stored, _rows(config, inner, inner, 2 * inner)),
        }
    names = _LAYER_NAMES | (_QK_NORM_NAMES if config.qk_norm else {})
    if config.block == "sandwich":
        names = names | _SANDWICH_NAMES
    if part not in names:
        return {stored: Source(stored)}
    reorder = None
    if interleaved and part in ("attn_q", "attn_k"):
        heads = config.num_attention_heads if part == "attn_q" else config.num_key_value_heads
        reorder = partial(_half_split, num_heads=heads, stored=stored, name=config.name)
    return {f"{layer}.{names[part]}.{kind}": Source(stored, reorder)}


def _qkv_parts(config: ModelConfig, interleaved: bool) -> dict[str, Part]:
    heads = {"q": config.num_attention_heads, "k": config.num_key_value_heads}
    heads["v"] = heads["k"]
    total = sum(heads.values()) * config.head_dim
    parts: dict[str, Part] = {}
    start = 0
    for name, num_heads in heads.items():
        rows = num_heads * config.head_dim
        parts[name] = _rows(config, start, rows, total)
        if interleaved and name != "v":
            parts[name] = partial(_cut_and_split, cut=parts[name], num_heads=num_heads)
        start += rows
    return parts


def _rows(config: ModelConfig, start: int, count: int, total: int) -> Part:
    return partial(_take_rows, start=start, count=count, total=total, name=config.name)


def _take_rows(tensor: torch.Tensor, start: int, count: int, total: int, name: str) -> torch.Tensor:
    if tensor.shape[0] != total:
        refuse(name, f"a fused projection has {tensor.shape[0]} rows, expected {total}")
    return tensor[start : start + count].clone()


def _cut_and_split(tensor: torch.Tensor, cut: Part, num_heads: int) -> torch.Tensor:
    return _half_split(cut(tensor), num_heads, "attn_qkv", "")


def _half_split(tensor: torch.Tensor, num_heads: int, stored: str, name: str) -> torch.Tensor:
    """Undo llama.cpp's row order [head, pair, half]: back to [head, half, pair]."""
    rows = tensor.shape[0]
    if rows % (2 * num_heads):
        refuse(name, f"{stored} has {rows} rows, which do not split into {num_heads} heads")
    pairs = tensor.reshape(num_heads, rows // num_heads // 2, 2, *tensor.shape[1:])
    return pairs.transpose(1, 2).reshape(tensor.shape).contiguous()
