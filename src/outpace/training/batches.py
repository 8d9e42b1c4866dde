"""Which sequences make up which batch: a function of the seed and the step alone."""

from __future__ import annotations

from collections.abc import Sequence as List
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from outpace.errors import OptionError

if TYPE_CHECKING:
    from outpace.training.store import FeatureStore


class Batches:
    """Batches of about `tokens_per_step` answer tokens, every epoch in another order.

    Step n of a run is the same batch whenever it is asked for, so that a resumed run needs to
    remember nothing but n. Raises OptionError for a store without a sequence to train on.
    """

    def __init__(self, store: FeatureStore, tokens_per_step: int, seed: int) -> None:
        self._tokens_per_step, self._seed = tokens_per_step, seed
        self._indices = training_indices(store)
        self._answer_tokens = {i: store.num_tokens(i) - store.num_prompt(i) for i in self._indices}
        if not self._indices:
            raise OptionError("there is no sequence to train on: all of them are held out")
        self.num_tokens = sum(self._answer_tokens.values())
        """Answer tokens of an epoch."""
        self.per_epoch = len(self._epoch(0))
        """Batches of an epoch, about: of the first one."""

    def at(self, epoch: int, position: int) -> list[int] | None:
        """Indices of the sequences of a batch; None past the end of the epoch."""
        batches = self._epoch(epoch)
        return batches[position] if position < len(batches) else None

    def tokens(self, indices: List[int]) -> int:
        """Answer tokens of a batch."""
        return sum(self._answer_tokens[i] for i in indices)

    @lru_cache(maxsize=2)  # noqa: B019 - lives as long as the run
    def _epoch(self, epoch: int) -> list[list[int]]:
        rng = np.random.default_rng((self._seed, epoch))
        batches: list[list[int]] = []
        filled = self._tokens_per_step
        for at in rng.permutation(len(self._indices)):
            index = self._indices[at]
            if filled >= self._tokens_per_step:
                batches.append([])
                filled = 0
            batches[-1].append(index)
            filled += self._answer_tokens[index]
        return batches


def training_indices(store: FeatureStore) -> list[int]:
    return [i for i in range(len(store)) if not store.is_held_out(i)]


def held_out_indices(store: FeatureStore, most: int) -> list[int]:
    """At most `most` held-out sequences, spread over all of them.

    Greedy answers only, if there are any: teacher forcing tells what greedy decoding would accept
    exactly there, because the answer's tokens are the target's argmax.
    """
    held_out = [i for i in range(len(store)) if store.is_held_out(i)]
    greedy = [i for i in held_out if store.temperature(i) == 0]
    chosen = greedy or held_out
    if len(chosen) <= most:
        return chosen
    at = np.linspace(0, len(chosen) - 1, most).round().astype(int)
    return [chosen[i] for i in at]
