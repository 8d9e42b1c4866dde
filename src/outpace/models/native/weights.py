"""The matrices of the native step: which tensors each is made of, in which format, packed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from collections.abc import Sequence as List
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Float32, UInt8
from torch import Tensor

from outpace.errors import OptionError
from outpace.models.config import ModelConfig
from outpace.models.native.formats import PACKED, PACKED_DTYPES, WHOLE
from outpace.models.tensors import expected_shapes
from outpace.native.interface import WeightFormat
from outpace.native.weights import PackedLinear, pack, packed_bytes

RUN = 16
"""Outputs of gate and up that alternate in their common matrix."""

Array = np.ndarray[Any, Any]
PackedData = Mapping[str, UInt8[np.ndarray, " nbytes"]]
"""Packed bytes of each matrix, by its name."""


class WeightSource(Protocol):
    """What is read of a checkpoint; see `Checkpoint`."""

    def load(self, name: str) -> Tensor: ...

    def dtype(self, name: str) -> str: ...

    def has_blocks(self, name: str) -> bool: ...

    def blocks(self, name: str) -> UInt8[np.ndarray, "rows nbytes"]: ...


@dataclass(frozen=True, slots=True)
class Matrix:
    """One matrix [out, in_]: tensors of a checkpoint, stacked along `out`.

    parts: their names. rows: their numbers of rows, padding included: gate and up are filled up
    with rows of zeros to whole runs, then interleaved in runs of RUN.
    """

    name: str
    weight_format: WeightFormat
    parts: tuple[str, ...]
    rows: tuple[int, ...]
    in_: int
    interleaved: bool = False

    @property
    def out(self) -> int:
        return sum(self.rows)

    @property
    def num_bytes(self) -> int:
        """Size once packed."""
        return packed_bytes(self.weight_format, self.out, self.in_)

    def pack_into(self, source: WeightSource, into: UInt8[np.ndarray, " nbytes"]) -> None:
        """Read the tensors and lay them out for the kernels, in `num_bytes` aligned to 64."""
        parts = [_in_format(source, name, self.weight_format) for name in self.parts]
        rows = self._stacked([_padded(part, n) for part, n in zip(parts, self.rows, strict=True)])
        pack(self.weight_format, self.out, self.in_, np.ascontiguousarray(rows), into)

    def linear(
        self, data: UInt8[np.ndarray, " nbytes"], bias: List[Float32[np.ndarray, " n"]]
    ) -> PackedLinear:
        """The product with these weights, once packed. bias: one of each part, or none."""
        stacked = None
        if bias:
            padded = [_padded(part, n) for part, n in zip(bias, self.rows, strict=True)]
            stacked = np.ascontiguousarray(self._stacked(padded))
        return PackedLinear(self.weight_format, self.out, self.in_, data, stacked)

    def _stacked(self, parts: list[Array]) -> Array:
        if not self.interleaved:
            return parts[0] if len(parts) == 1 else np.concatenate(parts)
        runs = [part.reshape(-1, RUN, *part.shape[1:]) for part in parts]
        return np.stack(runs, axis=1).reshape(-1, *parts[0].shape[1:])


def plan_matrices(config: ModelConfig, source: WeightSource, dtype: str) -> list[Matrix]:
    """All matrices of a model, in the order in which a pass reads them.

    dtype: "float32" or "bfloat16" for all. "auto", or a packed format: what GGUF stores in a packed
    format stays as it is, as long as all parts of a matrix have the same; the rest is bfloat16.
    """
    shapes = expected_shapes(config)

    def matrix(
        name: str, prefix: str, *stems: str, interleaved: bool = False, fixed: str = dtype
    ) -> Matrix:
        parts = tuple(f"{prefix}{stem}.weight" for stem in stems)
        multiple = RUN if interleaved else 1
        rows = tuple(-(-shapes[part][0] // multiple) * multiple for part in parts)
        weight_format = WHOLE[fixed] if fixed in WHOLE else _stored_format(source, parts)
        return Matrix(name, weight_format, parts, rows, shapes[parts[0]][1], interleaved)

    matrices = [matrix("embedding", "model.", "embed_tokens")]
    up = ("mlp.gate_proj", "mlp.up_proj") if config.gated_mlp else ("mlp.up_proj",)
    for index in range(config.num_hidden_layers):
        prefix, name = f"model.layers.{index}.", f"layers.{index}."
        matrices += [
            matrix(f"{name}qkv", prefix, *(f"self_attn.{x}_proj" for x in "qkv")),
            matrix(f"{name}o", prefix, "self_attn.o_proj"),
            matrix(f"{name}up", prefix, *up, interleaved=config.gated_mlp),
            matrix(f"{name}down", prefix, "mlp.down_proj"),
        ]
    if not config.tie_word_embeddings:
        matrices.append(matrix("head", "", "lm_head"))
    return matrices


def main_format(matrices: List[Matrix]) -> WeightFormat:
    """The most common format of the projections."""
    inner = [m.weight_format for m in matrices if m.name.startswith("layers.")]
    return Counter(inner).most_common(1)[0][0]


def check_stored(stored_dtype: str, dtype: str, name: str) -> None:
    """Raise OptionError for a packed dtype that the checkpoint is not stored in."""
    if dtype in PACKED_DTYPES and stored_dtype.lower() != dtype:
        raise OptionError(
            f"dtype={dtype!r}, but {name} is stored as {stored_dtype}, and weights are not "
            f"quantised again; use auto, {' or '.join(WHOLE)}, or a GGUF file in {dtype.upper()}"
        )


def vector(
    source: WeightSource, name: str, *, offset: float = 0.0
) -> Float32[np.ndarray, "*shape"]:
    """A tensor in float32, `offset` added; the caller owns it."""
    return (source.load(name).to(torch.float32) + offset).contiguous().numpy()


def _stored_format(source: WeightSource, parts: tuple[str, ...]) -> WeightFormat:
    kinds = {source.dtype(part) for part in parts}
    (kind, *others) = kinds
    if others or kind not in PACKED or not all(map(source.has_blocks, parts)):
        return WeightFormat.BF16
    return PACKED[kind]


def _in_format(source: WeightSource, name: str, weight_format: WeightFormat) -> Array:
    """Rows of a tensor as `pack` takes them."""
    if weight_format == WeightFormat.F32:
        return source.load(name).to(torch.float32).numpy()
    if weight_format == WeightFormat.BF16:
        return source.load(name).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    return source.blocks(name)


def _padded(part: Array, num_rows: int) -> Array:
    """Rows of zeros at the end: in the block formats too, whose scales are then zero."""
    missing = num_rows - part.shape[0]
    return np.pad(part, [(0, missing)] + [(0, 0)] * (part.ndim - 1)) if missing else part
