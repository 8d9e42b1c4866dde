"""Tiny models on the native step, in any format, and every way of feeding one text to them."""

from __future__ import annotations

from collections.abc import Sequence as List
from functools import cache
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from jaxtyping import Float
from tiny import feed, layer_kind, random_weights, tiny_config, tiny_tokenizer
from torch import Tensor

from outpace.models.config import ModelConfig
from outpace.models.decoder import Decoder
from outpace.models.gguf.quants import dequantise
from outpace.models.load import LoadedModel
from outpace.models.native.decoder import NativeDecoder, native_decoder
from outpace.models.native.formats import NativeOptions
from outpace.native.library import status

KINDS = {"q4_0": Kind.Q4_0, "q4_1": Kind.Q4_1, "q8_0": Kind.Q8_0}
# Weights and what activations are rounded to, as options; one of each kind of arithmetic.
FORMATS = [
    ("float32", "auto"),
    ("bfloat16", "auto"),
    *((dtype, rounding) for dtype in KINDS for rounding in ("bfloat16", "int16", "int8")),
]


def usable_paths() -> tuple[str, ...]:
    """The instruction-set paths that this machine runs; none where the library is missing."""
    return status().usable


class StoredWeights:
    """Weights in memory that stand for a checkpoint, matrices quantised as `kind` if one is given.

    A model in torch on `load` and one on the native step then compute with the same weights.
    """

    def __init__(self, weights: dict[str, Tensor], kind: Kind | None = None) -> None:
        self._weights = {name: tensor.to(torch.float32) for name, tensor in weights.items()}
        self._kind = kind
        self._blocks: dict[str, np.ndarray] = {}
        if kind is not None:
            for name, tensor in self._weights.items():
                if tensor.ndim == 2 and "embed_positions" not in name:
                    self._blocks[name] = gguf.quants.quantize(tensor.numpy(), kind)
                    values = dequantise(kind.name, self._blocks[name].reshape(-1))
                    self._weights[name] = torch.from_numpy(values.reshape(tensor.shape))

    def load(self, name: str) -> Tensor:
        return self._weights[name]

    def dtype(self, name: str) -> str:
        return self._kind.name if self._kind and name in self._blocks else "float32"

    def has_blocks(self, name: str) -> bool:
        return name in self._blocks

    def blocks(self, name: str) -> np.ndarray:
        return self._blocks[name]


def odd_config(**changes: Any) -> ModelConfig:
    """A shape without round numbers beyond the 32 that the packed formats ask for."""
    sizes = {
        "hidden_size": 96,
        "intermediate_size": 160,
        "num_heads": 8,
        "num_kv_heads": 2,
        "head_dim": 20,
        "vocab_size": 107,
        "attention_scale": 0.3,
        "layers": (layer_kind(rotary_dim=20), layer_kind(rotary_dim=16, window=37)),
    }
    return tiny_config(**(sizes | changes))


@cache
def stored(dtype: str, seed: int = 0, tied: bool = True) -> tuple[ModelConfig, StoredWeights]:
    """The odd model's weights as a format stores them; equal for all formats before rounding."""
    config = odd_config(tie_word_embeddings=tied)
    return config, StoredWeights(random_weights(config, seed=seed), KINDS.get(dtype))


def odd_model(
    dtype: str = "float32",
    activations: str = "auto",
    *,
    seed: int = 0,
    tied: bool = True,
    kv_cache_dtype: str = "auto",
    **options: Any,
) -> NativeDecoder:
    """The odd model on the native step. options: threads, path, num_logits."""
    config, weights = stored(dtype, seed, tied)
    return native_decoder(
        config, weights, dtype=dtype, options=NativeOptions(kv_cache_dtype, activations), **options
    )


def loaded(decoder: NativeDecoder | Decoder, name: str = "odd") -> LoadedModel:
    """A decoder with a tokenizer, as `LLM` takes it. It needs logits for no more than 107 rows."""
    is_native = isinstance(decoder, NativeDecoder)
    return LoadedModel(
        decoder,
        tiny_tokenizer(decoder.num_logits),
        name,
        fingerprint=name,
        model_impl="native" if is_native else "torch",
    )


def opened(decoder: Any, num_rows: int = 1, capacity: int = 256) -> Any:
    """A cache of which every row is open."""
    rows = decoder.new_cache(num_rows=num_rows, capacity=capacity)
    for _ in range(num_rows):
        rows.open()
    return rows


def in_blocks(
    decoder: Any, tokens: List[int], sizes: List[int], row: int = 0, cache: Any = None
) -> Float[Tensor, "n vocab"]:
    """Logits after every token, fed in blocks of these sizes, again and again."""
    rows = opened(decoder, num_rows=row + 1) if cache is None else cache
    pieces, start, step = [], 0, 0
    while start < len(tokens):
        size = sizes[step % len(sizes)]
        pieces.append(feed(decoder, rows, {row: tokens[start : start + size]})[0][row])
        start, step = start + size, step + 1
    return torch.cat(pieces)


def in_company(decoder: Any, tokens: List[int], others: List[List[int]]) -> Float[Tensor, "n v"]:
    """Logits after every token, while other rows are fed blocks of other sizes."""
    rows = opened(decoder, num_rows=len(others) + 1)
    pieces, start, step = [], 0, 0
    mine = len(others) // 2
    fed = [0] * len(others)
    while start < len(tokens):
        size = (1, 4, 2, 9, 1)[step % 5]
        batch = {mine: tokens[start : start + size]}
        for i, other in enumerate(others):
            row, count = i + (i >= mine), (step * 3 + i * 5) % 7
            if count and fed[i] < len(other):
                batch[row] = other[fed[i] : fed[i] + count]
                fed[i] += count
        pieces.append(feed(decoder, rows, batch)[0][mine])
        start, step = start + size, step + 1
    return torch.cat(pieces)


def in_trees(decoder: Any, tokens: List[int], seed: int) -> Float[Tensor, "n vocab"]:
    """Logits after every token, each block of them one path of a random tree, which is kept."""
    rng = np.random.default_rng(seed)
    rows = opened(decoder)
    pieces = [feed(decoder, rows, {0: tokens[:3]})[0][0]]
    start = 3
    while start < len(tokens):
        path = tokens[start : start + int(rng.integers(1, 7))]
        ids, parents, nodes = random_tree(rng, path)
        length = rows.length(0)
        logits = feed(decoder, rows, {0: ids}, {0: parents})[0][0]
        pieces.append(logits[nodes])
        rows.keep(0, length, nodes)
        start += len(path)
    return torch.cat(pieces)


def random_tree(
    rng: np.random.Generator, path: List[int], num_others: int = 9
) -> tuple[list[int], list[int], list[int]]:
    """A tree that holds `path` among other nodes: ids, parents, and the nodes of the path."""
    ids: list[int] = []
    parents: list[int] = []
    nodes: list[int] = []
    order = [True] * len(path) + [False] * num_others
    rng.shuffle(order)
    for is_path in order:
        if is_path:
            parents.append(nodes[-1] if nodes else -1)
            nodes.append(len(ids))
            ids.append(path[len(nodes) - 1])
        else:
            parents.append(int(rng.integers(-1, len(ids))) if ids else -1)
            ids.append(int(rng.integers(2, 90)))
    return ids, parents, nodes


def some_tokens(count: int, seed: int = 0, vocab_size: int = 107) -> list[int]:
    rng = np.random.default_rng(seed)
    return [int(token) for token in rng.integers(2, vocab_size, count)]
