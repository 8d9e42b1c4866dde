"""Matrices in 8 bits: GGUF's Q8_0 blocks, made here."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float32, UInt8

BLOCK = 32
_LARGEST = 127


def q8_0_blocks(values: Float32[np.ndarray, "out in"]) -> UInt8[np.ndarray, "out nbytes"]:
    """Each run of 32 values along `in` as d (float16) and 32 int8, x = d q: 34 bytes.

    `in` must be a multiple of 32, and values smaller than 8e6.
    """
    out, in_ = values.shape
    assert in_ % BLOCK == 0
    runs = values.reshape(out, in_ // BLOCK, BLOCK)
    scales = (np.abs(runs).max(axis=-1, keepdims=True) / np.float32(_LARGEST)).astype(np.float16)
    # Rounded to the scale that is stored, which may be a little smaller than the exact one.
    steps = scales.astype(np.float32)
    inverse = np.divide(1, steps, out=np.zeros_like(steps), where=steps > 0)
    quants = np.clip(np.rint(runs * inverse), -_LARGEST, _LARGEST).astype(np.int8)
    blocks = np.concatenate([scales.view(np.uint8), quants.view(np.uint8)], axis=-1)
    return blocks.reshape(out, -1)
