"""Q8_0 and Q4_1 blocks made here, against the `gguf` package's and the values they stand for."""

from __future__ import annotations

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind

from outpace.models.gguf.quants import dequantise
from outpace.native.quantise import q4_1_blocks, q8_0_blocks


def restored(blocks: np.ndarray, kind: str = "Q8_0") -> np.ndarray:
    return dequantise(kind, blocks.reshape(-1)).reshape(len(blocks), -1)


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


def test_nibbles_come_closer_than_those_of_the_ends() -> None:
    rng = np.random.default_rng(1)
    scales = 10.0 ** rng.uniform(-2, 2, (50, 1))
    values = (rng.standard_normal((50, 96)) * scales + scales).astype(np.float32)
    blocks = q4_1_blocks(values)
    assert blocks.shape == (50, 3 * 20)

    def errors(restored: np.ndarray) -> np.ndarray:
        return np.square(restored - values).reshape(50, 3, 32).mean(axis=-1)

    ours = errors(restored(blocks, "Q4_1"))
    theirs = errors(restored(gguf.quants.quantize(values, Kind.Q4_1), "Q4_1"))
    # Step and minimum of the ends are where the fit starts.
    assert (ours <= theirs * 1.001).all()
    assert ours.sum() < 0.95 * theirs.sum()


def test_nibbles_of_zeros_and_exact_values_stay() -> None:
    values = np.zeros((3, 64), np.float32)
    values[1, :32] = 0.25 * (np.arange(32) % 16) - 3
    values[2] = 1.5
    assert (restored(q4_1_blocks(values), "Q4_1") == values).all()
