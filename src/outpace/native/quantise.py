"""Matrices in 8 and 4 bits: GGUF's Q8_0 and Q4_1 blocks, made here."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float32, UInt8

BLOCK = 32
_LARGEST_BYTE = 127
_LARGEST_NIBBLE = 15
_REFITS = 3
"""How often the scale and minimum of a 4-bit block are fitted to its quants again."""

_ROWS_AT_ONCE = 1024


def q8_0_blocks(values: Float32[np.ndarray, "out in"]) -> UInt8[np.ndarray, "out nbytes"]:
    """Each run of 32 values along `in` as d (float16) and 32 int8, x = d q: 34 bytes.

    `in` must be a multiple of 32, and values smaller than 8e6.
    """
    runs = _runs(values)
    scales = (np.abs(runs).max(axis=-1, keepdims=True) / np.float32(_LARGEST_BYTE)).astype(
        np.float16
    )
    # Rounded to the scale that is stored, which may be a little smaller than the exact one.
    steps = scales.astype(np.float32)
    quants = np.rint(runs * _inverse(steps)).clip(-_LARGEST_BYTE, _LARGEST_BYTE).astype(np.int8)
    blocks = np.concatenate([scales.view(np.uint8), quants.view(np.uint8)], axis=-1)
    return blocks.reshape(len(values), -1)


def q4_1_blocks(values: Float32[np.ndarray, "out in"]) -> UInt8[np.ndarray, "out nbytes"]:
    """Each run of 32 values along `in` as d, m (float16) and 32 nibbles, x = d q + m: 20 bytes.

    d and m are fitted to the rounded values by least squares, and the values rounded again, as long
    as the squared error shrinks. Byte i holds value i in its low nibble and value i + 16 in its
    high one. `in` must be a multiple of 32, and values smaller than 6e4.
    """
    runs = _runs(values)
    blocks = [
        _nibble_blocks(runs[begin : begin + _ROWS_AT_ONCE])
        for begin in range(0, len(runs), _ROWS_AT_ONCE)
    ]
    return np.concatenate(blocks).reshape(len(values), -1)


def _nibble_blocks(
    runs: Float32[np.ndarray, "rows blocks 32"],
) -> UInt8[np.ndarray, "rows blocks 20"]:
    low, high = runs.min(axis=-1, keepdims=True), runs.max(axis=-1, keepdims=True)
    best = _Rounding(runs, (high - low) / np.float32(_LARGEST_NIBBLE), low)
    for _ in range(_REFITS):
        best.improve(_Rounding(runs, *best.fitted()))
    halves = [half.astype(np.float16).view(np.uint8) for half in (best.steps, best.minimums)]
    nibbles = best.quants.astype(np.uint8)
    packed = nibbles[..., : BLOCK // 2] | nibbles[..., BLOCK // 2 :] << 4
    return np.concatenate([*halves, packed], axis=-1)


class _Rounding:
    """Runs rounded to minimum + step * quant, with what is stored of step and minimum.

    quants: [rows, blocks, 32] in 0 .. 15. steps, minimums, errors (mean squares):
    [rows, blocks, 1].
    """

    def __init__(
        self,
        runs: Float32[np.ndarray, "rows blocks 32"],
        steps: Float32[np.ndarray, "rows blocks 1"],
        minimums: Float32[np.ndarray, "rows blocks 1"],
    ) -> None:
        self._runs = runs
        self.steps, self.minimums = (
            part.astype(np.float16).astype(np.float32) for part in (steps, minimums)
        )
        self.quants = np.rint((runs - self.minimums) * _inverse(self.steps))
        self.quants.clip(0, _LARGEST_NIBBLE, out=self.quants)
        away = self.steps * self.quants + self.minimums - runs
        self.errors = np.square(away).mean(axis=-1, keepdims=True)

    def fitted(self) -> tuple[np.ndarray, np.ndarray]:
        """Steps and minimums that come nearest with these quants."""
        mean_quant = self.quants.mean(axis=-1, keepdims=True)
        mean = self._runs.mean(axis=-1, keepdims=True)
        centred = self.quants - mean_quant
        spread = np.square(centred).sum(axis=-1, keepdims=True)
        steps = (centred * self._runs).sum(axis=-1, keepdims=True) * _inverse(spread)
        return steps, mean - steps * mean_quant

    def improve(self, other: _Rounding) -> None:
        """Take over those blocks of another rounding that are nearer."""
        better = other.errors < self.errors
        for name in ("steps", "minimums", "quants", "errors"):
            setattr(self, name, np.where(better, getattr(other, name), getattr(self, name)))


def _runs(values: Float32[np.ndarray, "out in"]) -> Float32[np.ndarray, "out blocks 32"]:
    out, in_ = values.shape
    assert in_ % BLOCK == 0
    return values.reshape(out, in_ // BLOCK, BLOCK)


def _inverse(steps: Float32[np.ndarray, "rows blocks 1"]) -> Float32[np.ndarray, "rows blocks 1"]:
    """1 / steps, and 0 for 0."""
    inverse: Float32[np.ndarray, "rows blocks 1"] = np.divide(
        1, steps, out=np.zeros_like(steps), where=steps > 0
    )
    return inverse
