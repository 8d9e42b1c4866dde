"""Dequantisation of ggml's block formats, exact in float32.

A tensor's rows are cut into blocks of 32 or 256 consecutive values; d and m are float16, bytes are
listed in stored order. Blocks of 32, whose byte i holds value i in its low and value i + 16 in its
high nibble, a fifth bit being bit i of a little-endian 32-bit word h:
    Q8_0    d, 32 int8 q                     x = d q
    Q4_0    d, 16 bytes q                    x = d (q - 8)
    Q4_1    d, m, 16 bytes q                 x = d q + m
    Q5_0    d, h, 16 bytes q                 x = d (q - 16)
    Q5_1    d, m, h, 16 bytes q              x = d q + m
    IQ4_NL  d, 16 bytes q                    x = d t[q], t the table of sixteen levels below
Blocks of 256 are cut again into groups of 16 or 32 values with small integers s and t as scales:
    Q2_K    16 bytes (s low, t high nibble), 64 bytes q, d, m           x = d s q - m t
    Q3_K    32 bytes h, 64 bytes q, 12 bytes of 16 six-bit s, d         x = d (s - 32) (q - 4 + 4 h)
    Q4_K    d, m, 12 bytes of 8 six-bit s and t, 128 bytes q            x = d s q - m t
    Q5_K    d, m, 12 bytes as in Q4_K, 32 bytes h, 128 bytes q          x = d s q - m t
    Q6_K    128 bytes q, 64 bytes h, 16 int8 s, d                       x = d s (q - 32)
    IQ4_XS  d, 8 high parts of s in 16 bits, 4 bytes of low parts, 128 bytes q   x = d (s - 32) t[q]
Within those, 32 bytes (64 in Q6_K) hold as many values in their lowest bits, then the next ones in
the bits above, and so on; only IQ4_XS orders its nibbles as blocks of 32 do.

Products are taken in the order written, so that results equal ggml's and the `gguf` package's.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Float, Float32, UInt8

Blocks = UInt8[np.ndarray, "B nbytes"]
Values = Float32[np.ndarray, "B n"]

# Values dequantised at a time: bounds the temporaries, and keeps them in the processor's cache.
_CHUNK = 1 << 17
_NONLINEAR_LEVELS = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32
)


def dequantise(type_name: str, raw: UInt8[np.ndarray, " nbytes"]) -> Float[np.ndarray, " N"]:
    """The values of a tensor stored as `type_name` (one of DEQUANTISERS), float32, newly allocated.

    raw: whole blocks. Temporaries stay below a few megabytes whatever the size of the tensor.
    """
    block_len, block_bytes, function = DEQUANTISERS[type_name]
    blocks = raw.reshape(-1, block_bytes)
    values = np.empty((len(blocks), block_len), np.float32)
    step = max(1, _CHUNK // block_len)
    # Scales of a damaged file may be infinite or NaN; the values then are, as in ggml.
    with np.errstate(invalid="ignore", over="ignore"):
        for start in range(0, len(blocks), step):
            function(blocks[start : start + step], values[start : start + step])
    return values.reshape(-1)


def _f32(blocks: Blocks, out: Values) -> None:
    out[:] = blocks.view("<f4")


def _f16(blocks: Blocks, out: Values) -> None:
    out[:] = blocks.view("<f2")


def _bf16(blocks: Blocks, out: Values) -> None:
    out[:] = (blocks.view("<u2").astype(np.uint32) << 16).view(np.float32)


def _q8_0(blocks: Blocks, out: Values) -> None:
    np.multiply(blocks[:, 2:].view(np.int8), _half(blocks, 0), out=out, dtype=np.float32)


def _q4_0(blocks: Blocks, out: Values) -> None:
    _split_nibbles(blocks[:, 2:], out)
    out -= 8
    out *= _half(blocks, 0)


def _q4_1(blocks: Blocks, out: Values) -> None:
    _split_nibbles(blocks[:, 4:], out)
    out *= _half(blocks, 0)
    out += _half(blocks, 2)


def _q5_0(blocks: Blocks, out: Values) -> None:
    _split_nibbles(blocks[:, 6:], out)
    out += _word_bits(blocks[:, 2:6]) * np.float32(16)
    out -= 16
    out *= _half(blocks, 0)


def _q5_1(blocks: Blocks, out: Values) -> None:
    _split_nibbles(blocks[:, 8:], out)
    out += _word_bits(blocks[:, 4:8]) * np.float32(16)
    out *= _half(blocks, 0)
    out += _half(blocks, 2)


def _iq4_nl(blocks: Blocks, out: Values) -> None:
    out[:, :16] = _NONLINEAR_LEVELS[blocks[:, 2:] & 15]
    out[:, 16:] = _NONLINEAR_LEVELS[blocks[:, 2:] >> 4]
    out *= _half(blocks, 0)


def _q2_k(blocks: Blocks, out: Values) -> None:
    scales, quants = blocks[:, :16], blocks[:, 16:80]
    groups = out.reshape(-1, 16, 16)
    out[:] = _layers(quants, 32, 2).reshape(out.shape)
    groups *= (_half(blocks, 80) * (scales & 15))[..., None]
    groups -= (_half(blocks, 82) * (scales >> 4))[..., None]


def _q3_k(blocks: Blocks, out: Values) -> None:
    high, quants, packed = blocks[:, :32], blocks[:, 32:96], blocks[:, 96:108]
    low_scales = _layers(packed[:, :8], 8, 4).reshape(-1, 16)
    high_scales = _layers(packed[:, 8:], 4, 2).reshape(-1, 16)
    scales = (low_scales | high_scales << 4).astype(np.float32) - 32
    out[:] = _layers(quants, 32, 2).reshape(out.shape)
    out -= 4 * (_layers(high, 32, 1).reshape(out.shape) ^ 1)
    groups = out.reshape(-1, 16, 16)
    groups *= (_half(blocks, 108) * scales)[..., None]


def _q4_k(blocks: Blocks, out: Values) -> None:
    out[:] = _layers(blocks[:, 16:], 32, 4).reshape(out.shape)
    _scale_and_shift(blocks, out)


def _q5_k(blocks: Blocks, out: Values) -> None:
    out[:] = _layers(blocks[:, 48:], 32, 4).reshape(out.shape)
    out += 16 * _layers(blocks[:, 16:48], 32, 1).reshape(out.shape)
    _scale_and_shift(blocks, out)


def _q6_k(blocks: Blocks, out: Values) -> None:
    low = _layers(blocks[:, :128], 64, 4).reshape(out.shape)
    high = _layers(blocks[:, 128:192], 32, 2).reshape(out.shape)
    out[:] = low | high << 4
    out -= 32
    groups = out.reshape(-1, 16, 16)
    groups *= (_half(blocks, 208) * blocks[:, 192:208].view(np.int8))[..., None]


def _iq4_xs(blocks: Blocks, out: Values) -> None:
    high = blocks[:, 2:4].view("<u2") >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    low = blocks[:, 4:8, None] >> np.array([0, 4], np.uint8) & 15
    scales = (low.reshape(-1, 8) | high << 4).astype(np.float32) - 32
    quants = blocks[:, 8:].reshape(-1, 8, 16)
    groups = out.reshape(-1, 8, 32)
    groups[..., :16] = _NONLINEAR_LEVELS[quants & 15]
    groups[..., 16:] = _NONLINEAR_LEVELS[quants >> 4]
    groups *= (_half(blocks, 0) * scales)[..., None]


def _half(blocks: Blocks, start: int) -> Float32[np.ndarray, "B 1"]:
    return blocks[:, start : start + 2].view("<f2").astype(np.float32)


def _split_nibbles(packed: UInt8[np.ndarray, "B 16"], out: Values) -> None:
    out[:, :16] = packed & 15
    out[:, 16:] = packed >> 4


def _word_bits(word: UInt8[np.ndarray, "B 4"]) -> UInt8[np.ndarray, "B 32"]:
    return np.unpackbits(word, axis=1, bitorder="little")


def _layers(packed: Blocks, run: int, bits: int) -> UInt8[np.ndarray, "B parts layers run"]:
    """Every `run` bytes hold 8 / bits layers of `run` values, the first in the lowest bits."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    parts = packed.reshape(len(packed), -1, 1, run)
    return parts >> shifts & np.uint8((1 << bits) - 1)


def _scale_and_shift(blocks: Blocks, out: Values) -> None:
    """x = d s q - m t for eight groups of 32 (Q4_K and Q5_K), q being in `out`.

    Of 12 bytes, the first four hold s[0:4] in six bits, the next four t[0:4]; their top two bits
    are those of s[4:8] and t[4:8], whose low nibbles share the last four bytes.
    """
    first, second, third = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = np.concatenate([first & 63, third & 15 | first >> 2 & 48], axis=1)
    shifts = np.concatenate([second & 63, third >> 4 | second >> 2 & 48], axis=1)
    groups = out.reshape(-1, 8, 32)
    groups *= (_half(blocks, 0) * scales)[..., None]
    groups -= (_half(blocks, 2) * shifts)[..., None]


# Name -> values per block, bytes per block, function that fills float32 [B, values per block].
DEQUANTISERS: dict[str, tuple[int, int, Callable[[Blocks, Values], None]]] = {
    "F32": (1, 4, _f32),
    "F16": (1, 2, _f16),
    "BF16": (1, 2, _bf16),
    "Q8_0": (32, 34, _q8_0),
    "Q4_0": (32, 18, _q4_0),
    "Q4_1": (32, 20, _q4_1),
    "Q5_0": (32, 22, _q5_0),
    "Q5_1": (32, 24, _q5_1),
    "IQ4_NL": (32, 18, _iq4_nl),
    "Q2_K": (256, 84, _q2_k),
    "Q3_K": (256, 110, _q3_k),
    "Q4_K": (256, 144, _q4_k),
    "Q5_K": (256, 176, _q5_k),
    "Q6_K": (256, 210, _q6_k),
    "IQ4_XS": (256, 136, _iq4_xs),
}
