"""EAGLE heads on the native step: models of one layer that draft from what a target knows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float32, Float64, Int32

from outpace.native.library import library
from outpace.native.model import NativeCache, NativeModel
from outpace.native.weights import address, check_ids, check_vector


class Chains(NamedTuple):
    """What the sequences of one call draft, one after the other.

    rows: cache rows. starts: the slot of each one's first pending column. num_pending, num_steps:
    columns to feed, and tokens to draft, at least one of each. temperatures: 0 for the argmax.
    coins: in [0, 1), for each token of the sequences that are sampled.
    """

    rows: Int32[np.ndarray, " seqs"]
    starts: Int32[np.ndarray, " seqs"]
    num_pending: Int32[np.ndarray, " seqs"]
    num_steps: Int32[np.ndarray, " seqs"]
    temperatures: Float32[np.ndarray, " seqs"]
    coins: Float64[np.ndarray, "seqs max_steps"]


class NativeEagleModel(NativeModel):
    """A model whose configuration makes it an EAGLE head (`config.eagle`)."""

    def draft_chains(
        self,
        cache: NativeCache,
        chains: Chains,
        pending_ids: Int32[np.ndarray, " pending"],
        x: Float[np.ndarray, "pending hidden"],
    ) -> tuple[Int32[np.ndarray, "seqs max_steps"], Float32[np.ndarray, "drawn num_logits"]]:
        """All draft steps of all sequences in one call: feed each sequence's pending columns, then
        those of the tokens drafted, but the last.

        Returns the drafted tokens, in the model's vocabulary (-1 past a sequence's num_steps), and
        q for each token that was drawn, one sequence after the other. Raises ModelError where
        logits that are drawn from are not finite.
        """
        rows, starts, num_pending, num_steps, temperatures, coins = chains
        for array in (rows, starts, num_pending, num_steps, pending_ids):
            check_ids(array)
        check_vector(x, len(pending_ids) * self.config.hidden_size)
        num_seqs, max_steps = len(rows), int(num_steps.max())
        assert len(starts) == len(num_pending) == len(num_steps) == num_seqs
        assert int(num_pending.sum()) == len(pending_ids)
        check_vector(temperatures, num_seqs)
        assert coins.dtype == np.float64
        assert coins.flags.c_contiguous
        assert coins.shape == (num_seqs, max_steps)
        drafted = np.full((num_seqs, max_steps), -1, np.int32)
        num_drawn = int(num_steps[temperatures > 0].sum())
        q = np.empty((num_drawn, self.config.num_logits), np.float32)
        with self.pool.lock:
            self._check(
                library().op_eagle_draft(
                    self.pointer,
                    cache.pointer,
                    num_seqs,
                    *map(address, (rows, starts, num_pending, pending_ids, x, num_steps)),
                    *map(address, (temperatures, coins, drafted, q)),
                    self._error_address,
                )
            )
        return drafted, q
