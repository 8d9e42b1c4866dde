"""Medusa heads computed beside their target: numpy, or the native library's products."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from outpace.errors import ModelError
from outpace.heads.medusa import MedusaCheckpoint, read_medusa
from outpace.heads.products import products_beside
from outpace.heads.shared_head import rms_norm, target_head
from outpace.heads.target_parts import TargetParts

if TYPE_CHECKING:
    from jaxtyping import Float32

    from outpace.heads.products import Product
    from outpace.models.load import LoadedModel


def open_medusa(path: str | Path | None, target: LoadedModel) -> MedusaRunner:
    """Load heads for a target. Raises ModelError where none are given, or they are another's."""
    if path is None:
        raise ModelError(
            f"method 'medusa' drafts with heads trained for {target.name}: give their directory as "
            f"`model` (--speculative-model), made by `outpace train medusa --model {target.name}`"
        )
    parts = TargetParts(target)
    return MedusaRunner(read_medusa(path, parts), parts)


class MedusaRunner:
    """Float32 in host memory in and out. Not safe to call from two threads at a time.

    The network is `heads.medusa.MedusaModule`, its oracle in the tests.
    """

    def __init__(self, checkpoint: MedusaCheckpoint, parts: TargetParts) -> None:
        make_product = products_beside(parts.target)
        self.config = config = checkpoint.config
        self.draft_token_ids = checkpoint.draft_token_ids
        self.feature_layer = parts.num_layers
        self._final_norm, self._eps = parts.final_norm, parts.norm_eps
        arrays = {name: tensor.float().numpy() for name, tensor in checkpoint.tensors.items()}
        heads, layers = range(config.num_heads), range(config.num_layers)
        # Their first layers read the same, and are one product.
        firsts = [arrays[f"blocks.{head}.layers.0.weight"] for head in heads]
        self._first = make_product(np.concatenate(firsts))
        self._later = [
            [make_product(arrays[f"blocks.{head}.layers.{layer}.weight"]) for layer in layers[1:]]
            for head in heads
        ]
        shape = (config.num_layers, config.num_heads, 1, config.hidden_size)
        self._biases = np.zeros(shape, np.float32)
        if config.bias:
            for head in heads:
                for layer in layers:
                    self._biases[layer, head] = arrays[f"blocks.{head}.layers.{layer}.bias"]
        self._lm_heads: list[Product] = [
            make_product(weight.float().numpy()) for weight in checkpoint.lm_heads
        ] or [target_head(parts, self.draft_token_ids, make_product)]

    def logits(
        self, features: Float32[np.ndarray, "n H"], num_heads: int
    ) -> Float32[np.ndarray, "k n Vd"]:
        """Logits of the first `num_heads` heads over the draft vocabulary.

        features: outputs of the target's last layer, before its final norm.
        """
        num_rows, size = features.shape
        x = rms_norm(features, self._final_norm, self._eps)
        product = self._first(x).reshape(num_rows, self.config.num_heads, size)
        hidden = x + _silu(product[:, :num_heads].transpose(1, 0, 2) + self._biases[0, :num_heads])
        for head, products in enumerate(self._later[:num_heads]):
            for product_of, bias in zip(products, self._biases[1:, head], strict=True):
                hidden[head] += _silu(product_of(hidden[head]) + bias)
        if len(self._lm_heads) == 1:
            logits = self._lm_heads[0](hidden.reshape(num_heads * num_rows, size))
            return logits.reshape(num_heads, num_rows, -1)
        return np.stack([head(x) for head, x in zip(self._lm_heads, hidden, strict=False)])


def _silu(x: Float32[np.ndarray, "*n H"]) -> Float32[np.ndarray, "*n H"]:
    with np.errstate(over="ignore"):  # x / inf is the 0 that is meant
        silu: Float32[np.ndarray, "*n H"] = x / (1 + np.exp(-x))
    return silu
