"""The rotation of a head: one that its file can say."""

from __future__ import annotations

import math

from outpace.models.config import Rope
from outpace.models.rope import default_frequencies


def plain_rope(target: Rope, head_dim: int) -> Rope:
    """The rotation of all channels of a head, with the base of a target's rotation.

    A target's may be stretched for long texts, scaled or partial; a head's own need not be, and its
    file has no words for most ways of stretching.
    """
    if plain_theta(target, head_dim) is not None:
        return target
    frequencies = target.frequencies
    theta = 10000.0
    if len(frequencies) > 1:
        # Stretching leaves the fastest channels as they are, or in their ratio; float32 leaves five
        # digits of it.
        theta = float(f"{(frequencies[0] / frequencies[1]) ** len(frequencies):.5g}")
    return Rope(default_frequencies(theta, head_dim))


def plain_theta(rope: Rope, head_dim: int) -> float | None:
    """The base of a rotation of all channels at theta^(-2i/head_dim); None of any other."""
    frequencies, num_pairs = rope.frequencies, head_dim // 2
    if len(frequencies) != num_pairs or rope.attention_factor != 1.0:
        return None
    theta = 10000.0
    if num_pairs > 1:
        # The slowest channel says it with the most digits.
        theta = (frequencies[0] / frequencies[-1]) ** (num_pairs / (num_pairs - 1))
        theta = float(f"{theta:.6g}")
    pairs = zip(frequencies, default_frequencies(theta, head_dim), strict=True)
    return theta if all(math.isclose(a, b, rel_tol=1e-5) for a, b in pairs) else None
