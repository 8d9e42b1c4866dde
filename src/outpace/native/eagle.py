"""EAGLE heads on the native step: models of one layer that draft from what a target knows."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float32

from outpace.native.interface import Choice
from outpace.native.library import library
from outpace.native.model import NativeCache, NativeModel
from outpace.native.weights import address, check_vector


class Chain(NamedTuple):
    """`op_chain`: what one sequence of a call drafts.

    row: in the cache. start: the slot of its first pending column. num_pending, num_steps: columns
    to feed, and tokens to draft, at least one of each. choice: how tokens are chosen; temperature:
    above 0, but for the argmax. noise: for each token a coin in [0, 1) where it is drawn, a key of
    64 bits where it is raced.
    """

    row: int
    start: int
    num_pending: int
    num_steps: int
    choice: Choice = Choice.BEST
    temperature: float = 0.0
    noise: Sequence[float] = ()


class NativeEagleModel(NativeModel):
    """A model whose configuration makes it an EAGLE head (`config.eagle`)."""

    def draft_chains(
        self,
        cache: NativeCache,
        chains: Sequence[Chain],
        pending_ids: Sequence[int],
        start_from: Float[np.ndarray, "pending size"],
        *,
        has_features: bool = False,
    ) -> tuple[list[list[int]], Float32[np.ndarray, "drawn num_logits"]]:
        """All draft steps of all sequences in one call: feed each sequence's pending columns, then
        those of the tokens drafted, but the last.

        pending_ids, start_from: of the pending columns, one sequence after the other; the latter
        hidden states, or target features for `fc` of the head if has_features.

        Returns the drafted tokens, in the model's vocabulary, and q for each token that was drawn,
        one sequence after the other. Raises ModelError where logits that are drawn from are not
        finite.
        """
        assert self.config.eagle is not None or not has_features
        width = self.config.hidden_size
        if has_features and self.config.eagle is not None and self.config.eagle.fc is not None:
            width = self.config.eagle.fc.in_
        check_vector(start_from, len(pending_ids) * width)
        assert sum(chain.num_pending for chain in chains) == len(pending_ids)
        max_steps = max(chain.num_steps for chain in chains)
        # Bytes and ctypes arrays: numpy takes longer for so few numbers, and most of a step's time
        # outside the kernels is code that was pushed out of the caches.
        drafted = (ctypes.c_int32 * (len(chains) * max_steps))()
        num_drawn = sum(chain.num_steps for chain in chains if chain.choice == Choice.DRAWN)
        q = np.empty((num_drawn, self.config.num_logits), np.float32)
        with self.pool.lock:
            self._check(
                library().op_eagle_draft(
                    self.pointer,
                    cache.pointer,
                    len(chains),
                    struct.pack("=" + "5if" * len(chains), *(n for c in chains for n in c[:6])),
                    struct.pack(f"={len(pending_ids)}i", *pending_ids),
                    address(start_from),
                    has_features,
                    _noise(chains, max_steps),
                    drafted,
                    address(q),
                    self._error_address,
                )
            )
        return [
            drafted[i * max_steps : i * max_steps + chain.num_steps]
            for i, chain in enumerate(chains)
        ], q


def _noise(chains: Sequence[Chain], max_steps: int) -> bytes | None:
    """`op_noise` of all tokens; None where every token is the argmax."""
    if all(chain.choice == Choice.BEST for chain in chains):
        return None
    parts = []
    for chain in chains:
        kind = "Q" if chain.choice == Choice.RACED else "d"
        noise = [] if chain.choice == Choice.BEST else chain.noise[: chain.num_steps]
        parts.append(struct.pack(f"={len(noise)}{kind}{8 * (max_steps - len(noise))}x", *noise))
    return b"".join(parts)
