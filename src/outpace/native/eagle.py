"""EAGLE heads on the native step: models of one layer that draft from what a target knows."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float32

from outpace.native.interface import Choice, RankingStruct
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


class NativeDraft(NamedTuple):
    """What one call drafted, see `NativeEagleModel.draft_chains`."""

    token_ids: list[list[int]]
    q: Float32[np.ndarray, "drawn num_logits"]
    ranked: list[list[tuple[list[int], list[float]]]]


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
        width: int = 0,
    ) -> NativeDraft:
        """All draft steps of all sequences in one call: feed each sequence's pending columns, then
        those of the tokens drafted, but the last.

        pending_ids, start_from: of the pending columns, one sequence after the other; the latter
        hidden states, or target features for `fc` of the head if has_features. width: above 0, and
        at most num_logits, where the likeliest tokens are asked for; of the argmax's chains only.

        Returns the drafted tokens, in the model's vocabulary, and q for each token that was drawn,
        one sequence after the other. With a width also, for each token of each chain, the `width`
        likeliest tokens there, the chain's own first, and their probabilities; else `ranked` is
        empty. Raises ModelError where logits that are drawn from or ranked are not finite.
        """
        assert self.config.eagle is not None or not has_features
        size = self.config.hidden_size
        if has_features and self.config.eagle is not None and self.config.eagle.fc is not None:
            size = self.config.eagle.fc.in_
        check_vector(start_from, len(pending_ids) * size)
        assert sum(chain.num_pending for chain in chains) == len(pending_ids)
        max_steps = max(chain.num_steps for chain in chains)
        # Bytes and ctypes arrays: numpy takes longer for so few numbers, and most of a step's time
        # outside the kernels is code that was pushed out of the caches.
        drafted = (ctypes.c_int32 * (len(chains) * max_steps))()
        num_drawn = sum(chain.num_steps for chain in chains if chain.choice == Choice.DRAWN)
        q = np.empty((num_drawn, self.config.num_logits), np.float32)
        ranking = _Ranking(len(chains) * max_steps, width) if width else None
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
                    None if ranking is None else ctypes.byref(ranking.struct),
                    self._error_address,
                )
            )
        places = [
            range(i * max_steps, i * max_steps + chain.num_steps) for i, chain in enumerate(chains)
        ]
        return NativeDraft(
            [drafted[own.start : own.stop] for own in places],
            q,
            [] if ranking is None else [[ranking.at(place) for place in own] for own in places],
        )


class _Ranking:
    """`op_ranking` and its memory, for a number of draft tokens."""

    def __init__(self, num_tokens: int, width: int) -> None:
        self._token_ids = (ctypes.c_int32 * (num_tokens * width))()
        self._chances = (ctypes.c_float * (num_tokens * width))()
        self._width = width
        self.struct = RankingStruct(
            width, 0, ctypes.addressof(self._token_ids), ctypes.addressof(self._chances)
        )

    def at(self, place: int) -> tuple[list[int], list[float]]:
        own = slice(place * self._width, (place + 1) * self._width)
        return self._token_ids[own], self._chances[own]


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
