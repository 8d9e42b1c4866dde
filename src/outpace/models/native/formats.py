"""Names that users give to what the native step computes with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from outpace.errors import OptionError
from outpace.native.interface import Activations, KVType, WeightFormat

T = TypeVar("T")

PACKED: Mapping[str, WeightFormat] = {
    "Q4_0": WeightFormat.Q4_0,
    "Q4_1": WeightFormat.Q4_1,
    "Q8_0": WeightFormat.Q8_0,
}
"""GGUF's types that stay packed, by the name that a checkpoint gives them."""

PACKED_DTYPES = tuple(name.lower() for name in PACKED)

WHOLE: Mapping[str, WeightFormat] = {"float32": WeightFormat.F32, "bfloat16": WeightFormat.BF16}
"""Formats that any checkpoint can be converted to, by dtype."""

KV_CACHE_DTYPES: Mapping[str, KVType] = {"float32": KVType.F32, "bfloat16": KVType.BF16}

ACTIVATIONS: Mapping[str, Activations] = {
    "bfloat16": Activations.BF16,
    "int16": Activations.INT16,
    "int8": Activations.INT8,
}

AUTO_ACTIVATIONS: Mapping[WeightFormat, str] = {
    WeightFormat.Q4_0: "int16",
    WeightFormat.Q4_1: "int16",
    WeightFormat.Q8_0: "int16",
}
"""What activations="auto" means for a model most of whose projections have this format."""


def dtype_name(weight_format: WeightFormat) -> str:
    """What a dtype option calls a format."""
    names = {kind: name for name, kind in WHOLE.items()}
    return names.get(weight_format) or weight_format.name.lower()


@dataclass(frozen=True, slots=True)
class NativeOptions:
    """What only the native step can be told. Raises OptionError for a value it does not know.

    kv_cache_dtype: what keys and values are kept in; "auto": float32 with float32 weights, else
        bfloat16.
    activations: what activations are rounded to before they meet packed weights; "auto": see
        AUTO_ACTIVATIONS.
    """

    kv_cache_dtype: str = "auto"
    activations: str = "auto"

    def __post_init__(self) -> None:
        for name, choices in (("kv_cache_dtype", KV_CACHE_DTYPES), ("activations", ACTIVATIONS)):
            value = getattr(self, name)
            if not isinstance(value, str) or value not in ("auto", *choices):
                raise OptionError(f"{name} must be auto, {', '.join(choices)}, got {value!r}")

    def refuse_given(self, reason: str) -> None:
        """Raise OptionError if anything was asked for of a model that runs otherwise.

        reason: why it does, as a clause.
        """
        for name in ("kv_cache_dtype", "activations"):
            value = getattr(self, name)
            if value != "auto":
                raise OptionError(
                    f"{name}={value!r} is an option of the native step, which does not run this "
                    f"model: {reason}; leave it out"
                )

    def kv_type(self, weight_format: WeightFormat) -> KVType:
        if self.kv_cache_dtype != "auto":
            return KV_CACHE_DTYPES[self.kv_cache_dtype]
        return KVType.F32 if weight_format == WeightFormat.F32 else KVType.BF16

    def rounding(self, weight_format: WeightFormat) -> Activations:
        """Activations with weights of that format. Raises OptionError where none were to choose:
        float32 weights always meet float32 and bfloat16 weights bfloat16."""
        if weight_format in AUTO_ACTIVATIONS:
            asked = self.activations
            return ACTIVATIONS[AUTO_ACTIVATIONS[weight_format] if asked == "auto" else asked]
        if self.activations != "auto":
            raise OptionError(
                f"activations={self.activations!r} is an option of packed weights; these are "
                f"{dtype_name(weight_format)}, whose activations are too: leave it out"
            )
        return Activations.BF16
