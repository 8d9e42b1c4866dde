"""The key/value cache: one row per sequence, rolled back in place.

A row is two integers, its length and its capacity. Slots at or past the length are garbage and
are never read, so forgetting rejected draft tokens moves no data and allocates nothing.
"""

from __future__ import annotations

import math
import mmap
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor


def common_prefix_len(a: Sequence[int], b: Sequence[int], start: int = 0) -> int:
    """Length of the longest common prefix of `a` and `b`, given that it is at least `start`.

    Gallops over slices: comparing lists slice by slice runs at C speed.
    """
    limit = min(len(a), len(b))
    length, width = start, 16
    while length < limit:
        stop = min(length + width, limit)
        if a[length:stop] == b[length:stop]:
            length, width = stop, width * 2
        elif width == 1:
            break
        else:
            width = max(1, min(width, stop - length) // 2)
    return length


@dataclass(slots=True)
class _Row:
    """What one row holds: the ids fed to its slots, for whom, and when it was last released."""

    token_ids: list[int] = field(default_factory=list)
    salt: str = ""
    is_open: bool = False
    closed_at: int = 0


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros whose pages, on a CPU, are committed only when first written.

    `torch.zeros` touches every page, and numpy asks for huge pages, of which the first tokens of
    a row would commit most; an anonymous mapping does neither.
    """
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    memory = mmap.mmap(-1, math.prod(shape) * dtype.itemsize)
    return torch.frombuffer(memory, dtype=torch.uint8).view(dtype).view(shape)


class CacheRows:
    """Which sequence lives in which row, and the ids that were fed to it. Holds no tensors.

    A closed row keeps its content until it is opened again, so a request whose prompt starts with
    what a closed row holds (a chat's next turn) starts from there. Subclasses keep what a model
    computed for each slot.
    """

    def __init__(self, *, num_rows: int, capacity: int) -> None:
        self.capacity = capacity
        self._rows = [_Row() for _ in range(num_rows)]
        self._clock = 0

    @property
    def num_rows(self) -> int:
        return len(self._rows)

    @property
    def num_free_rows(self) -> int:
        return sum(not row.is_open for row in self._rows)

    @property
    def num_open_tokens(self) -> int:
        """Tokens in the rows that are taken."""
        return sum(len(row.token_ids) for row in self._rows if row.is_open)

    @property
    def num_bytes(self) -> int:
        """Memory that the rows take, or may grow to, in bytes."""
        return 0

    def open(self, token_ids: Sequence[int] = (), salt: str = "") -> tuple[int, int]:
        """Take a free row for a sequence starting with `token_ids`.

        Returns (row, reused): the row already holds the first `reused` of them. Always leaves
        at least the last token to be fed, because feeding it yields the next distribution. Only
        what was fed under the same `salt` is reused: how fast a prompt is processed tells whether
        somebody sent its beginning before.
        """
        wanted = list(token_ids[:-1])
        free = [i for i, row in enumerate(self._rows) if not row.is_open]
        assert free, "open() without a free row"
        reused = {i: self._reusable(self._rows[i], wanted, salt) for i in free}
        # Longest reuse first; otherwise overwrite what has been useless for longest.
        index = max(free, key=lambda i: (reused[i], -self._rows[i].closed_at))
        row = self._rows[index]
        row.is_open, row.salt = True, salt
        self.rollback(index, reused[index])
        return index, reused[index]

    @staticmethod
    def _reusable(row: _Row, wanted: Sequence[int], salt: str) -> int:
        return common_prefix_len(row.token_ids, wanted) if row.salt == salt else 0

    def close(self, row: int) -> None:
        """Release a row. Its content stays readable for prefix reuse until it is opened again."""
        assert self._rows[row].is_open, f"row {row} closed twice"
        self._clock += 1
        self._rows[row].is_open = False
        self._rows[row].closed_at = self._clock

    def length(self, row: int) -> int:
        return len(self._rows[row].token_ids)

    def token_ids(self, row: int) -> Sequence[int]:
        """The ids fed to the row's slots, in order. A live view: do not change it."""
        return self._rows[row].token_ids

    def append(self, row: int, token_ids: Sequence[int]) -> range:
        """Claim the next slots of `row` for `token_ids`; returns their flat slot numbers."""
        start = self.length(row)
        assert self._rows[row].is_open, f"row {row} is closed"
        assert start + len(token_ids) <= self.capacity, "row is full"
        self._rows[row].token_ids.extend(token_ids)
        first = row * self.capacity + start
        return range(first, first + len(token_ids))

    def slots(self, row: int, start: int, count: int) -> range:
        """Flat numbers of `count` slots of `row` from `start` on, over all rows."""
        first = row * self.capacity + start
        return range(first, first + count)

    def rollback(self, row: int, length: int) -> None:
        """Forget everything past the first `length` tokens of `row`."""
        token_ids = self._rows[row].token_ids
        assert 0 <= length <= len(token_ids), f"rollback to {length} of {len(token_ids)}"
        del token_ids[length:]

    def check_integrity(self, open_rows: Sequence[int]) -> None:
        """Raise AssertionError unless exactly `open_rows` are open and all lengths are sane."""
        actual = [i for i, row in enumerate(self._rows) if row.is_open]
        assert actual == sorted(open_rows), f"open rows {actual}, expected {sorted(open_rows)}"
        for index, row in enumerate(self._rows):
            assert len(row.token_ids) <= self.capacity, f"row {index} is longer than its capacity"


class CopyableRows(CacheRows, ABC):
    """Rows that can be copied to one another, and compacted to one path of a tree that was fed."""

    def fork(self, row: int, length: int | None = None) -> int:
        """Open another row with a copy of the first `length` tokens of `row` (None: all), their
        keys and values included; returns it. The two rows are independent from then on.

        What a free row holds of them already is not copied again.
        """
        token_ids, salt = self._rows[row].token_ids[:length], self._rows[row].salt
        copy, reused = self.open([*token_ids, -1], salt)  # open() leaves the last one to be fed
        self.append(copy, token_ids[reused:])
        self._copy_slots(row, copy, reused, len(token_ids))
        return copy

    def keep(self, row: int, start: int, nodes: Sequence[int]) -> None:
        """Of the tokens from slot `start` on keep those at start + nodes[i], moved together.

        nodes: ascending; an accepted path of a tree fed at `start`. The row then ends with them,
        as if the path had been fed as a chain.
        """
        token_ids = self._rows[row].token_ids
        fed = token_ids[start:]
        assert all(a < b for a, b in zip((-1, *nodes), (*nodes, len(fed)), strict=True)), (
            f"nodes {list(nodes)} of {len(fed)} tokens"
        )
        self._move_slots(row, start, nodes)
        token_ids[start:] = [fed[node] for node in nodes]

    @abstractmethod
    def _copy_slots(self, source: int, target: int, begin: int, end: int) -> None:
        """Copy slots begin .. end - 1 of row `source` to row `target`, in all layers."""

    @abstractmethod
    def _move_slots(self, row: int, start: int, nodes: Sequence[int]) -> None:
        """Move slot start + nodes[i] to start + i, in all layers; nodes ascend."""


class KVCache(CopyableRows):
    """Keys and values of `num_rows` sequences over `num_layers` layers.

    k, v: [layers, rows, capacity, kv_heads, head_dim], allocated once; their addresses never
    change. Rollback moves no data.
    """

    def __init__(
        self,
        *,
        num_layers: int,
        num_rows: int,
        capacity: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(num_rows=num_rows, capacity=capacity)
        shape = (num_layers, num_rows, capacity, num_kv_heads, head_dim)
        # Attention reads padded key ranges and masks them; a masked NaN would still poison the
        # sum, so slots never written must be finite.
        self.k = _zeros(shape, dtype, torch.device(device))
        self.v = _zeros(shape, dtype, torch.device(device))
        # Flat views [layers][rows * capacity, kv_heads, head_dim]: one index per fed token.
        self._k_slots = self.k.flatten(1, 2).unbind(0)
        self._v_slots = self.v.flatten(1, 2).unbind(0)

    @property
    def num_bytes(self) -> int:
        return 2 * self.k.numel() * self.k.element_size()

    def _copy_slots(self, source: int, target: int, begin: int, end: int) -> None:
        for slots in (self.k, self.v):
            slots[:, target, begin:end] = slots[:, source, begin:end]

    def _move_slots(self, row: int, start: int, nodes: Sequence[int]) -> None:
        kept = torch.tensor(nodes, dtype=torch.int64, device=self.k.device) + start
        for slots in (self.k, self.v):
            slots[:, row, start : start + len(nodes)] = slots[:, row, kept]

    def write(
        self,
        layer: int,
        slots: Int[Tensor, " n"],
        k: Float[Tensor, "n kv_heads head_dim"],
        v: Float[Tensor, "n kv_heads head_dim"],
    ) -> None:
        """Store keys and values of claimed slots."""
        self._k_slots[layer].index_copy_(0, slots, k)
        self._v_slots[layer].index_copy_(0, slots, v)
