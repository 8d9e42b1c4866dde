"""Reader of GGUF files (versions 2 and 3, little endian), the format of llama.cpp.

Nothing in the header is believed before it is checked against the size of the file: a count or a
length that the remaining bytes cannot hold is an error before anything is allocated for it. The
file stays memory-mapped; opening reads the header only. Block formats are in `gguf_quants`.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from jaxtyping import UInt8

from outpace.errors import ModelError
from outpace.models.gguf.quants import DEQUANTISERS, dequantise

if TYPE_CHECKING:
    import torch

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_DIMS = 4
_DEFAULT_ALIGNMENT = 32
# Fewest bytes a metadata entry (key length, type, value) and a tensor entry (name length,
# number of dimensions, one dimension, type, offset) can take: bounds the counts.
_MIN_METADATA_BYTES = 8 + 4 + 1
_MIN_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8

_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<B",
    10: "<Q",
    11: "<q",
    12: "<d",
}

# ggml type id -> name, values per block, bytes per block.
_TENSOR_TYPES = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 40),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
}


BLOCKS = {name: (values, num_bytes) for name, values, num_bytes in _TENSOR_TYPES.values()}
"""Values and bytes of one block of each type."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where one tensor lies. shape is row-major (outermost first), as torch has it.

    offset: of its first byte, from the start of the file. nbytes: its stored size.
    """

    name: str
    shape: tuple[int, ...]
    type_name: str
    offset: int
    nbytes: int


class GGUFFile:
    """An open GGUF file: metadata by key, tensors by GGUF name.

    Raises ModelError ("FILE: what is wrong") for a file that cannot be read or is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self._map = _map_file(self.path)
        reader = _HeaderReader(self._map, self.path)
        num_tensors, num_entries = reader.preamble()
        self.metadata: dict[str, Any] = reader.metadata(num_entries)
        self.tensors: dict[str, TensorInfo] = reader.tensors(num_tensors, self.metadata)

    def raw(self, name: str) -> UInt8[np.ndarray, " nbytes"]:
        """The stored bytes of a tensor: a read-only view of the file."""
        info = self._info(name)
        return np.frombuffer(self._map, np.uint8, count=info.nbytes, offset=info.offset)

    def load(self, name: str) -> torch.Tensor:
        """The tensor as float32 [shape], dequantised exactly; the caller owns it.

        Raises ModelError for a name the file lacks or a type that is not read.
        """
        import torch

        info = self._info(name)
        if info.type_name not in DEQUANTISERS:
            readable = ", ".join(sorted(DEQUANTISERS))
            raise ModelError(
                f"{self.path}: tensor {name} is stored as {info.type_name}, which is not "
                f"supported; supported: {readable}"
            )
        values = dequantise(info.type_name, self.raw(name))
        return torch.from_numpy(values.reshape(info.shape))

    def _info(self, name: str) -> TensorInfo:
        if name not in self.tensors:
            raise ModelError(f"{self.path}: holds no tensor {name}")
        return self.tensors[name]


def _map_file(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError:
        raise ModelError(f"{path}: the file is empty") from None
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror or error})") from None


class _HeaderReader:
    """A cursor over the header that checks every step against the end of the file."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self._data = data
        self._path = path
        self._size = len(data)
        self._at = 0

    def preamble(self) -> tuple[int, int]:
        """Check magic and version; return the numbers of tensors and metadata entries."""
        if self._data[:4] != _MAGIC:
            self._fail("not a GGUF file (it does not begin with 'GGUF')")
        self._at = 4
        version = self._scalar("<I", "version")
        if version in (int.from_bytes(v.to_bytes(4, "little"), "big") for v in _VERSIONS):
            self._fail("is a big-endian GGUF file; only little-endian files are supported")
        if version not in _VERSIONS:
            self._fail(f"GGUF version {version} is not supported; supported: 2, 3")
        num_tensors = self._count("tensor count", 0)
        num_entries = self._count("metadata count", 0)
        least = num_tensors * _MIN_TENSOR_BYTES + num_entries * _MIN_METADATA_BYTES
        if least > self._size - self._at:
            self._fail(
                f"claims {num_tensors} tensors and {num_entries} metadata entries, "
                f"more than its {self._size} bytes can hold"
            )
        return num_tensors, num_entries

    def metadata(self, num_entries: int) -> dict[str, Any]:
        entries: dict[str, Any] = {}
        for index in range(num_entries):
            key = self._string(f"metadata key {index}")
            if key in entries:
                self._fail(f"metadata key {key!r} occurs twice")
            entries[key] = self._value(self._scalar("<I", f"type of {key!r}"), key)
        return entries

    def tensors(self, num_tensors: int, metadata: dict[str, Any]) -> dict[str, TensorInfo]:
        alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
            self._fail(f"general.alignment must be a power of two, got {alignment!r}")
        infos: dict[str, TensorInfo] = {}
        for index in range(num_tensors):
            info = self._tensor(index, alignment)
            if info.name in infos:
                self._fail(f"tensor {info.name!r} occurs twice")
            infos[info.name] = info
        data_start = -(-self._at // alignment) * alignment
        return self._placed(infos, data_start)

    def _placed(self, infos: dict[str, TensorInfo], data_start: int) -> dict[str, TensorInfo]:
        """The infos with offsets from the start of the file, checked against its end."""
        end_of_last = data_start
        placed = {}
        for info in sorted(infos.values(), key=lambda info: info.offset):
            offset = data_start + info.offset
            if offset < end_of_last:
                self._fail(f"tensor {info.name!r} overlaps the one before it")
            end_of_last = offset + info.nbytes
            if end_of_last > self._size:
                self._fail(
                    f"is truncated: tensor {info.name!r} ends at byte {end_of_last}, "
                    f"the file at {self._size}"
                )
            placed[info.name] = TensorInfo(
                info.name, info.shape, info.type_name, offset, info.nbytes
            )
        return {name: placed[name] for name in infos}

    def _tensor(self, index: int, alignment: int) -> TensorInfo:
        name = self._string(f"name of tensor {index}")
        num_dims = self._scalar("<I", f"dimensions of {name!r}")
        if not 1 <= num_dims <= _MAX_DIMS:
            self._fail(f"tensor {name!r} has {num_dims} dimensions, expected 1 to {_MAX_DIMS}")
        dims = tuple(self._scalar("<Q", f"dimensions of {name!r}") for _ in range(num_dims))
        type_id = self._scalar("<I", f"type of {name!r}")
        offset = self._scalar("<Q", f"offset of {name!r}")
        if type_id not in _TENSOR_TYPES:
            self._fail(f"tensor {name!r} has unknown type {type_id}")
        type_name, block_len, block_bytes = _TENSOR_TYPES[type_id]
        if 0 in dims or dims[0] % block_len:
            self._fail(f"tensor {name!r} has dimensions {dims}, which do not suit {type_name}")
        if offset % alignment:
            self._fail(f"tensor {name!r} at offset {offset} is not aligned to {alignment} bytes")
        nbytes = math.prod(dims) // block_len * block_bytes
        return TensorInfo(name, dims[::-1], type_name, offset, nbytes)

    def _value(self, type_id: int, key: str) -> Any:
        if type_id == _STRING:
            return self._string(key)
        if type_id == _ARRAY:
            return self._array(key)
        if type_id not in _SCALARS:
            self._fail(f"metadata {key!r} has unknown type {type_id}")
        value = self._scalar(_SCALARS[type_id], key)
        return bool(value) if type_id == _BOOL else value

    def _array(self, key: str) -> list[Any]:
        type_id = self._scalar("<I", f"element type of {key!r}")
        if type_id == _STRING:
            return self._strings(self._count(f"length of {key!r}", 8), key)
        if type_id not in _SCALARS:
            self._fail(f"metadata array {key!r} has unsupported element type {type_id}")
        dtype = np.dtype(_SCALARS[type_id])
        count = self._count(f"length of {key!r}", dtype.itemsize)
        values = np.frombuffer(self._data, dtype, count=count, offset=self._at)
        self._at += count * dtype.itemsize
        return list((values.astype(bool) if type_id == _BOOL else values).tolist())

    def _strings(self, count: int, key: str) -> list[str]:
        """Strings in one tight loop: a vocabulary and its merges are some 100,000 of them."""
        data, size, at = self._data, self._size, self._at
        unpack = struct.Struct("<Q").unpack_from
        strings = []
        for _ in range(count):
            if at + 8 > size:
                self._fail(f"ends inside {key!r}")
            (length,) = unpack(data, at)
            at += 8
            if length > size - at:
                self._fail(f"ends inside {key!r}")
            strings.append(data[at : at + length])
            at += length
        self._at = at
        try:
            return [raw.decode() for raw in strings]
        except UnicodeDecodeError:
            self._fail(f"{key!r} holds text that is not UTF-8")

    def _string(self, what: str) -> str:
        return self._strings(1, what)[0]

    def _count(self, what: str, min_bytes_each: int) -> int:
        count: int = self._scalar("<Q", what)
        if count * max(min_bytes_each, 1) > self._size - self._at:
            self._fail(f"{what} is {count}, more than the file can hold")
        return count

    def _scalar(self, code: str, what: str) -> Any:
        end = self._at + struct.calcsize(code)
        if end > self._size:
            self._fail(f"ends inside {what}")
        (value,) = struct.unpack_from(code, self._data, self._at)
        self._at = end
        return value

    def _fail(self, reason: str) -> NoReturn:
        raise ModelError(f"{self._path}: {reason}")
