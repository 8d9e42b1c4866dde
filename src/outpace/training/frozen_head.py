"""What trainees share that learn to speak through the target's own output head."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from outpace.training.losses import HeadLoss, RowLoss
from outpace.training.targets import TargetHead, TargetRows

if TYPE_CHECKING:
    from jaxtyping import Int64

    from outpace.heads.target_parts import TargetParts

CHUNK = 256
"""Rows of draft logits at a time."""


def frozen_head(
    parts: TargetParts, draft_token_ids: Int64[np.ndarray, " Vd"], dtype: torch.dtype
) -> TargetHead:
    """The target's final norm and head at the draft vocabulary. dtype: of products."""
    rows = torch.from_numpy(np.array(parts.head_rows(draft_token_ids.tolist()), np.float32))
    return TargetHead(
        layer=parts.num_layers,
        norm=torch.from_numpy(np.array(parts.final_norm, np.float32)),
        eps=parts.norm_eps,
        weight=rows.to(dtype),
        draft_token_ids=torch.from_numpy(draft_token_ids),
        vocab_size=parts.vocab_size,
        softcap=parts.config.final_softcap,
    )


def judge(
    x: Float[Tensor, "r H"],
    head: TargetHead,
    target_rows: TargetRows,
    rows: Int[Tensor, " r"],
    count: int,
    loss: RowLoss,
) -> tuple[Float[Tensor, ""], Bool[Tensor, " count"]]:
    """The sum of the losses of the logits of x, and which of them put the right token first.

    rows: which of `target_rows` each row of x guesses. count: rows past it do not count.
    """
    judged: tuple[Tensor, Tensor] = HeadLoss.apply(  # type: ignore[no-untyped-call]
        x,
        head.weight,
        target_rows.p,
        target_rows.entropy,
        target_rows.labels,
        rows,
        count,
        loss,
        CHUNK,
    )
    return judged


def groups_by_shape(
    module: torch.nn.Module, *, matrix_lr: float, vector_lr: float
) -> list[dict[str, Any]]:
    """A module's parameters as `Trainee.parameter_groups` wants them: matrices and vectors."""
    parameters = list(module.parameters())
    return [
        {"params": [p for p in parameters if p.ndim == 2], "kind": "matrix", "lr": matrix_lr},
        {"params": [p for p in parameters if p.ndim == 1], "kind": "vector", "lr": vector_lr},
    ]
