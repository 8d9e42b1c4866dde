"""Rotary positions of a GGUF file: a base, a scaling, and factors that are stored as tensors.

Where a scaling holds up to a length only, what is returned ends there, as in `hf_rope`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from outpace.models import rope
from outpace.models.config import MAX_INTEGER, Rope, is_finite, is_integer, positive, refuse

LoadTensor = Callable[[str], Sequence[float]]

# Tensors that belong to the configuration.
FREQUENCY_FACTORS = "rope_freqs.weight"
LONG_FACTORS, SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"
ROPE_TENSORS = (FREQUENCY_FACTORS, LONG_FACTORS, SHORT_FACTORS)

_LOCAL_THETA = 10000.0  # of Gemma 3's layers with a window; files leave it to the architecture
_NEUTRAL = {
    "rope.scaling.yarn_ext_factor": 1.0,
    "rope.scaling.yarn_attn_factor": 1.0,
    "rope.scaling.yarn_log_multiplier": 0.0,
    "rope.scaling.alpha": 0.0,
}


def shortest(value: Any) -> Any:
    """A number kept as float32, as the decimal its author wrote: the shortest that rounds to it."""
    if not is_finite(value) or abs(value) > float(np.finfo(np.float32).max):
        return value
    single = np.float32(value)
    return float(str(single)) if float(single) == value else value


class RopeReader:
    """Reads the rotary positions of one file.

    values: metadata of the file's architecture, without `prefix`. load: reads a one-dimensional
        tensor of the file; None if there is nothing to read from.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        tensor_shapes: Mapping[str, tuple[int, ...]],
        prefix: str,
        name: str,
        load: LoadTensor | None,
    ) -> None:
        self._values = values
        self._shapes = tensor_shapes
        self._prefix = prefix
        self._name = name
        self._load = load

    def read(self, head_dim: int, max_len: int) -> tuple[Rope, int]:
        """The rotation, and the most tokens it is valid for (`max_len` or another).

        Raises ModelError for a scaling that is unknown, bad or contradicts the tensors.
        """
        for key, neutral in _NEUTRAL.items():
            if self._values.get(key, neutral) != neutral:
                refuse(self._name, f"{self._prefix}{key} = {self._values[key]!r} is not supported")
        dim = self._turning_dim(head_dim)
        theta = positive(self._name, "rope_theta", self._number("rope.freq_base", 10000.0))
        try:
            return self._checked(*self._scaled(theta, dim, max_len))
        except (ArithmeticError, ValueError) as error:
            refuse(self._name, f"the rotary positions have no frequencies ({error})")

    def read_local(self, head_dim: int, default_theta: float = _LOCAL_THETA) -> Rope:
        """The rotation of layers with a window, which no scaling touches."""
        theta = positive(
            self._name, "rope.freq_base_swa", self._number("rope.freq_base_swa", default_theta)
        )
        dim = self._turning_dim(head_dim)
        try:
            return self._checked(rope.default_frequencies(theta, dim), 1.0, 0)[0]
        except (ArithmeticError, ValueError) as error:
            refuse(self._name, f"the rotary positions have no frequencies ({error})")

    def _scaled(self, theta: float, dim: int, max_len: int) -> tuple[tuple[float, ...], float, int]:
        kind, factor = self._kind()
        present = [tensor for tensor in ROPE_TENSORS if tensor in self._shapes]
        if present == [LONG_FACTORS, SHORT_FACTORS] and kind in ("none", "longrope"):
            original = self._original_len(max_len)
            factors = self._factors(SHORT_FACTORS, dim)
            attention_factor = self._number(
                "rope.scaling.attn_factor",
                rope.longrope_attention_factor(max_len / original, original),
            )
            frequencies = rope.longrope_frequencies(theta, dim, factors)
            return frequencies, attention_factor, min(max_len, original)
        if present == [FREQUENCY_FACTORS] and kind == "none":
            factors = self._factors(FREQUENCY_FACTORS, dim)
            return rope.longrope_frequencies(theta, dim, factors), 1.0, max_len
        if present:
            refuse(self._name, f"{', '.join(present)} with rope scaling {kind!r} is not supported")
        if kind == "none":
            return rope.default_frequencies(theta, dim), 1.0, max_len
        if kind == "linear":
            return rope.linear_frequencies(theta, dim, factor), 1.0, max_len
        if kind == "yarn":
            return self._yarn(theta, dim, factor, max_len)
        refuse(
            self._name,
            f"rope scaling {kind!r} is not supported; supported: none, linear, yarn, and longrope "
            "with its factors",
        )

    def _yarn(
        self, theta: float, dim: int, factor: float, max_len: int
    ) -> tuple[tuple[float, ...], float, int]:
        original = self._original_len(max_len)
        frequencies = rope.yarn_frequencies(
            theta,
            dim,
            factor=factor,
            original_len=original,
            beta_fast=positive(
                self._name, "beta_fast", self._number("rope.scaling.yarn_beta_fast", 32.0)
            ),
            beta_slow=positive(
                self._name, "beta_slow", self._number("rope.scaling.yarn_beta_slow", 1.0)
            ),
        )
        # llama.cpp multiplies the paper's factor by the stated one instead of replacing it.
        stated = positive(
            self._name, "rope.scaling.attn_factor", self._number("rope.scaling.attn_factor", 1.0)
        )
        attention_factor = stated * rope.yarn_attention_factor(factor)
        return frequencies, attention_factor, max(max_len, int(min(original * factor, MAX_INTEGER)))

    def _kind(self) -> tuple[str, float]:
        """The scaling's name and factor. A factor without a name is linear, and 0 is none."""
        kind = self._values.get("rope.scaling.type", "linear")
        factor = self._number("rope.scaling.factor", self._number("rope.scale_linear", 0.0))
        if not isinstance(kind, str):
            refuse(self._name, f"{self._prefix}rope.scaling.type must be text, got {kind!r}")
        if kind == "linear" and factor in (0, 1):
            return "none", 1.0
        if kind in ("linear", "yarn"):
            factor = positive(self._name, f"{self._prefix}rope.scaling.factor", factor)
        return kind, factor

    def _original_len(self, max_len: int) -> int:
        key = "rope.scaling.original_context_length"
        original = self._values.get(key, max_len)
        if not is_integer(original) or not 1 <= original <= MAX_INTEGER:
            refuse(self._name, f"{self._prefix}{key} must be positive, got {original!r}")
        return int(original)

    def _factors(self, tensor: str, dim: int) -> Sequence[float]:
        shape = self._shapes[tensor]
        if shape != (dim // 2,):
            refuse(self._name, f"{tensor} must have shape ({dim // 2},), found {shape}")
        if self._load is None:
            refuse(self._name, f"{tensor} is needed for the configuration and cannot be read")
        factors = [shortest(factor) for factor in self._load(tensor)]
        if not all(is_finite(factor) and factor > 0 for factor in factors):
            refuse(self._name, f"{tensor} must hold positive finite numbers")
        return factors

    def _turning_dim(self, head_dim: int) -> int:
        dim = self._values.get("rope.dimension_count", head_dim)
        if not is_integer(dim) or dim % 2 or not 2 <= dim <= head_dim:
            refuse(
                self._name,
                f"{self._prefix}rope.dimension_count ({dim!r}) must be even and at most the head "
                f"size {head_dim}",
            )
        return int(dim)

    def _checked(
        self, frequencies: tuple[float, ...], attention_factor: float, max_len: int
    ) -> tuple[Rope, int]:
        if not all(is_finite(frequency) and frequency > 0 for frequency in frequencies):
            refuse(self._name, "the rotary positions yield frequencies that are not positive")
        factor = positive(self._name, "rope.scaling.attn_factor", attention_factor)
        return Rope(frequencies, factor), max_len

    def _number(self, key: str, default: float) -> Any:
        return shortest(self._values.get(key, default))
