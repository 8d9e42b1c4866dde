"""The decoder layer of an EAGLE head over the columns of a training batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from outpace.models.rotation import Rotation, rotate
from outpace.training.unrolled import Columns, padded_rows
from outpace.training.unrolled_attention import Context, attend, blocks_of

if TYPE_CHECKING:
    from outpace.heads.eagle import EagleModule

FIRST_BLOCK, LATER_BLOCK = 64, 32
"""Queries of a block: at step 0 all chains are alive, later only some of a sequence's."""


@dataclass(frozen=True)
class Living:
    """Chains that take a step, r of them, ascending, and what they start it from.

    chains: [m] indices into `Columns.chains`, padded to m rows. count: r. x: [m, H]; at step 0 that
    of every column. context: None at step 0.
    """

    chains: Int[Tensor, " m"]
    count: int
    x: Float[Tensor, "n H"]
    context: Context | None

    @staticmethod
    def all_of(columns: Columns, x: Float[Tensor, "n H"]) -> Living:
        """At step 0, x: what every column starts from."""
        count = len(columns.chains)
        chains = torch.arange(count, device=columns.chains.device)
        return Living(padded_rows(chains), count, x, None)


class UnrolledLayer:
    """One batch's pass through a head.

    embedding: rows of the target's by token id. max_steps: how many steps a chain takes at most.
    """

    def __init__(
        self,
        module: EagleModule,
        columns: Columns,
        embedding: Float[Tensor, "V H"],
        max_steps: int,
    ) -> None:
        self._module = module
        self._columns = columns
        self._embedding = embedding
        config = module.config
        self._rotation = Rotation(config.rope, config.head_dim, embedding.dtype, "cpu")
        self._rotation.reach(columns.longest + max_steps)

    def step(self, living: Living, s: int) -> tuple[Float[Tensor, "m H"], Context]:
        """Outputs (before the final norm) of step s, and the context it ended with."""
        columns = self._columns
        starts = columns.chains[living.chains]
        if living.context is None:
            return self._first_step(living, starts)
        embedded = self._embedding[columns.token_ids[starts + 1 + s]]
        residual, joined = self._module.joined(living.x, embedded)
        cos, sin = self._rotation(columns.position[starts] + s)
        q, key, value = self._module.qkv(joined)
        context = living.context.with_own(rotate(key, cos, sin), value)
        blocks = blocks_of(columns, starts[: living.count], LATER_BLOCK, q.dtype)
        attended = attend(rotate(q, cos, sin), context, blocks)
        return self._module.output(residual, attended), context

    def _first_step(
        self, living: Living, starts: Int[Tensor, " m"]
    ) -> tuple[Float[Tensor, "m H"], Context]:
        """Step 0: keys and values of all columns, the rest of the layer for the chains only."""
        columns, attention = self._columns, self._module.layer.self_attn
        embedded = self._embedding[columns.token_ids.roll(-1)]
        residual, joined = self._module.joined(living.x, embedded)
        cos, sin = self._rotation(columns.position)
        heads = (-1, self._module.config.head_dim)
        key = rotate(attention.k_proj(joined).unflatten(-1, heads), cos, sin)
        value = attention.v_proj(joined).unflatten(-1, heads)
        context = Context(key.transpose(0, 1).contiguous(), value.transpose(0, 1).contiguous())
        q = attention.q_proj(joined[starts]).unflatten(-1, heads)
        blocks = blocks_of(columns, starts[: living.count], FIRST_BLOCK, q.dtype)
        attended = attend(rotate(q, cos[starts], sin[starts]), context, blocks)
        return self._module.output(residual[starts], attended), context

    def following(
        self,
        living: Living,
        output: Float[Tensor, "m H"],
        context: Context,
        kept: Int[Tensor, " k"],
    ) -> Living:
        """The `kept` rows of a step, k of them, before the next one."""
        rows = padded_rows(kept)
        x = self._module.next_input(output[rows])
        return Living(living.chains[rows], len(kept), x, context.only(rows))
