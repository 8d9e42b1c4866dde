"""What weights take in each format, scales, zero points and what stays unquantised included."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from outpace.errors import ModelError
from outpace.measure.plan.source import Stored
from outpace.models.gguf.file import BLOCKS

WHOLE = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of a number in each format without blocks or groups."""
PACKED = {"q4_0": "Q4_0", "q4_1": "Q4_1", "q8_0": "Q8_0"}
"""GGUF's types by the dtype that asks for them."""
GROUPED = ("awq", "gptq")
DTYPES = ("auto", *WHOLE, *PACKED, *GROUPED)
DEFAULT_GROUP_SIZE = 128
_OUTER = ("model.embed_tokens.weight", "lm_head.weight")
_SCALE_BYTES = 2
_INDEX_BYTES = 4

Shape = tuple[int, ...]


class Format(Protocol):
    """How tensors are stored. name: what tables call it."""

    @property
    def name(self) -> str: ...

    def num_bytes(self, shape: Shape) -> int:
        """Bytes of one tensor."""

    def formula(self, shapes: Iterable[Shape]) -> str:
        """The sum of `num_bytes` over the tensors as arithmetic."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """Rows in blocks of `length` values that take `size` bytes; length 1: plain numbers."""

    name: str
    length: int
    size: int

    def num_bytes(self, shape: Shape) -> int:
        return math.prod(shape[:-1]) * -(-shape[-1] // self.length) * self.size

    def formula(self, shapes: Iterable[Shape]) -> str:
        count = sum(map(math.prod, shapes))
        blocks = "" if self.length == 1 else f" / {self.length}"
        return f"{count:,}{blocks} × {self.size} B ({self.name})"


@dataclass(frozen=True, slots=True)
class Groups:
    """AWQ or GPTQ: [out, in] as integers of `bits`; of every group of inputs and every output a
    scale of 16 bits and a zero point of `bits`; with GPTQ the group of every input besides."""

    method: str
    bits: int
    group_size: int

    @property
    def name(self) -> str:
        size = "columns" if self.group_size == -1 else f"groups of {self.group_size}"
        return f"{self.method.upper()} int{self.bits}, {size}"

    def num_bytes(self, shape: Shape) -> int:
        weights = math.prod(shape) * self.bits // 8
        groups = self._num_groups(shape)
        return weights + groups * _SCALE_BYTES + groups * self.bits // 8 + self._index_bytes(shape)

    def formula(self, shapes: Iterable[Shape]) -> str:
        shapes = list(shapes)
        count, groups = sum(map(math.prod, shapes)), sum(map(self._num_groups, shapes))
        text = f"{count:,} × {self.bits} / 8 B + {groups:,} × (2 + {self.bits} / 8) B"
        index = sum(map(self._index_bytes, shapes))
        return text + (f" + {index:,} B of indices" if index else "") + f" ({self.name})"

    def _num_groups(self, shape: Shape) -> int:
        out, in_ = shape
        size = in_ if self.group_size == -1 else self.group_size
        return out * -(-in_ // size)

    def _index_bytes(self, shape: Shape) -> int:
        return shape[1] * _INDEX_BYTES if self.method == "gptq" else 0


Choice = Callable[[str, Shape], Format]
"""From the name and shape of a tensor to its format."""


def whole(dtype: str) -> Format:
    """The format of plain numbers of this dtype."""
    return Blocks(dtype, 1, WHOLE[dtype])


def choose(stored: Stored, dtype: str, group_size: int = DEFAULT_GROUP_SIZE) -> Choice:
    """The format of every tensor of a model or a head.

    dtype: "auto": as stored, which is what a GGUF file's header, `quantization_config` or `dtype`
    of `config.json` say (bfloat16 where nothing does). A plain dtype is that of all tensors. "q4_0"
    and "q4_1" keep embedding and output head in q8_0; these and "q8_0" keep vectors in float32.
    "awq" and "gptq" have four bits in groups of `group_size` inputs (-1: all) in the matrices of
    the layers, and float16 elsewhere.
    Raises ModelError, when a tensor is asked for, for rows that blocks do not divide.
    """
    if dtype in WHOLE:
        return lambda name, shape: whole(dtype)
    if dtype in PACKED:
        return _packed(stored, dtype)
    if dtype in GROUPED:
        return _grouped(Groups(dtype, 4, group_size), whole("float16"), ())
    if stored.types:
        return lambda name, shape: _gguf_blocks(stored.types[name])
    if stored.scheme is not None:
        scheme = stored.scheme
        groups = Groups(scheme.method, scheme.bits, scheme.group_size)
        return _grouped(groups, whole(stored.dtype), scheme.plain)
    return lambda name, shape: whole(stored.dtype)


def _packed(stored: Stored, dtype: str) -> Choice:
    def chosen(name: str, shape: Shape) -> Format:
        if len(shape) == 1 or name == "model.embed_positions.weight":
            return whole("float32")
        found = _gguf_blocks("Q8_0" if name in _OUTER else PACKED[dtype])
        if shape[-1] % found.length:
            raise ModelError(
                f"{stored.name}: {name} has rows of {shape[-1]} values, which blocks of "
                f"{found.length} do not divide; dtype {dtype!r} cannot hold it, bfloat16 can"
            )
        return found

    return chosen


def _grouped(groups: Groups, rest: Format, plain: tuple[str, ...]) -> Choice:
    def chosen(name: str, shape: Shape) -> Format:
        is_quantised = name.endswith("_proj.weight") and not any(
            f".{part}." in f".{name}" for part in plain
        )
        return groups if is_quantised else rest

    return chosen


def _gguf_blocks(type_name: str) -> Blocks:
    return Blocks(type_name.lower(), *BLOCKS[type_name])
