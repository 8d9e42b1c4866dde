"""Matrices in the packed layout of the native kernels."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8

from outpace.errors import ModelError
from outpace.native.interface import (
    ERROR_BYTES,
    Activations,
    LinearStruct,
    NormStruct,
    WeightFormat,
)
from outpace.native.library import chosen_path, library
from outpace.native.pool import ThreadPool

ALIGNMENT = 64
Array = np.ndarray[Any, Any]


def packed_bytes(weight_format: WeightFormat, out: int, in_: int) -> int:
    """Size of a packed [out, in] matrix. Raises ModelError if the format cannot have that shape
    (the Q formats need `in` to be a multiple of 32)."""
    error = ctypes.create_string_buffer(ERROR_BYTES)
    size = int(library().op_packed_bytes(weight_format, out, in_, ctypes.addressof(error)))
    if size < 0:
        raise ModelError(error.value.decode())
    return size


def pack(
    weight_format: WeightFormat, out: int, in_: int, source: Array, into: Array | None = None
) -> UInt8[np.ndarray, " bytes"]:
    """Lay a row-major [out, in] matrix out for the kernels, the same for every path.

    Args:
        source: its bytes, contiguous: float32 for F32, uint16 (bfloat16 bits) for BF16, the GGUF
            blocks as uint8 for the Q formats.
        into: where to, `packed_bytes` uint8 aligned to 64 bytes; a new array if None.

    Returns:
        `into`, or the new array.
    """
    needed = source_bytes(weight_format, out, in_)
    size = packed_bytes(weight_format, out, in_)
    packed = aligned_empty(size) if into is None else into
    assert source.flags.c_contiguous
    assert source.nbytes == needed, f"{source.nbytes} bytes, expected {needed}"
    assert packed.nbytes == size
    assert address(packed) % ALIGNMENT == 0
    error = ctypes.create_string_buffer(ERROR_BYTES)
    arguments = (address(source), address(packed), ctypes.addressof(error))
    if library().op_pack(weight_format, out, in_, *arguments) < 0:
        raise ModelError(error.value.decode())
    return packed


def source_bytes(weight_format: WeightFormat, out: int, in_: int) -> int:
    """Bytes of the row-major [out, in] matrix that `pack` takes."""
    per_32 = {
        WeightFormat.F32: 128,
        WeightFormat.BF16: 64,
        WeightFormat.Q4_0: 18,
        WeightFormat.Q4_1: 20,
        WeightFormat.Q8_0: 34,
    }[weight_format]
    return out * in_ * per_32 // 32


def aligned_empty(num_bytes: int) -> UInt8[np.ndarray, " bytes"]:
    """Uninitialised bytes that start at a multiple of 64."""
    raw = np.empty(num_bytes + ALIGNMENT, dtype=np.uint8)
    start = -address(raw) % ALIGNMENT
    return raw[start : start + num_bytes]


def address(array: Array) -> int:
    """Where the first element lies. Only valid while someone holds the array."""
    return int(array.__array_interface__["data"][0])


def address_or_null(array: Array | None) -> int | None:
    return None if array is None else address(array)


@dataclass(frozen=True, eq=False)
class PackedLinear:
    """y = x W^T + bias. Owns (or keeps referenced) the memory that its struct points to.

    Args:
        data: what `pack` returned; it may be a view of a memory-mapped file.
        bias: float32 [out], contiguous, or None.
    """

    weight_format: WeightFormat
    out: int
    in_: int
    data: UInt8[np.ndarray, " bytes"]
    bias: Float[np.ndarray, " out"] | None = None

    def __post_init__(self) -> None:
        assert self.data.nbytes == packed_bytes(self.weight_format, self.out, self.in_)
        assert self.data.flags.c_contiguous
        assert address(self.data) % ALIGNMENT == 0
        check_vector(self.bias, self.out)

    @classmethod
    def packed(
        cls,
        weight_format: WeightFormat,
        out: int,
        in_: int,
        source: Array,
        bias: Array | None = None,
    ) -> PackedLinear:
        """Pack `source` (see `pack`)."""
        return cls(weight_format, out, in_, pack(weight_format, out, in_, source), bias)

    @cached_property
    def struct(self) -> LinearStruct:
        return LinearStruct(
            self.weight_format,
            self.out,
            self.in_,
            0,
            address(self.data),
            address_or_null(self.bias),
        )

    def row(self, index: int) -> Float[np.ndarray, " in"]:
        """Row `index` of the weights in float32."""
        assert 0 <= index < self.out
        values = np.empty(self.in_, dtype=np.float32)
        library().op_unpack_row(ctypes.addressof(self.struct), index, address(values))
        return values

    def rows(self, indices: Sequence[int]) -> Float[np.ndarray, "n in"]:
        """Several rows of the weights in float32."""
        values = np.empty((len(indices), self.in_), dtype=np.float32)
        unpack, struct = library().op_unpack_row, ctypes.addressof(self.struct)
        first, stride = address(values), values.strides[0]
        for place, index in enumerate(indices):
            assert 0 <= index < self.out
            unpack(struct, index, first + place * stride)
        return values

    def forward(
        self,
        x: Float[np.ndarray, "rows in"],
        pool: ThreadPool,
        activations: Activations = Activations.BF16,
        path: str | None = None,
    ) -> Float[np.ndarray, "rows out"]:
        """x W^T + bias, with x rounded as in a model with these `activations`. `path` defaults to
        the one new models take."""
        assert x.dtype == np.float32
        assert x.flags.c_contiguous
        assert x.ndim == 2
        assert x.shape[1] == self.in_
        y = np.empty((len(x), self.out), dtype=np.float32)
        error = ctypes.create_string_buffer(ERROR_BYTES)
        with pool.lock:
            status = library().op_linear_forward(
                pool.pointer,
                (path or chosen_path()).encode(),
                ctypes.addressof(self.struct),
                activations,
                len(x),
                address(x),
                address(y),
                ctypes.addressof(error),
            )
        if status < 0:
            raise ModelError(error.value.decode())
        return y


@dataclass(frozen=True, eq=False)
class Norm:
    """Weight [n] with any offset already added, bias [n] for layer norms; no weight: no norm."""

    weight: Float[np.ndarray, " n"] | None = None
    bias: Float[np.ndarray, " n"] | None = None

    @cached_property
    def struct(self) -> NormStruct:
        for array in (self.weight, self.bias):
            check_vector(array, None)
        return NormStruct(address_or_null(self.weight), address_or_null(self.bias))


def check_vector(array: Array | None, size: int | None) -> None:
    """float32, contiguous, of that many elements: anything else would be read as garbage."""
    if array is not None:
        assert array.dtype == np.float32
        assert array.flags.c_contiguous
        assert size is None or array.size == size, f"{array.size} elements, expected {size}"


def check_ids(array: Array) -> None:
    """int32, contiguous, one-dimensional."""
    assert array.dtype == np.int32
    assert array.flags.c_contiguous
    assert array.ndim == 1
