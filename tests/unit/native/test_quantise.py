"""Q8_0 blocks made here, against the `gguf` package's and the values they stand for."""

from __future__ import annotations

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind

from outpace.models.gguf.quants import dequantise
from outpace.native.quantise import q8_0_blocks


def restored(blocks: np.ndarray) -> np.ndarray:
    return dequantise("Q8_0", blocks.reshape(-1)).reshape(len(blocks), -1)


def test_values_come_back_within_half_a_step() -> None:
    rng = np.random.default_rng(0)
    scales = 10.0 ** rng.uniform(-1, 3, (7, 1))
    values = (rng.standard_normal((7, 96)) * scales).astype(np.float32)
    blocks = q8_0_blocks(values)
    assert blocks.shape == (7, 3 * 34)
    steps = np.abs(values.reshape(7, 3, 32)).max(-1).repeat(32, axis=1) / 127
    # The scale is rounded to float16: what lies at the end of the range may be off by that as well.
    assert (np.abs(restored(blocks) - values) <= 0.5 * steps + 5e-4 * np.abs(values) + 1e-7).all()
    theirs = restored(gguf.quants.quantize(values, Kind.Q8_0))
    ours = restored(blocks)
    assert np.square(ours - values).sum() <= 1.01 * np.square(theirs - values).sum()


def test_zeros_and_exact_values_stay() -> None:
    values = np.zeros((2, 64), np.float32)
    values[1, :32] = 0.5 * np.arange(-127, 128, 8)
    assert (restored(q8_0_blocks(values)) == values).all()
