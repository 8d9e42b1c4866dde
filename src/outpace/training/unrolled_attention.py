"""Attention of chains to the columns before them and to their own earlier steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from outpace.training.unrolled import KEYS, Columns


@dataclass(frozen=True)
class Context:
    """Keys and values that the queries of r chains see, in the layout that products want.

    keys, values: [kv, M, d] of all columns. own_keys, own_values: [r, s, kv, d] steps 1..s of each
    query's own chain; None at step 0.
    """

    keys: Float[Tensor, "kv M d"]
    values: Float[Tensor, "kv M d"]
    own_keys: Float[Tensor, "r s kv d"] | None = None
    own_values: Float[Tensor, "r s kv d"] | None = None

    def only(self, rows: Int[Tensor, " r"]) -> Context:
        """The context of some of the queries."""
        if self.own_keys is None or self.own_values is None:
            return self
        return replace(self, own_keys=self.own_keys[rows], own_values=self.own_values[rows])

    def with_own(self, key: Float[Tensor, "r kv d"], value: Float[Tensor, "r kv d"]) -> Context:
        """With one more entry of each query's own chain."""
        key, value = key[:, None], value[:, None]
        if self.own_keys is not None and self.own_values is not None:
            key = torch.cat([self.own_keys, key], dim=1)
            value = torch.cat([self.own_values, value], dim=1)
        return replace(self, own_keys=key, own_values=value)


@dataclass(frozen=True)
class Block:
    """Up to `size` consecutive queries of one sequence, and the columns they are held against.

    rows: of the queries. columns: from the sequence's first one, a multiple of `KEYS`; what lies
    behind a query's own column, in its sequence or the next, is hidden from it. bias: [size, n] 0
    where a query may look, -inf elsewhere.
    """

    rows: slice
    columns: slice
    size: int
    bias: Float[Tensor, "size n"]


def blocks_of(
    columns: Columns, chain_columns: Int[Tensor, " r"], size: int, dtype: torch.dtype
) -> list[Block]:
    """Blocks that cover queries whose chains started at `chain_columns` (ascending)."""
    blocks: list[Block] = []
    end = 0
    for start, count in zip(columns.starts, columns.rows_of_sequences(chain_columns), strict=False):
        begin, end = end, end + count
        for first in range(begin, end, size):
            rows = slice(first, min(first + size, end))
            last_seen = chain_columns[rows] - start
            num_keys = -(-(int(last_seen[-1]) + 1) // KEYS) * KEYS
            # Rows that fill the block up look at one column: a softmax over nothing is nan.
            last = last_seen.new_zeros(size)
            last[: len(last_seen)] = last_seen
            hidden = torch.arange(num_keys, device=last.device) > last[:, None]
            bias = torch.zeros(size, num_keys, dtype=dtype, device=last.device)
            bias.masked_fill_(hidden, float("-inf"))
            blocks.append(Block(rows, slice(start, start + num_keys), size, bias))
    return blocks


def attend(
    q: Float[Tensor, "r heads d"], context: Context, blocks: list[Block]
) -> Float[Tensor, "r channels"]:
    """softmax(q k^T / sqrt(d)) v; zeros for queries that are in no block."""
    num_rows, num_heads, head_dim = q.shape
    num_kv = context.keys.shape[0]
    grouped = (q * head_dim**-0.5).view(num_rows, num_kv, num_heads // num_kv, head_dim)
    out: Tensor = _Attend.apply(  # type: ignore[no-untyped-call]
        grouped, context.keys, context.values, context.own_keys, context.own_values, blocks
    )
    return out.view(num_rows, num_heads * head_dim)


class _Attend(torch.autograd.Function):
    """Block by block, so that no weight of a column behind a query is computed or kept, beyond
    rounding up; the way back is FlashAttention's (2205.14135, appendix B), with stored weights."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Float[Tensor, "r kv g d"],
        keys: Float[Tensor, "kv M d"],
        values: Float[Tensor, "kv M d"],
        own_keys: Float[Tensor, "r s kv d"] | None,
        own_values: Float[Tensor, "r s kv d"] | None,
        blocks: list[Block],
    ) -> Float[Tensor, "r kv g d"]:
        out = torch.zeros_like(q)
        own_scores = None if own_keys is None else _against_own(q, own_keys)
        own_weights = None if own_scores is None else torch.zeros_like(own_scores)
        kept = []
        for block in blocks:
            stacked = _stacked(q, block)
            scores = torch.bmm(stacked, keys[:, block.columns].transpose(1, 2))
            scores = scores.view(*q.shape[1:3], *block.bias.shape).add_(block.bias)
            num_keys = scores.shape[-1]
            if own_scores is not None:
                own = _stacked(own_scores, block).view(*scores.shape[:3], -1)
                scores = torch.cat([scores, own], dim=-1)
            weights = torch.softmax(scores, dim=-1)
            if own_weights is not None:
                own_weights[block.rows] = _unstacked(weights[..., num_keys:], block)
            weights = weights[..., :num_keys].reshape(len(stacked), -1, num_keys)
            mixed = torch.bmm(weights, values[:, block.columns])
            out[block.rows] = _unstacked(mixed.view(*q.shape[1:3], block.size, -1), block)
            kept.append(weights)
        if own_weights is not None and own_values is not None:
            out += _mixed_own(own_weights, own_values)
        ctx.save_for_backward(q, keys, values, own_keys, own_values, own_weights, out, *kept)
        ctx.blocks = blocks
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        q, keys, values, own_keys, own_values, own_weights, out, *kept = ctx.saved_tensors
        grad_out = grad_out.contiguous()
        # sum over what a query sees of weight * gradient of weight
        mean = (grad_out * out).sum(dim=-1, keepdim=True)
        grad_q = torch.zeros_like(q)
        grad_keys = torch.zeros_like(keys, dtype=torch.promote_types(keys.dtype, torch.float32))
        grad_values = torch.zeros_like(grad_keys)
        for block, weights in zip(ctx.blocks, kept, strict=True):
            stacked, grads = _stacked(q, block), _stacked(grad_out, block)
            grad_values[:, block.columns] += torch.bmm(weights.transpose(1, 2), grads)
            grad_scores = torch.bmm(grads, values[:, block.columns].transpose(1, 2))
            grad_scores.sub_(_stacked(mean, block)).mul_(weights)
            grad_keys[:, block.columns] += torch.bmm(grad_scores.transpose(1, 2), stacked)
            of_block = torch.bmm(grad_scores, keys[:, block.columns])
            of_block = of_block.view(*q.shape[1:3], block.size, -1)
            grad_q[block.rows] = _unstacked(of_block, block)
        grad_own_keys = grad_own_values = None
        if own_weights is not None:
            grad_own_scores = own_weights * (_against_own(grad_out, own_values) - mean)
            grad_q += _mixed_own(grad_own_scores, own_keys)
            grad_own_keys = _to_own(grad_own_scores, q)
            grad_own_values = _to_own(own_weights, grad_out)
        grad_keys, grad_values = grad_keys.to(keys.dtype), grad_values.to(values.dtype)
        return grad_q, grad_keys, grad_values, grad_own_keys, grad_own_values, None


def _stacked(x: Float[Tensor, "r kv g d"], block: Block) -> Float[Tensor, "kv rows d"]:
    """A block's rows, one query head of a group after the other, filled up with zeros."""
    part = x[block.rows]
    stacked = x.new_zeros(*x.shape[1:3], block.size, x.shape[3])
    stacked[:, :, : len(part)] = part.permute(1, 2, 0, 3)
    return stacked.view(x.shape[1], -1, x.shape[3])


def _unstacked(x: Float[Tensor, "kv g size d"], block: Block) -> Float[Tensor, "n kv g d"]:
    """A block's real rows, back in their order."""
    return x[:, :, : block.rows.stop - block.rows.start].permute(2, 0, 1, 3)


def _against_own(
    x: Float[Tensor, "r kv g d"], own: Float[Tensor, "r s kv d"]
) -> Float[Tensor, "r kv g s"]:
    """Dot products of each head with its chain's own entries."""
    return (x[:, :, :, None] * own.transpose(1, 2)[:, :, None]).sum(dim=-1)


def _mixed_own(
    weights: Float[Tensor, "r kv g s"], own: Float[Tensor, "r s kv d"]
) -> Float[Tensor, "r kv g d"]:
    return (weights[..., None] * own.transpose(1, 2)[:, :, None]).sum(dim=3)


def _to_own(
    weights: Float[Tensor, "r kv g s"], x: Float[Tensor, "r kv g d"]
) -> Float[Tensor, "r s kv d"]:
    """What a group's heads give to each own entry."""
    return (weights[..., None] * x[:, :, :, None]).sum(dim=2).transpose(1, 2)
