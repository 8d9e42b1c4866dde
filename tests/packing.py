"""AWQ and GPTQ packers written from the published formats, one integer at a time."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from outpace.models.hf import shards
from outpace.models.hf.quantised import dequantised, read_scheme
from outpace.models.hf.tensor_files import TensorFiles

# Place of an output within its word of eight, in AWQ's GEMM layout.
AWQ_PLACES = {0: 0, 2: 1, 4: 2, 6: 3, 1: 4, 3: 5, 5: 6, 7: 7}


@dataclass(frozen=True)
class Quantised:
    """One projection. integers [out][in], zeros [group][out], scales [group, out], groups [in]."""

    integers: list[list[int]]
    zeros: list[list[int]]
    scales: torch.Tensor
    groups: list[int]

    def weight(self) -> torch.Tensor:
        """The weight [out, in] it stands for, in exact arithmetic, rounded once to float32."""
        scales = self.scales.tolist()
        rows = [
            [
                (value - self.zeros[group][row]) * scales[group][row]
                for value, group in zip(integers, self.groups, strict=True)
            ]
            for row, integers in enumerate(self.integers)
        ]
        return torch.tensor(rows, dtype=torch.float64).float()


def quantised(
    weight: torch.Tensor,
    *,
    bits: int,
    group_size: int,
    generator: torch.Generator,
    act_order: bool = False,
    symmetric: bool = False,
    scale_dtype: torch.dtype = torch.float16,
) -> Quantised:
    """Round a weight [out, in] to integers, group by group; act_order scatters the groups."""
    num_outputs, num_inputs = weight.shape
    size = num_inputs if group_size == -1 else group_size
    num_groups = -(-num_inputs // size)
    groups = [i // size for i in range(num_inputs)]
    if act_order:
        groups = [groups[i] for i in torch.randperm(num_inputs, generator=generator).tolist()]
    top = 2**bits - 1
    spread = 2 * weight.abs().max() / top
    scales = (torch.rand(num_groups, num_outputs, generator=generator) + 0.5) * spread
    scales = scales.to(scale_dtype)
    steps = scales.tolist()
    middle = 2 ** (bits - 1)
    # From 1: one less must not be negative, see `pack_gptq`.
    zeros = torch.randint(1, top + 1, (num_groups, num_outputs), generator=generator).tolist()
    if symmetric:
        zeros = [[middle] * num_outputs for _ in range(num_groups)]
    integers = [
        [
            min(max(round(value / steps[g][o]) + zeros[g][o], 0), top)
            for value, g in zip(row, groups, strict=True)
        ]
        for o, row in enumerate(weight.tolist())
    ]
    return Quantised(integers, zeros, scales, groups)


def pack_awq(stem: str, packed: Quantised) -> dict[str, torch.Tensor]:
    """The tensors of a projection in AWQ's GEMM layout, 4 bits."""

    def words(row: list[int]) -> list[int]:
        found = [0] * (len(row) // 8)
        for column, value in enumerate(row):
            found[column // 8] |= value << 4 * AWQ_PLACES[column % 8]
        return found

    by_input = [list(column) for column in zip(*packed.integers, strict=True)]
    return {
        f"{stem}.qweight": int32([words(row) for row in by_input]),
        f"{stem}.qzeros": int32([words(row) for row in packed.zeros]),
        f"{stem}.scales": packed.scales,
    }


def pack_gptq(
    stem: str, packed: Quantised, bits: int, *, less_one: bool = True, with_index: bool = True
) -> dict[str, torch.Tensor]:
    """The tensors of a projection in GPTQ's layout. less_one: the historic zero points.

    A zero point of 0 less one borrows from the next field, as subtracting words does.
    """
    per_word = 32 // bits

    def word(values: list[int], less: int = 0) -> int:
        return sum((value - less) << bits * place for place, value in enumerate(values)) % 2**32

    integers = packed.integers
    columns = range(len(integers[0]) // per_word)
    starts = range(0, len(packed.zeros[0]), per_word)
    tensors = {
        f"{stem}.qweight": int32(
            [[word(row[c * per_word : (c + 1) * per_word]) for row in integers] for c in columns]
        ),
        f"{stem}.qzeros": int32(
            [[word(row[s : s + per_word], int(less_one)) for s in starts] for row in packed.zeros]
        ),
        f"{stem}.scales": packed.scales,
    }
    if with_index:
        tensors[f"{stem}.g_idx"] = torch.tensor(packed.groups, dtype=torch.int32)
    return tensors


def int32(rows: list[list[int]]) -> torch.Tensor:
    """Unsigned words as the int32 that has their bits."""
    signed = [[word - 2**32 if word >= 2**31 else word for word in row] for row in rows]
    return torch.tensor(signed, dtype=torch.int32)


def awq_config(group_size: int, /, **changes: Any) -> dict[str, Any]:
    values = {
        "quant_method": "awq",
        "bits": 4,
        "group_size": group_size,
        "zero_point": True,
        "version": "gemm",
        "modules_to_not_convert": None,
    }
    return {"quantization_config": values | changes}


def gptq_config(bits: int, group_size: int, /, **changes: Any) -> dict[str, Any]:
    values = {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": group_size,
        "desc_act": False,
        "sym": False,
        "checkpoint_format": "gptq",
    }
    return {"quantization_config": values | changes}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def opened(
    path: Path, tensors: dict[str, torch.Tensor], config: dict[str, Any], **other: torch.Tensor
) -> TensorFiles:
    """The tensors as read back from a file and dequantised."""
    save_file(tensors | other, path / "model.safetensors")
    return dequantised(shards.open_all(path), read_scheme(config))
