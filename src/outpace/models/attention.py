"""Attention of a ragged batch over the cache, planned once per pass and run once per layer.

Sequences in neighbouring cache rows share one call over a view of the cache (no copy). Two habits
make a token's result independent of what else is in the pass, bit for bit, on the CPU kernels of
torch: the key range is padded to whole blocks, so that the same slots always meet in the same
vector lanes, and the heads that share a key/value head are stacked as queries of it, in tiles that
are never nearly empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from outpace.cache import KVCache

KEY_BLOCK = 256
"""Cache capacities and key ranges are multiples of this many slots: with fewer, the float32 kernel
splits some ranges differently from others (docs/log.md)."""

QUERY_TILE = 32
"""Stacked queries that the CPU kernel takes at a time."""

MAX_SHARED_QUERIES = 16
"""Segments with more new tokens than this (prompt chunks) get a call of their own."""


@dataclass(frozen=True, slots=True)
class Segment:
    """The new tokens of one sequence: `num_tokens` of them, from slot `start` of `row` on."""

    row: int
    start: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class _Group:
    """Segments of consecutive rows handled by one call.

    pad/unpad: gather indices between the flat tokens and a [rows, num_queries] rectangle; None
    when all segments have the same number of tokens and no padding is needed.
    mask: [rows, 1, kv_group * num_queries, num_keys], 0 or -inf.
    """

    tokens: slice
    rows: slice
    num_queries: int
    num_keys: int
    mask: Tensor
    pad: Int[Tensor, " rq"] | None
    unpad: Int[Tensor, " n"] | None


def padded_capacity(num_tokens: int) -> int:
    """The cache capacity that serves `num_tokens`: rounded up to whole key blocks."""
    return -(-num_tokens // KEY_BLOCK) * KEY_BLOCK


class AttentionPlan:
    """How one pass's queries meet the cache. Built per pass, reused by every layer.

    segments must be ordered by row; their tokens lie one after the other in the flat batch.
    """

    def __init__(
        self, segments: Sequence[Segment], num_heads: int, cache: KVCache, dtype: torch.dtype
    ) -> None:
        self._cache = cache
        self._num_heads = num_heads
        self._kv_group = num_heads // cache.k.shape[3]
        self._dtype = dtype
        self._groups: list[_Group] = []
        first_token = 0
        for members in _neighbours(segments):
            group = self._plan(members, first_token)
            self._groups.append(group)
            first_token = group.tokens.stop

    def __call__(
        self, layer: int, q: Float[Tensor, "n heads head_dim"]
    ) -> Float[Tensor, "n heads_x_dim"]:
        """softmax(q k^T / sqrt(head_dim)) v over each token's own past and itself."""
        outputs = [self._attend(layer, q, group) for group in self._groups]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def _attend(
        self, layer: int, q: Float[Tensor, "n heads head_dim"], group: _Group
    ) -> Float[Tensor, "m heads_x_dim"]:
        q = q[group.tokens] if group.pad is None else q[group.tokens].index_select(0, group.pad)
        num_rows, head_dim = group.rows.stop - group.rows.start, q.shape[-1]
        grouped = (num_rows, group.num_queries, -1, self._kv_group, head_dim)
        q = q.view(grouped).permute(0, 2, 3, 1, 4)  # [rows, kv_heads, kv_group, queries, dim]
        q = q.reshape(num_rows, -1, self._kv_group * group.num_queries, head_dim)
        k = self._cache.k[layer, group.rows, : group.num_keys].transpose(1, 2)
        v = self._cache.v[layer, group.rows, : group.num_keys].transpose(1, 2)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=group.mask)
        out = out.view(num_rows, -1, self._kv_group, group.num_queries, head_dim)
        out = out.permute(0, 3, 1, 2, 4).reshape(num_rows * group.num_queries, -1)
        return out if group.unpad is None else out.index_select(0, group.unpad)

    def _whole_tiles(self, num_queries: int) -> int:
        """The query count to run: a few more where the last tile would be too small.

        The CPU kernel takes stacked queries in tiles of QUERY_TILE and sums a tile of very few
        rows in another order; how few depends on the head dimension (measured for 32 to 256).
        """
        fewest = -(-self._cache.k.shape[-1] // 24)
        while 0 < num_queries * self._kv_group % QUERY_TILE < fewest:
            num_queries += 1
        return num_queries

    def _plan(self, members: Sequence[Segment], first_token: int) -> _Group:
        device = self._cache.k.device
        lengths = [m.num_tokens for m in members]
        assert min(lengths) > 0, "a segment without tokens"
        num_queries, num_tokens = self._whole_tiles(max(lengths)), sum(lengths)
        num_keys = min(
            padded_capacity(max(m.start + m.num_tokens for m in members)), self._cache.capacity
        )
        # A padding query repeats its segment's last token: finite, and thrown away.
        query = torch.arange(num_queries, device=device)
        last = torch.tensor(lengths, device=device) - 1
        offset = torch.minimum(query[None], last[:, None])  # [rows, queries]
        position = torch.tensor([m.start for m in members], device=device)[:, None] + offset
        visible = torch.arange(num_keys, device=device) <= position[..., None]
        mask = torch.zeros(visible.shape, dtype=self._dtype, device=device)
        mask.masked_fill_(~visible, float("-inf"))
        pad = unpad = None
        if min(lengths) != num_queries:
            base = torch.cumsum(last + 1, 0) - (last + 1)
            pad = (base[:, None] + offset).flatten()
            unpad = torch.cat(
                [row * num_queries + query[:length] for row, length in enumerate(lengths)]
            )
        return _Group(
            tokens=slice(first_token, first_token + num_tokens),
            rows=slice(members[0].row, members[-1].row + 1),
            num_queries=num_queries,
            num_keys=num_keys,
            mask=mask.repeat(1, self._kv_group, 1)[:, None],
            pad=pad,
            unpad=unpad,
        )


def _neighbours(segments: Sequence[Segment]) -> list[list[Segment]]:
    """Split into runs of consecutive rows with few new tokens each; long segments stay alone."""
    groups: list[list[Segment]] = []
    for segment in segments:
        previous = groups[-1][-1] if groups else None
        joins = (
            previous is not None
            and previous.row + 1 == segment.row
            and max(previous.num_tokens, segment.num_tokens) <= MAX_SHARED_QUERIES
        )
        if joins:
            groups[-1].append(segment)
        else:
            groups.append([segment])
    return groups
