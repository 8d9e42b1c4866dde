"""Turning queries and keys by their positions, with tables that grow with the cache."""

from __future__ import annotations

import threading

import torch
from jaxtyping import Float, Int
from torch import Tensor

from outpace.models.config import Rope


class Rotation:
    """cos and sin of one `Rope` at every position that a cache made so far can hold.

    Safe to `reach` from several threads: tables only grow, and a longer one starts with the same
    bits.
    """

    def __init__(
        self, rope: Rope, head_dim: int, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        """dtype: the model's. Tables are float32 even for half-precision models, because angles
        at long positions need the digits; a float64 model casts them."""
        self._rope = rope
        self._head_dim = head_dim
        self._dtype = torch.float64 if dtype == torch.float64 else torch.float32
        self._device = device
        self._growing = threading.Lock()
        self._tables = self._computed(0)

    def reach(self, num_positions: int) -> None:
        """Make the tables at least that long. A model may claim any number of positions; only
        those that a cache can hold are worth memory."""
        with self._growing:
            if num_positions > len(self):
                self._tables = self._computed(num_positions)

    def __len__(self) -> int:
        """How many positions the tables hold."""
        return len(self._tables[0])

    def __call__(
        self, positions: Int[Tensor, " n"]
    ) -> tuple[Float[Tensor, "n 1 head_dim"], Float[Tensor, "n 1 half"]]:
        """What `rotate` needs to turn the heads of tokens at these positions."""
        cos, sin = self._tables
        return cos[positions], sin[positions]

    def _computed(
        self, num_positions: int
    ) -> tuple[Float[Tensor, "p 1 head_dim"], Float[Tensor, "p 1 half"]]:
        positions = torch.arange(num_positions, dtype=torch.float32)
        frequencies = torch.tensor(self._rope.frequencies, dtype=torch.float32)
        angles = torch.outer(positions, frequencies)
        cos = (angles.cos() * self._rope.attention_factor).repeat(1, 2)
        sin = angles.sin() * self._rope.attention_factor
        # Channels that do not turn are multiplied by one.
        still = torch.ones(num_positions, self._head_dim - self._rope.dim)
        cos = torch.cat([cos, still], dim=1)
        cos, sin = (t[:, None].to(self._device, self._dtype) for t in (cos, sin))
        return cos, sin


def rotate(
    x: Float[Tensor, "n heads head_dim"],
    cos: Float[Tensor, "#n 1 head_dim"],
    sin: Float[Tensor, "#n 1 half"],
) -> Float[Tensor, "n heads head_dim"]:
    """Rotate pairs (x_i, x_{i + half}) by their angles (RoFormer, half-split layout); channels
    from 2 * half on stay."""
    half = sin.shape[-1]
    out = x * cos
    out[..., :half].addcmul_(x[..., half : 2 * half], sin, value=-1)
    out[..., half : 2 * half].addcmul_(x[..., :half], sin)
    return out.to(x.dtype)
