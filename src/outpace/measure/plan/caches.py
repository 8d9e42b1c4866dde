"""Keys and values: 2 x layers x kv_heads x head_dim x tokens x bytes x batch."""

from __future__ import annotations

from dataclasses import dataclass

from outpace.measure.plan.sharding import device_kv_heads
from outpace.measure.plan.terms import CACHES, Term


@dataclass(frozen=True, slots=True)
class CacheShape:
    """A cache of keys and values.

    label: whose. item_bytes: of one number. max_len: most tokens that are kept of a sequence.
    num_devices: that share it by heads.
    """

    label: str
    num_layers: int
    num_kv_heads: int
    head_dim: int
    item_bytes: int
    max_len: int
    num_devices: int = 1

    def term(self, batch: int, context: int) -> Term:
        """Bytes for `batch` sequences of up to `context` tokens, in whole blocks of slots as
        `LoadedModel.kv_bytes` counts them. Windows of attention save nothing: rows keep every
        token, so that rolling back cannot lose what a window needs."""
        from outpace.models.attention import padded_capacity

        slots = padded_capacity(min(context, self.max_len))
        per_head = 2 * self.num_layers * self.head_dim * slots * self.item_bytes * batch
        on_device = device_kv_heads(self.num_kv_heads, self.num_devices)
        layers = f"{self.num_layers} layer{'s' if self.num_layers > 1 else ''}"
        formula = (
            f"2 × {layers} × {self.num_kv_heads} KV heads × {self.head_dim} × "
            f"{slots:,} tokens × {self.item_bytes} B × batch {batch:,}"
        )
        return Term(
            CACHES,
            f"{self.label}: keys and values",
            formula,
            per_head * self.num_kv_heads,
            per_head * on_device,
        )
