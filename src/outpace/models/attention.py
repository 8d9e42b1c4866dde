"""Attention of a ragged batch over the cache, planned once per pass and run once per layer.

Sequences in neighbouring cache rows share one call over a view of the cache (no copy). Two habits
make a token's result independent of what else is in the pass, bit for bit, on the CPU kernels of
torch: the key range is padded to whole blocks, so that the same slots always meet in the same
vector lanes, and the heads that share a key/value head are stacked as queries of it, in tiles that
are never nearly empty.

A sliding window is a mask over the whole row. Rows keep every token, so that neither appending
several tokens nor rolling back can lose what a window needs; a token out of the window costs what
any other does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from outpace.cache import KVCache
from outpace.models.config import ModelConfig

KEY_BLOCK = 256
"""Cache capacities and key ranges are multiples of this many slots: with fewer, the float32 kernel
splits some ranges differently from others (docs/log.md)."""

QUERY_TILE = 32
"""Stacked queries that the CPU kernel takes at a time."""

MAX_SHARED_QUERIES = 16
"""Segments with more new tokens than this (prompt chunks) get a call of their own."""


@dataclass(frozen=True, slots=True)
class Segment:
    """The new tokens of one sequence: `num_tokens` of them, from slot `start` of `row` on.

    parents: None where each token follows the one before it. Otherwise the tokens are nodes of a
    tree and these are their parents' indices among the new tokens, each before its children; -1
    is the last token before the segment. A node sees all that stands before the segment, its
    ancestors and itself.
    """

    row: int
    start: int
    num_tokens: int
    parents: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.parents is not None:
            assert len(self.parents) == self.num_tokens, "a parent for every node"
            assert all(-1 <= p < i for i, p in enumerate(self.parents)), "parents come first"

    @property
    def slots(self) -> slice:
        """The new tokens' slots within their row."""
        return slice(self.start, self.start + self.num_tokens)

    def positions(self) -> list[int]:
        """The position of each new token: one past that of the token it follows."""
        if self.parents is None:
            return list(range(self.start, self.start + self.num_tokens))
        positions: list[int] = []
        for parent in self.parents:
            positions.append(self.start if parent < 0 else positions[parent] + 1)
        return positions

    def ancestors(self) -> Bool[np.ndarray, "n n"]:
        """[i, j]: whether token j is token i or comes before it on its path."""
        if self.parents is None:
            return np.tri(self.num_tokens, dtype=bool)
        seen = np.eye(self.num_tokens, dtype=bool)
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                seen[node] |= seen[parent]
        return seen


def parents_after(num_pending: int, parents: Sequence[int]) -> tuple[int, ...]:
    """`Segment.parents` of `num_pending` tokens of a text and a tree that follows them; parents:
    those of the tree's nodes, -1 for the last token of the text."""
    return (*range(-1, num_pending - 1), *(num_pending + parent for parent in parents))


@dataclass(frozen=True, slots=True)
class _Group:
    """Segments of consecutive rows handled by one call.

    pad/unpad: gather indices between the flat tokens and a [rows, num_queries] rectangle; None
    when all segments have the same number of tokens and no padding is needed.
    masks: by window, [rows, 1, kv_group * num_queries, num_keys], 0 or -inf.
    """

    tokens: slice
    rows: slice
    num_queries: int
    num_keys: int
    masks: dict[int | None, Tensor]
    pad: Int[Tensor, " rq"] | None
    unpad: Int[Tensor, " n"] | None


def padded_capacity(num_tokens: int) -> int:
    """The cache capacity that serves `num_tokens`: rounded up to whole key blocks."""
    return -(-num_tokens // KEY_BLOCK) * KEY_BLOCK


class AttentionPlan:
    """How one pass's queries meet the cache. Built per pass, reused by every layer.

    segments must be ordered by row; their tokens lie one after the other in the flat batch.
    """

    def __init__(self, segments: Sequence[Segment], config: ModelConfig, cache: KVCache) -> None:
        self._cache = cache
        self._kv_group = config.num_attention_heads // config.num_key_value_heads
        self._windows = [kind.window for kind in config.layers]
        self._kernel = _kernel(config)
        self._groups: list[_Group] = []
        first_token = 0
        for members in _neighbours(segments):
            group = self._plan(members, first_token)
            self._groups.append(group)
            first_token = group.tokens.stop

    def __call__(
        self, layer: int, q: Float[Tensor, "n heads head_dim"]
    ) -> Float[Tensor, "n heads_x_dim"]:
        """softmax(scale q k^T) v over each token's own past and itself, as far as the layer's
        window reaches; scores are capped first where the model caps them."""
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
        out = self._kernel(q, k, v, group.masks[self._windows[layer]])
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
            masks=self._masks(members, offset, num_keys),
            pad=pad,
            unpad=unpad,
        )

    def _masks(
        self, members: Sequence[Segment], offset: Int[Tensor, "rows queries"], num_keys: int
    ) -> dict[int | None, Tensor]:
        """One mask per distinct window. Windows that reach back to the first token share one."""
        device = offset.device
        slot = torch.tensor([m.start for m in members], device=device)[:, None] + offset
        visible = torch.arange(num_keys, device=device) <= slot[..., None]
        for row, member in enumerate(members):
            if member.parents is not None:
                seen = torch.from_numpy(member.ancestors()).to(device)
                visible[row, :, member.slots] = seen[offset[row]]
        longest = max(m.start + m.num_tokens for m in members)
        masks: dict[int | None, Tensor] = {}
        for window in dict.fromkeys(self._windows):
            # A window that reaches back to the first token hides nothing.
            reach = window if window is not None and window < longest else None
            if reach not in masks:
                near = (
                    visible if reach is None else visible & _within(reach, members, slot, num_keys)
                )
                masks[reach] = self._mask(near)
            masks[window] = masks[reach]
        return masks

    def _mask(self, visible: Bool[Tensor, "rows queries keys"]) -> Tensor:
        mask = torch.zeros(visible.shape, dtype=self._cache.k.dtype, device=visible.device)
        mask.masked_fill_(~visible, float("-inf"))
        return mask.repeat(1, self._kv_group, 1)[:, None]


def _within(
    window: int, members: Sequence[Segment], slot: Int[Tensor, "rows queries"], num_keys: int
) -> Bool[Tensor, "rows queries keys"]:
    """Whether each key stands fewer than `window` positions before each query, itself at `slot`."""
    position = torch.arange(num_keys, device=slot.device).repeat(len(members), 1)
    for row, member in enumerate(members):
        if member.parents is not None:
            # Nodes of a tree may share a position: windows count those, not slots.
            position[row, member.slots] = torch.tensor(member.positions(), device=slot.device)
    return position[:, None] > (position.gather(1, slot) - window)[..., None]


def _kernel(config: ModelConfig) -> Callable[..., Tensor]:
    """The attention function of a model: (q, k, v, mask) -> output."""
    scale, softcap = config.attention_scale, config.attention_softcap
    if softcap is not None:
        return lambda q, k, v, mask: capped_attention(q, k, v, mask, scale=scale, softcap=softcap)
    return lambda q, k, v, mask: F.scaled_dot_product_attention(q, k, v, mask, scale=scale)


def capped_attention(
    q: Float[Tensor, "rows heads queries dim"],
    k: Float[Tensor, "rows heads keys dim"],
    v: Float[Tensor, "rows heads keys dim"],
    mask: Float[Tensor, "rows 1 queries keys"],
    *,
    scale: float,
    softcap: float,
) -> Float[Tensor, "rows heads queries dim"]:
    """softmax(c tanh(scale q k^T / c) + mask) v (Gemma 2, 2408.00118), scores in float32.

    No fused kernel of torch caps scores. Here nothing fixes the order in which a batched product
    sums a row: below float64, the last bits of a token may depend on what else is in the pass.
    """
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    scores = torch.matmul(q.to(wide), k.to(wide).transpose(-1, -2)).mul_(scale / softcap)
    scores = scores.tanh_().mul_(softcap).add_(mask)
    return torch.matmul(torch.softmax(scores, dim=-1).to(v.dtype), v)


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
