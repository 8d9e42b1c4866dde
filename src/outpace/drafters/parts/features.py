"""Target features on their way to a head: taken from a pass, and kept until they are fed."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as List

import numpy as np
import torch
from jaxtyping import Float, Float32
from torch import Tensor

from outpace.types import Verdict


class CapturedFeatures:
    """What one pass captured, in host memory, the layers side by side; valid until the next pass.

    hidden: as in `Scores`. Nothing is copied where it lies in host memory as float32; otherwise all
    layers are moved at once.
    """

    def __init__(self, hidden: Mapping[int, Float[Tensor, "n Ht"]], layers: List[int]) -> None:
        states = [hidden[layer] for layer in layers]
        if all(h.dtype == torch.float32 and h.device.type == "cpu" for h in states):
            self._parts = [h.numpy() for h in states]
        else:
            self._parts = [torch.cat(states, dim=1).float().cpu().numpy()]

    def __getitem__(self, rows: slice | List[int]) -> Float32[np.ndarray, "r F"]:
        """The features of some fed tokens; a new array."""
        return np.concatenate([part[rows] for part in self._parts], axis=1)


def committed_rows(fed: slice, rows: slice, verdict: Verdict) -> slice | list[int]:
    """Which of the tokens fed for a sequence are text: all that were no draft, then the accepted.

    fed, rows: the sequence's own in `Scores`. Consecutive ones come as a slice.
    """
    first_node = fed.stop - max(rows.stop - rows.start - 1, 0)
    nodes = verdict.accepted_nodes
    if not nodes or nodes[-1] == len(nodes) - 1:
        return slice(fed.start, first_node + len(nodes))
    return [*range(fed.start, first_node), *(first_node + node for node in nodes)]


class PendingFeatures:
    """Features of consecutive tokens, oldest first: added at the end, taken off the front.

    4 F bytes a token, F the size of a feature. Arrays are shared with copies and never written to.
    """

    def __init__(self, parts: List[Float32[np.ndarray, "n F"]] = ()) -> None:
        self._parts = [part for part in parts if len(part)]
        self._length = sum(len(part) for part in self._parts)

    def __len__(self) -> int:
        return self._length

    def append(self, features: Float32[np.ndarray, "n F"]) -> None:
        if len(features):
            self._parts.append(features)
            self._length += len(features)

    def first(self, count: int) -> list[Float32[np.ndarray, "n F"]]:
        """The `count` oldest, in parts that are to be read one after the other; not taken off."""
        found: list[Float32[np.ndarray, "n F"]] = []
        for part in self._parts:
            if count <= 0:
                break
            found.append(part[:count])
            count -= len(part)
        return found

    def drop(self, count: int) -> None:
        """Take the `count` oldest off."""
        assert count <= self._length, f"{count} of {self._length} features"
        self._length -= count
        num_whole = 0
        for part in self._parts:
            if len(part) > count:
                break
            count -= len(part)
            num_whole += 1
        del self._parts[:num_whole]
        if count:
            self._parts[0] = self._parts[0][count:]
