"""Where the decoder's tensors lie in a Hugging Face directory.

The decoder asks for the names of `tensors.expected_shapes`; most families store them as they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from outpace.models.checkpoint import Source
from outpace.models.config import ModelConfig, refuse

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class _Piece:
    """One of our projections inside a stored one.

    The stored rows are `num_groups` groups of `group_rows`; ours are those from `start` to `stop`
    of every group. All of them where group_rows is 0.
    """

    name: str
    start: int = 0
    stop: int = 0
    group_rows: int = 0
    num_groups: int = 1


@dataclass(frozen=True, slots=True)
class _Layout:
    """How a family stores its tensors.

    modules: stored modules outside of layers, and what they are to us.
    prefixes: what may stand before a stored name, longest first; or nothing, where the model was
        saved without its head.
    layers: what the list of layers is called.
    pieces: stored modules of a layer, and what they hold of ours; others are called the same.
    transposed: projections of the layers are stored [in, out].
    dropped: tensors that hold no weights of the language model.
    """

    modules: Mapping[str, str]
    prefixes: tuple[str, ...] = ("model.",)
    layers: str = "layers"
    pieces: Mapping[str, tuple[_Piece, ...]] = field(default_factory=dict)
    transposed: bool = False
    dropped: re.Pattern[str] = re.compile(r"(model\.)?(layers\.\d+\.self_attn\.)?rotary_emb\..*")


def hf_layout(config: ModelConfig, stored_names: Iterable[str]) -> dict[str, Source]:
    """Canonical name -> source, for the tensors of a Hugging Face directory.

    A stored tensor of no known name keeps the one it has, so that `check_tensors` finds it; what
    holds no weights (rotary tables, causal masks, the model for images) is left out.
    Raises ModelError if two stored tensors are the same one of ours.
    """
    family = _LAYOUTS.get(config.architecture, _llama)(config)
    layout: dict[str, Source] = {}
    for stored in stored_names:
        if family.dropped.fullmatch(stored):
            continue
        for name, source in _sources(family, config.name, stored):
            if name in layout:
                refuse(config.name, f"{layout[name].stored} and {stored} both hold {name}")
            layout[name] = source
    return layout


def _sources(family: _Layout, model: str, stored: str) -> Iterator[tuple[str, Source]]:
    prefix = next((prefix for prefix in family.prefixes if stored.startswith(prefix)), "")
    stem, _, kind = stored.removeprefix(prefix).rpartition(".")
    match = re.fullmatch(rf"{family.layers}\.(0|[1-9][0-9]{{0,8}})\.(.+)", stem)
    if stem in family.modules:
        yield f"{family.modules[stem]}.{kind}", Source(stored)
    elif match is None:
        yield stored, Source(stored)
    else:
        index, module = match.groups()
        for piece in family.pieces.get(module, (_Piece(module),)):
            whole = not (piece.group_rows or family.transposed)
            part = None if whole else _cutter(piece, family.transposed, model, stored)
            yield f"model.layers.{index}.{piece.name}.{kind}", Source(stored, part)


def _cutter(
    piece: _Piece, transposed: bool, model: str, stored: str
) -> Callable[[torch.Tensor], torch.Tensor]:
    def cut(tensor: torch.Tensor) -> torch.Tensor:
        shape = tuple(tensor.shape)
        rows = tensor.T if transposed and tensor.ndim == 2 else tensor
        if not piece.group_rows:
            return rows
        num_rows = piece.num_groups * piece.group_rows
        if not shape or rows.shape[0] != num_rows:
            side = "columns" if transposed else "rows"
            refuse(model, f"tensor {stored} must have {num_rows} {side}, found shape {shape}")
        groups = rows.reshape(piece.num_groups, piece.group_rows, *rows.shape[1:])
        return groups[:, piece.start : piece.stop].flatten(0, 1)

    return cut


def _fused(names: Iterable[str], sizes: Iterable[int], num_groups: int = 1) -> tuple[_Piece, ...]:
    """Pieces of these sizes, one after the other in each of `num_groups` groups."""
    stops: list[int] = []
    for size in sizes:
        stops.append(size + (stops[-1] if stops else 0))
    starts = [0, *stops[:-1]]
    return tuple(
        _Piece(name, start, stop, stops[-1], num_groups)
        for name, start, stop in zip(names, starts, stops, strict=True)
    )


_MODULES = {"embed_tokens": "model.embed_tokens", "norm": "model.norm", "lm_head": "lm_head"}
_QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")


def _llama(config: ModelConfig) -> _Layout:
    return _Layout(_MODULES)


def _gemma3(config: ModelConfig) -> _Layout:
    """Also inside a model that reads images, whose tensors are left out."""
    return _Layout(
        _MODULES,
        prefixes=("model.language_model.", "language_model.model.", "language_model.", "model."),
        dropped=re.compile(r"(model\.)?(vision_tower|multi_modal_projector)\..*"),
    )


def _phi3(config: ModelConfig) -> _Layout:
    kv_rows = config.num_key_value_heads * config.head_dim
    qkv = (config.num_attention_heads * config.head_dim, kv_rows, kv_rows)
    return _Layout(
        _MODULES,
        pieces={
            "self_attn.qkv_proj": _fused(_QKV, qkv),
            "mlp.gate_up_proj": _fused(
                ("mlp.gate_proj", "mlp.up_proj"), (config.intermediate_size,) * 2
            ),
        },
    )


def _gpt2(config: ModelConfig) -> _Layout:
    return _Layout(
        {
            "wte": "model.embed_tokens",
            "wpe": "model.embed_positions",
            "ln_f": "model.norm",
            "lm_head": "lm_head",
        },
        prefixes=("transformer.",),
        layers="h",
        pieces={
            "ln_1": (_Piece("input_layernorm"),),
            "ln_2": (_Piece("post_attention_layernorm"),),
            "attn.c_attn": _fused(_QKV, (config.hidden_size,) * 3),
            "attn.c_proj": (_Piece("self_attn.o_proj"),),
            "mlp.c_fc": (_Piece("mlp.up_proj"),),
            "mlp.c_proj": (_Piece("mlp.down_proj"),),
        },
        transposed=True,
        dropped=re.compile(r"(transformer\.)?h\.\d+\.attn\.(masked_)?bias"),
    )


def _gpt_neox(config: ModelConfig) -> _Layout:
    return _Layout(
        {
            "embed_in": "model.embed_tokens",
            "final_layer_norm": "model.norm",
            "embed_out": "lm_head",
        },
        prefixes=("gpt_neox.",),
        pieces={
            "attention.query_key_value": _fused(
                _QKV, (config.head_dim,) * 3, config.num_attention_heads
            ),
            "attention.dense": (_Piece("self_attn.o_proj"),),
            "mlp.dense_h_to_4h": (_Piece("mlp.up_proj"),),
            "mlp.dense_4h_to_h": (_Piece("mlp.down_proj"),),
        },
        dropped=re.compile(
            r"(gpt_neox\.)?layers\.\d+\.attention\.((masked_)?bias|rotary_emb\.inv_freq)"
        ),
    )


_LAYOUTS: dict[str, Callable[[ModelConfig], _Layout]] = {
    "gemma3_text": _gemma3,
    "phi3": _phi3,
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
}
