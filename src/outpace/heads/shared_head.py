"""What heads without layers of their own share: the target's final norm and output head."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from outpace.errors import ModelError
from outpace.heads.files import check_names, check_shape
from outpace.heads.products import MakeProduct, Product

if TYPE_CHECKING:
    from jaxtyping import Float32, Int64
    from torch import Tensor

    from outpace.heads.target_parts import TargetParts


def check_target(parts: TargetParts, draft: str, *, vocab_size: int, hidden_size: int) -> None:
    """Raise ModelError unless a draft of these sizes can read this target.

    Its final norm must be an RMS norm: the bias of a layer norm would be lost.
    """
    for what, ours, theirs in (
        ("vocabulary rows", vocab_size, parts.vocab_size),
        ("hidden channels", hidden_size, parts.hidden_size),
    ):
        if ours != theirs:
            raise ModelError(
                f"{draft} is made for a target with {ours} {what}, and {parts.name} has {theirs}"
            )
    check_final_norm(parts, draft)


def check_final_norm(parts: TargetParts, draft: str) -> None:
    """Raise ModelError unless the target's final norm is an RMS norm."""
    if parts.config.norm != "rms":
        raise ModelError(
            f"{draft} reads its target through an RMS norm, and the final norm of {parts.name} is "
            "a layer norm; use another method"
        )


def check_tensors(
    tensors: Mapping[str, Tensor],
    shapes: Mapping[str, tuple[int, ...]],
    others: Collection[str],
    directory: Path,
) -> None:
    """Raise ModelError unless a draft holds exactly the tensors of its network, in floating point
    and of these shapes, and `others`."""
    check_names(set(tensors), {*shapes, *others}, directory)
    for name, shape in shapes.items():
        check_shape(name, tensors[name], shape, directory)
        if not tensors[name].is_floating_point():
            raise ModelError(
                f"{directory}: {name} is {tensors[name].dtype}, expected floating point"
            )


def target_head(
    parts: TargetParts, draft_token_ids: Int64[np.ndarray, " Vd"], make_product: MakeProduct
) -> Product:
    """The target's own output head at the draft vocabulary: of the whole vocabulary the very
    matrix that the target holds, otherwise a copy of the rows."""
    if len(draft_token_ids) == parts.vocab_size:
        return parts.head_logits
    return make_product(parts.head_rows(draft_token_ids.tolist()))


def rms_norm(
    x: Float32[np.ndarray, "n H"], weight: Float32[np.ndarray, " H"], eps: float
) -> Float32[np.ndarray, "n H"]:
    """weight x / sqrt(mean(x^2) + eps), row by row."""
    mean_square = np.square(x).mean(axis=1, keepdims=True)
    normed: Float32[np.ndarray, "n H"] = x * (weight / np.sqrt(mean_square + np.float32(eps)))
    return normed
