"""Target features on their way to a head: taken from a pass, and kept until they are fed."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as List

import numpy as np
import torch
from jaxtyping import Float, Float32
from torch import Tensor

from outpace.models.native.states import HostStates
from outpace.types import Verdict

MOST_WASTE = 4
"""Times its own size that a part of an array may keep in memory, or about so."""


class CapturedFeatures:
    """What one pass captured, in host memory.

    hidden: as in `Scores`. Of what a native pass captured, which is nobody else's, nothing is
    copied, and no code of torch is run; otherwise all layers are moved to the host at once.
    """

    def __init__(self, hidden: Mapping[int, Float[Tensor, "n Ht"]], layers: List[int]) -> None:
        self._stacked: Float32[np.ndarray, "layers n Ht"]
        if isinstance(hidden, HostStates) and hidden.layers == layers:
            self._stacked = hidden.stacked
        else:
            self._stacked = torch.stack([hidden[layer] for layer in layers]).float().cpu().numpy()

    def __getitem__(self, rows: slice | List[int]) -> Float32[np.ndarray, "r F"]:
        """The features of some fed tokens; a new array."""
        return np.concatenate(list(self._stacked[:, rows]), axis=1)

    def keep(
        self, rows: slice | List[int], begin: int, end: int
    ) -> Float32[np.ndarray, "layers r Ht"]:
        """The features of the fed tokens rows[begin:end], layer by layer, to be kept but not to be
        written to. 0 <= begin < end."""
        if isinstance(rows, slice):
            part = self._stacked[:, rows.start + begin : min(rows.start + end, rows.stop)]
        else:
            part = self._stacked[:, rows[begin:end]]
        return part if MOST_WASTE * part.size >= self._stacked.size else part.copy()


def committed_rows(fed: slice, rows: slice, verdict: Verdict) -> slice | list[int]:
    """Which of the tokens fed for a sequence are text: all that were no draft, then the accepted.

    fed, rows: the sequence's own in `Scores`. Consecutive ones come as a slice.
    """
    first_node = fed.stop - max(rows.stop - rows.start - 1, 0)
    nodes = verdict.nodes
    if nodes is None or not nodes or nodes[-1] == len(nodes) - 1:
        return slice(fed.start, first_node + verdict.num_accepted)
    return [*range(fed.start, first_node), *(first_node + node for node in nodes)]


class FeatureQueue:
    """Features of consecutive tokens, oldest first: added at the end, taken off the front, of which
    the newest one can be put back.

    About 4 F bytes a token, F the size of a feature. Arrays are shared with copies of a queue and
    never written to; nothing is joined until it is asked for, since most steps only add.
    """

    def __init__(self) -> None:
        self._parts: list[Float32[np.ndarray, "layers n Ht"]] = []
        self._length = 0
        self._dropped: Float32[np.ndarray, "layers 1 Ht"] | None = None

    def __len__(self) -> int:
        return self._length

    def add(self, features: Float32[np.ndarray, "layers n Ht"]) -> None:
        if num := features.shape[1]:
            self._parts.append(features)
            self._length += num

    def first(self, count: int) -> Float32[np.ndarray, "count F"]:
        """The `count` oldest, the layers side by side, or all; not taken off."""
        parts = self._first_parts(count)
        joined = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
        return joined.swapaxes(0, 1).reshape(joined.shape[1], -1)

    def share(self, count: int, queue: FeatureQueue) -> None:
        """Add the `count` oldest, or all, to another queue."""
        for part in self._first_parts(count):
            queue.add(part)

    def share_dropped(self, queue: FeatureQueue) -> None:
        """Add the one taken off last to another queue, if there is one."""
        if self._dropped is not None:
            queue.add(self._dropped)

    def drop(self, count: int) -> None:
        """Take the `count` oldest off."""
        assert count <= self._length, f"{count} of {self._length} features"
        self._length -= count
        while count:
            part = self._parts[0]
            taken = min(count, part.shape[1])
            count -= taken
            self._dropped = part[:, taken - 1 : taken]
            if taken < part.shape[1]:
                self._parts[0] = part[:, taken:]
            else:
                del self._parts[0]
            # Not all of a long prompt for the sake of its last token.
            if part.shape[1] > MOST_WASTE:
                self._dropped = self._dropped.copy()

    @property
    def can_put_back(self) -> bool:
        return self._dropped is not None

    def put_back(self) -> None:
        """Undo taking off the newest one; not twice."""
        assert self._dropped is not None, "nothing was taken off"
        self._parts.insert(0, self._dropped)
        self._length += 1
        self._dropped = None

    def _first_parts(self, count: int) -> list[Float32[np.ndarray, "layers n Ht"]]:
        found = []
        for part in self._parts:
            if count <= 0:
                break
            found.append(part[:, :count])
            count -= part.shape[1]
        return found
