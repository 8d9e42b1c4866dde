"""AWQ and GPTQ checkpoints: packed integer weights, given out as the plain weights they stand for.

A quantised projection X [out, in] is stored as `X.qweight`, `X.qzeros` and `X.scales`: integers of
4 or 8 bits, packed into int32 words from the least significant bit on. Every input column i belongs
to a group g(i), and the weight is

    W[o, i] = (q[o, i] - zero[g(i), o]) * scale[g(i), o]

The difference is a small integer and scales are 16 bit floats, so the product is exact in float32:
the model that runs is the quantised one, without the rounding of half precision kernels. It takes
the memory of its dequantised weights.

AWQ (Lin et al. 2023, arXiv:2306.00978), version "gemm": qweight [in, out/8], qzeros [groups,
out/8]; a word holds the outputs 0, 2, 4, 6, 1, 3, 5, 7 of eight. g(i) = i // group_size.

GPTQ (Frantar et al. 2022, arXiv:2210.17323): qweight [in*bits/32, out], qzeros [groups,
out*bits/32]. `X.g_idx` [in] holds g(i), in no order with desc_act. The format "gptq" stores zero
points less one, "gptq_v2" as they are. Where one less than zero had to be stored, tools disagree:
GPTQModel borrows from the next field of the word, older ones write ones over it, and only the first
can be read back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from outpace.errors import ModelError
from outpace.models.config import is_integer, refuse
from outpace.models.hf.tensor_files import FLOAT_DTYPES, TensorFiles

if TYPE_CHECKING:
    import torch
    from jaxtyping import Float32, Int32, Int64, UInt8

_WORD_BITS = 32
_BITS = {"awq": (4,), "gptq": (4, 8)}
# Modules of GPT-2 keep their weights as [in, out]; packed, nothing in the file says which it is.
_TRANSPOSED = ("gpt2",)
_INSTEAD = "use the unquantised checkpoint, an AWQ or GPTQ version of it, or a GGUF file"

STORED_DTYPES = ("AWQ int4", "GPTQ int4", "GPTQ int8")


@dataclass(frozen=True, slots=True)
class Scheme:
    """How a checkpoint is quantised.

    method: "awq" or "gptq". bits: of one integer.
    group_size: input columns that share a scale; -1 is all of them.
    zero_offset: what is added to a stored zero point; borrows: below zero, it borrowed (see above).
    plain: parts of the dotted names of modules that are not quantised.
    """

    method: str
    bits: int
    group_size: int
    zero_offset: int = 0
    borrows: bool = False
    plain: tuple[str, ...] = ()

    @property
    def stored_dtype(self) -> str:
        return f"{self.method.upper()} int{self.bits}"


@dataclass(frozen=True, slots=True)
class _Packed:
    """One quantised projection: where its parts are stored, and its sizes."""

    stem: str
    num_inputs: int
    num_outputs: int
    num_groups: int
    group_size: int
    has_group_index: bool

    @property
    def parts(self) -> tuple[str, ...]:
        kinds = ("qweight", "qzeros", "scales", *(("g_idx",) if self.has_group_index else ()))
        return tuple(f"{self.stem}.{kind}" for kind in kinds)


def read_scheme(values: Mapping[str, Any], name: str = "") -> Scheme | None:
    """The scheme that a `config.json` announces; None where the weights are plain.

    Raises ModelError, by name, for every method and variant that is not read.
    """
    if values.get("compression_config") is not None:
        refuse(name, f"compressed-tensors weights (compression_config) are not read; {_INSTEAD}")
    config = values.get("quantization_config")
    if config is None:
        return None
    if not isinstance(config, Mapping):
        refuse(name, f"quantization_config must be an object, got {_short(config)}")
    method = config.get("quant_method")
    if not isinstance(method, str) or method not in _BITS:
        refuse(name, f"weights quantised by {_short(method)} are not read; {_INSTEAD}")
    label = method.upper()
    if values.get("model_type") in _TRANSPOSED:
        refuse(name, f"{label} weights of {values['model_type']} are not read; {_INSTEAD}")
    bits = config.get("bits", config.get("w_bit"))
    if not is_integer(bits) or bits not in _BITS[method]:
        supported = " and ".join(map(str, _BITS[method]))
        refuse(name, f"{label} with bits {_short(bits)} is not read; supported: {supported}")
    group_size = config.get("group_size", config.get("q_group_size"))
    if not is_integer(group_size) or not (group_size == -1 or 1 <= group_size < 2**31):
        refuse(name, f"group_size of {label} must be -1 or positive, got {_short(group_size)}")
    plain = config.get("modules_to_not_convert") or []
    if not isinstance(plain, list) or not all(isinstance(part, str) for part in plain):
        refuse(name, f"modules_to_not_convert must be a list of names, got {_short(plain)}")
    if method == "awq":
        _refuse_awq_variants(config, name)
        return Scheme(method, bits, group_size, plain=tuple(plain))
    adds_one = _gptq_format(config, name) == "gptq"
    borrows = "gptqmodel" in _quantizer(config)
    return Scheme(method, bits, group_size, int(adds_one), borrows, tuple(plain))


def _refuse_awq_variants(config: Mapping[str, Any], name: str) -> None:
    version = config.get("version", config.get("format", "gemm"))
    if not isinstance(version, str) or version.lower() != "gemm":
        refuse(name, f"AWQ version {_short(version)} is not read; supported: gemm")
    if config.get("zero_point", True) is not True:
        refuse(name, "AWQ without zero points (zero_point) is not read; supported: true")


def _gptq_format(config: Mapping[str, Any], name: str) -> str:
    stored = config.get("checkpoint_format", config.get("format", "gptq"))
    if stored not in ("gptq", "gptq_v2"):
        refuse(name, f"GPTQ format {_short(stored)} is not read; supported: gptq, gptq_v2")
    for flag in ("is_marlin_format", "use_marlin"):
        if config.get(flag):
            refuse(name, f"GPTQ in Marlin's layout ({flag}) is not read; supported: gptq, gptq_v2")
    overrides = config.get("dynamic") or {}
    if not isinstance(overrides, Mapping):
        refuse(name, f"dynamic must be an object, got {_short(overrides)}")
    changed = [pattern for pattern in overrides if not str(pattern).startswith("-:")]
    if changed:
        refuse(name, f"GPTQ with other bits for some modules (dynamic: {changed[0]}) is not read")
    return str(stored)


def _quantizer(config: Mapping[str, Any]) -> str:
    """What the file says it was written by; empty if nothing."""
    meta = config.get("meta")
    return str(meta.get("quantizer", "")).lower() if isinstance(meta, Mapping) else ""


def dequantised(files: TensorFiles, scheme: Scheme | None) -> TensorFiles:
    """The same tensors with every quantised projection as plain weights; `files` if none is.

    Raises ModelError where the tensors do not fit the scheme, or are packed without one.
    """
    if scheme is not None:
        return DequantisedFiles(files, scheme)
    for name in sorted(files.names()):
        if name.endswith((".qweight", ".weight_packed")):
            raise ModelError(
                f"{files.path}: {name} is quantised, but config.json has no quantization_config "
                f"that says how; {_INSTEAD}"
            )
    return files


class DequantisedFiles(TensorFiles):
    """Tensor files in which every X.qweight, with what belongs to it, appears as X.weight."""

    def __init__(self, files: TensorFiles, scheme: Scheme) -> None:
        self.path = files.path
        self._stored = files
        self._scheme = scheme
        stored = files.names()
        stems = sorted(n.removesuffix(".qweight") for n in stored if n.endswith(".qweight"))
        if not stems:
            raise ModelError(
                f"{self.path}: config.json says {scheme.stored_dtype}, but no tensor is quantised"
            )
        self._packed = {f"{stem}.weight": self._checked(stem, stored) for stem in stems}
        doubled = sorted(set(self._packed) & stored)
        if doubled:
            raise ModelError(f"{self.path}: {doubled[0]} is stored both quantised and plain")
        parts = {part for packed in self._packed.values() for part in packed.parts}
        self._plain = stored - parts

    def names(self) -> set[str]:
        return self._plain | set(self._packed)

    def shape(self, name: str) -> tuple[int, ...]:
        packed = self._packed.get(name)
        if packed is None:
            return self._plain_files(name).shape(name)
        return packed.num_outputs, packed.num_inputs

    def dtype(self, name: str) -> str:
        if name in self._packed:
            return self._scheme.stored_dtype
        return self._plain_files(name).dtype(name)

    def load(self, name: str) -> torch.Tensor:
        """The tensor; a quantised one as float32 [out, in]."""
        packed = self._packed.get(name)
        return self._plain_files(name).load(name) if packed is None else self._dequantise(packed)

    def samples(self, name: str) -> Iterator[bytes]:
        packed = self._packed.get(name)
        if packed is None:
            yield from self._plain_files(name).samples(name)
            return
        for part in packed.parts:
            yield from self._stored.samples(part)

    def files(self) -> list[Path]:
        return self._stored.files()

    def _plain_files(self, name: str) -> TensorFiles:
        if name not in self._plain:
            raise self.lacks(name)
        return self._stored

    def _checked(self, stem: str, stored: set[str]) -> _Packed:
        """The sizes of a projection; ModelError unless all its parts agree on them."""
        for part in self._scheme.plain:
            if f".{part}." in f".{stem}.":
                self._refuse(stem, f"is quantised, but modules_to_not_convert lists {part!r}")
        rows, columns = self._matrix(f"{stem}.qweight", stored, ("int32",))
        per_word = _WORD_BITS // self._scheme.bits
        if self._scheme.method == "awq":
            num_inputs, num_outputs = rows, columns * per_word
        else:
            num_inputs, num_outputs = rows * per_word, columns
        group_size = num_inputs if self._scheme.group_size == -1 else self._scheme.group_size
        num_groups = -(-num_inputs // group_size)
        zeros = self._matrix(f"{stem}.qzeros", stored, ("int32",))
        if zeros != (num_groups, num_outputs // per_word) or num_outputs % per_word:
            self._refuse(stem, f"{num_groups} groups do not fit qzeros of shape {zeros}")
        scales = self._matrix(f"{stem}.scales", stored, FLOAT_DTYPES)
        if scales != (num_groups, num_outputs):
            self._refuse(stem, f"{num_groups} groups do not fit scales of shape {scales}")
        has_index = f"{stem}.g_idx" in stored
        if has_index:
            self._check_index(stem, num_inputs)
        return _Packed(stem, num_inputs, num_outputs, num_groups, group_size, has_index)

    def _check_index(self, stem: str, num_inputs: int) -> None:
        if self._scheme.method == "awq":
            self._refuse(stem, "has a g_idx, which AWQ does not know")
        found = self._stored.dtype(f"{stem}.g_idx"), self._stored.shape(f"{stem}.g_idx")
        if found[0] not in ("int32", "int64") or found[1] != (num_inputs,):
            self._refuse(stem, f"g_idx must be {num_inputs} integers, found {found[0]} {found[1]}")

    def _matrix(self, name: str, stored: set[str], dtypes: tuple[str, ...]) -> tuple[int, int]:
        """Shape of a stored part; ModelError unless it is there, a matrix, and of such a type."""
        if name not in stored:
            raise ModelError(f"{self.path}: missing tensors: {name}")
        shape, dtype = self._stored.shape(name), self._stored.dtype(name)
        if len(shape) != 2 or 0 in shape or dtype not in dtypes:
            raise ModelError(
                f"{self.path}: tensor {name} must be a matrix of {' or '.join(dtypes)}, found "
                f"{dtype} {shape}"
            )
        return shape[0], shape[1]

    def _dequantise(self, packed: _Packed) -> Float32[torch.Tensor, "out in"]:
        load, stem, bits = self._stored.load, packed.stem, self._scheme.bits
        words = load(f"{stem}.qweight")
        if self._scheme.method == "awq":
            weight = _awq_columns(_fields(words, bits)).T
            zeros = _awq_columns(_fields(load(f"{stem}.qzeros"), bits))
        else:
            # [in/8, out, 8] -> [out, in/8, 8]: a word holds neighbouring inputs of one output.
            weight = _fields(words, bits).transpose(0, 1).flatten(1)
            zeros = self._gptq_zeros(stem).flatten(1)
        values = weight.contiguous().float()
        zeros, scales = zeros.T.float(), load(f"{stem}.scales").T.float()
        groups = self._groups(packed)
        if groups is not None:
            return values.sub_(zeros[:, groups]).mul_(scales[:, groups])
        grouped = values.view(packed.num_outputs, packed.num_groups, packed.group_size)
        grouped.sub_(zeros.unsqueeze(-1)).mul_(scales.unsqueeze(-1))
        return values

    def _gptq_zeros(self, stem: str) -> torch.Tensor:
        bits = self._scheme.bits
        words = self._stored.load(f"{stem}.qzeros")
        if not self._scheme.zero_offset:
            return _fields(words, bits)
        if not self._scheme.borrows and bool((_fields(words, bits) == 2**bits - 1).any()):
            self._refuse(
                stem,
                "has zero points of 0, which the format gptq stores so that no two tools read "
                "them alike; use a checkpoint in the format gptq_v2",
            )
        # Added to whole words, it returns what the fields had borrowed from each other.
        one_each = sum(1 << shift for shift in range(0, _WORD_BITS, bits))
        return _fields(words + one_each, bits)

    def _groups(self, packed: _Packed) -> Int64[torch.Tensor, " in"] | None:
        """The group of every input column; None for whole groups one after the other."""
        import torch

        in_order = torch.arange(packed.num_inputs) // packed.group_size
        groups = in_order
        if packed.has_group_index:
            groups = self._stored.load(f"{packed.stem}.g_idx").long()
            if bool(((groups < 0) | (groups >= packed.num_groups)).any()):
                self._refuse(packed.stem, f"g_idx must lie in 0..{packed.num_groups - 1}")
        are_whole = packed.num_inputs == packed.num_groups * packed.group_size
        return None if are_whole and torch.equal(groups, in_order) else groups

    def _refuse(self, stem: str, reason: str) -> NoReturn:
        raise ModelError(f"{self.path}: {stem} ({self._scheme.stored_dtype}) {reason}")


def _fields(words: Int32[torch.Tensor, "rows columns"], bits: int) -> torch.Tensor:
    """The integers in packed words, as uint8 [rows, columns, 32 / bits], lowest bits first."""
    import torch

    # Safetensors and zip archives of PyTorch are little-endian, as is every machine torch runs on.
    octets = words.contiguous().view(torch.uint8).reshape(*words.shape, 4)
    if bits == 8:
        return octets
    return torch.stack((octets & 15, octets >> 4), dim=-1).flatten(2)


def _awq_columns(fields: UInt8[torch.Tensor, "rows words 8"]) -> torch.Tensor:
    """The fields of AWQ's words in the order of the outputs they belong to, [rows, 8 words]."""
    evens_then_odds = fields.reshape(*fields.shape[:2], 2, 4)
    return evens_then_odds.transpose(2, 3).flatten(1)


def _short(value: object) -> str:
    return f"{value!r:.80}"
