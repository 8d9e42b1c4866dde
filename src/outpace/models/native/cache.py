"""Keys and values in native memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from outpace.cache import CopyableRows
from outpace.native.model import NativeCache, NativeModel


class NativeRows(CopyableRows):
    """The rows of a `NativeCache`: which sequence lives in which, and the ids fed to it."""

    def __init__(self, model: NativeModel, *, num_rows: int, capacity: int) -> None:
        super().__init__(num_rows=num_rows, capacity=capacity)
        self.memory = NativeCache(model, num_rows, capacity)
        self._num_bytes = NativeCache.num_bytes(model, num_rows, capacity)

    @property
    def num_bytes(self) -> int:
        return self._num_bytes

    def _copy_slots(self, source: int, target: int, begin: int, end: int) -> None:
        self.memory.copy(source, target, begin, end)

    def _move_slots(self, row: int, start: int, nodes: Sequence[int]) -> None:
        self.memory.keep(row, start, np.array(nodes, np.int32))
