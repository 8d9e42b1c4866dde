"""Frequencies of rotary positions (RoFormer, 2104.09864), and the ways of stretching them.

Every function returns radians per position for each pair of the `dim` channels that turn.
Arguments are positive finite numbers; extreme ones raise ArithmeticError or ValueError,
or yield frequencies that are not finite, which whoever read them from a file must refuse.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def default_frequencies(theta: float, dim: int) -> tuple[float, ...]:
    """theta^(-2i/dim), rounded as `transformers` rounds it.

    Models run, and are compared, with that rounding: in bfloat16 a last bit here can decide between
    two answers that are nearly tied.
    """
    # Not at the top: configurations are read without torch where nothing turns.
    import torch

    exponent = torch.arange(0, dim, 2, dtype=torch.int64).float() / dim
    frequencies: list[float] = (1.0 / theta**exponent).tolist()
    return tuple(frequencies)


def linear_frequencies(theta: float, dim: int, factor: float) -> tuple[float, ...]:
    """Positions squeezed by `factor` (position interpolation, 2306.15595)."""
    return tuple(frequency / factor for frequency in default_frequencies(theta, dim))


def llama3_frequencies(
    theta: float,
    dim: int,
    *,
    factor: float,
    low_freq_factor: float,
    high_freq_factor: float,
    original_len: int,
) -> tuple[float, ...]:
    """Llama 3.1: low frequencies are divided by `factor`, high ones stay, with a ramp between.

    A frequency is high if it turns more than `high_freq_factor` times within the `original_len`
    tokens of pretraining, and low if fewer than `low_freq_factor` times.
    """
    stretched = []
    for frequency in default_frequencies(theta, dim):
        turns = original_len * frequency / (2 * math.pi)
        if turns < low_freq_factor:
            frequency /= factor
        elif turns <= high_freq_factor:
            kept = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor)
            frequency *= (1 - kept) / factor + kept
        stretched.append(frequency)
    return tuple(stretched)


def yarn_frequencies(
    theta: float,
    dim: int,
    *,
    factor: float,
    original_len: int,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    truncate: bool = True,
) -> tuple[float, ...]:
    """YaRN (2309.00071, section 3.2): a ramp between kept and squeezed frequencies.

    Pairs that turn more than `beta_fast` times within `original_len` tokens stay, those that turn
    fewer than `beta_slow` times are divided by `factor`; `truncate` rounds the ramp's ends
    outwards to whole pairs.
    """

    def pair_turning(turns: float) -> float:
        return dim * math.log(original_len / (turns * 2 * math.pi)) / (2 * math.log(theta))

    first, last = pair_turning(beta_fast), pair_turning(beta_slow)
    if truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, dim - 1)
    if first == last:
        last += 0.001
    stretched = []
    for pair, frequency in enumerate(default_frequencies(theta, dim)):
        squeezed = min(max((pair - first) / (last - first), 0.0), 1.0)
        stretched.append(frequency * (squeezed / factor + 1 - squeezed))
    return tuple(stretched)


def yarn_attention_factor(
    factor: float, mscale: float | None = None, mscale_all_dim: float | None = None
) -> float:
    """What YaRN multiplies cosine and sine by (section 3.3), unless the file states it.

    mscale, mscale_all_dim: DeepSeek's variant, a quotient of two such terms; used if both are
    there and neither is 0.
    """
    if mscale and mscale_all_dim:
        return _yarn_term(factor, mscale) / _yarn_term(factor, mscale_all_dim)
    return _yarn_term(factor, 1.0)


def _yarn_term(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def longrope_frequencies(theta: float, dim: int, factors: Sequence[float]) -> tuple[float, ...]:
    """LongRoPE (2402.13753): every pair is divided by a factor of its own, dim / 2 in all."""
    plain = default_frequencies(theta, dim)
    return tuple(frequency / factor for frequency, factor in zip(plain, factors, strict=True))


def longrope_attention_factor(factor: float, original_len: int) -> float:
    """What LongRoPE multiplies cosine and sine by, unless the file states it.

    factor: longest sequence over `original_len`.
    """
    if factor <= 1:
        return 1.0
    return math.sqrt(1 + math.log(factor) / math.log(original_len))
