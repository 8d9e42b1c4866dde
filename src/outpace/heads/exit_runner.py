"""A trained exit computed beside its target: numpy, or the native library's products."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from outpace.heads.exit import ExitCheckpoint, read_exit
from outpace.heads.products import MakeProduct, Product, products_beside
from outpace.heads.shared_head import rms_norm, target_head
from outpace.heads.target_parts import TargetParts

if TYPE_CHECKING:
    from collections.abc import Sequence as List

    from jaxtyping import Float, Float32
    from torch import Tensor

    from outpace.models.load import LoadedModel


def open_exit(path: str | Path, target: LoadedModel) -> ExitHead:
    """Load a trained exit for a target. Raises ModelError where it does not go with it."""
    parts = TargetParts(target)
    return ExitHead(read_exit(path, parts), parts)


class ExitHead:
    """What follows the exit's layer (an `early_exit.TrainedExit`), in float32 in host memory.

    The network is `heads.exit.ExitModule`, its oracle in the tests.
    """

    def __init__(self, checkpoint: ExitCheckpoint, parts: TargetParts) -> None:
        make_product = products_beside(parts.target)
        self.config = config = checkpoint.config
        self.num_layers = config.exit_layer
        arrays = {name: tensor.float().numpy() for name, tensor in checkpoint.tensors.items()}
        self._norm, self._eps = arrays.pop("norm.weight"), config.rms_norm_eps
        self._residual = _residual(arrays, make_product)
        self._head = target_head(parts, checkpoint.draft_token_ids, make_product)
        # Ids ascend, and rows past `num_logits` are padding that no token has.
        self._num_logits = parts.target.decoder.num_logits
        self._ids = checkpoint.draft_token_ids[checkpoint.draft_token_ids < self._num_logits]

    def draft_logits(self, hidden: Float32[np.ndarray, "r H"]) -> Float32[np.ndarray, "r Vd"]:
        """Logits over the draft vocabulary, padding left out. hidden: outputs of the layer."""
        z = rms_norm(hidden, self._norm, self._eps)
        return self._head(z + self._residual(z))[:, : len(self._ids)]

    def logits(self, hidden: Float[Tensor, "n H"], rows: List[int]) -> Float32[np.ndarray, "r V"]:
        """Logits of some rows over the target's vocabulary; -inf where the draft has no token."""
        logits = self.draft_logits(_on_host(hidden, rows))
        if len(self._ids) == self._num_logits:
            return logits
        spread = np.full((len(rows), self._num_logits), -np.inf, np.float32)
        spread[:, self._ids] = logits
        return spread

    def best(self, hidden: Float[Tensor, "n H"], rows: List[int]) -> list[int]:
        """The likeliest token of some rows, the lowest id among equals."""
        best: list[int] = self._ids[self.draft_logits(_on_host(hidden, rows)).argmax(1)].tolist()
        return best


def _residual(arrays: dict[str, Float32[np.ndarray, "o i"]], make_product: MakeProduct) -> Product:
    """z -> A z."""
    if "linear.weight" in arrays:
        return make_product(arrays["linear.weight"])
    down, up = make_product(arrays["down.weight"]), make_product(arrays["up.weight"])
    return lambda z: up(down(z))


def _on_host(hidden: Float[Tensor, "n H"], rows: List[int]) -> Float32[np.ndarray, "r H"]:
    """Some rows as float32 in host memory. Indexed there where they lie there: a torch operation
    between native passes would cost more than all of this."""
    if hidden.device.type == "cpu" and str(hidden.dtype) == "torch.float32":
        own: Float32[np.ndarray, "r H"] = hidden.numpy()[rows]
        return own
    moved: Float32[np.ndarray, "r H"] = hidden[rows].float().cpu().numpy()
    return moved
