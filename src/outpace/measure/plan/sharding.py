"""What one of several devices holds of a tensor, as engines with tensor parallelism split them.

Matrices are split by rows (query, key, value, gate, up; embedding and output head by vocabulary) or
by columns (attention output, down). Norms, biases of column-split matrices and everything else are
held by every device. Where there are fewer key/value heads than devices, several devices hold the
same head. Shares are rounded up: a plan is for the device with the most.
"""

from __future__ import annotations

from typing import Protocol

from outpace.errors import OptionError

_BY_ROWS = ("q_proj", "gate_proj", "up_proj", "embed_tokens", "lm_head")
_BY_HEADS = ("k_proj", "v_proj")
_BY_COLUMNS = ("o_proj", "down_proj")


class Heads(Protocol):
    """The sizes that decide how a network can be split."""

    @property
    def num_attention_heads(self) -> int: ...

    @property
    def num_key_value_heads(self) -> int: ...

    @property
    def intermediate_size(self) -> int: ...


def ceil_div(value: int, by: int) -> int:
    return -(-value // by)


def device_kv_heads(num_kv_heads: int, num_devices: int) -> int:
    """Key/value heads on each device."""
    return ceil_div(num_kv_heads, num_devices)


def check_split(shape: Heads, num_devices: int, name: str) -> None:
    """Raise OptionError with the sizes unless a network can be split over so many devices."""
    heads, kv_heads = shape.num_attention_heads, shape.num_key_value_heads
    for what, count in (
        ("attention heads", heads),
        ("channels inside the MLP", shape.intermediate_size),
    ):
        if count % num_devices:
            raise OptionError(
                f"{name} has {count} {what}, which cannot be split evenly over {num_devices} "
                f"devices; choose a tensor-parallel size that divides {count}"
            )
    if kv_heads % num_devices and num_devices % kv_heads:
        raise OptionError(
            f"{name} has {kv_heads} key/value heads, which {num_devices} devices can neither share "
            f"out nor replicate evenly; choose a divisor or a multiple of {kv_heads}"
        )


def share(name: str, shape: tuple[int, ...], num_kv_heads: int, n: int) -> tuple[int, ...]:
    """Shape of the part of a tensor, by its name, that each of `n` devices holds at most."""
    module, _, kind = name.rpartition(".")
    stem = module.rpartition(".")[2]
    if stem in _BY_HEADS:
        rows = shape[0] // num_kv_heads * device_kv_heads(num_kv_heads, n)
        return (rows, *shape[1:])
    if stem in _BY_ROWS:
        return (ceil_div(shape[0], n), *shape[1:])
    if stem in _BY_COLUMNS and kind == "weight":
        return (shape[0], ceil_div(shape[1], n))
    return shape
