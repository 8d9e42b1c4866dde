"""What a native pass captured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import torch
from jaxtyping import Float, Float32
from torch import Tensor


class HostStates(Mapping[int, Tensor]):
    """The residual stream after some layers, in one array; tensors of it are made when asked for.

    Right after a pass, with its code out of the caches, one call of torch costs 10 microseconds.

    layers: ascending. stacked: their rows, [layers, n, hidden].
    """

    def __init__(self, layers: list[int], stacked: Float32[np.ndarray, "layers n hidden"]) -> None:
        self.layers = layers
        self.stacked = stacked

    def __getitem__(self, layer: int) -> Float[Tensor, "n hidden"]:
        if layer not in self.layers:
            raise KeyError(layer)
        return torch.from_numpy(self.stacked[self.layers.index(layer)])

    def __iter__(self) -> Iterator[int]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)
