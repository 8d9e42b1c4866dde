"""What the target itself would say next, over the draft vocabulary."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from outpace.training.losses import is_largest, log_normaliser, mean_logit

NEAR_TIE = 0.25
"""Logits this close may change places between the pass that wrote an answer and bfloat16 here."""


@dataclass(frozen=True)
class TargetRows:
    """The target's distribution at m positions.

    p: [m, Vd] over the draft vocabulary. entropy: [m] of p, float32. labels: [m] the draft index of
    the token that greedy decoding takes, -1 where the draft vocabulary lacks it.
    """

    p: Float[Tensor, "m Vd"]
    entropy: Float[Tensor, " m"]
    labels: Int[Tensor, " m"]


class TargetHead:
    """The target's final norm and the rows of its output head at the draft vocabulary.

    layer: the captured layer it reads, the last one. weight: [Vd, Ht] in the dtype of products.
    softcap: c of c tanh(x / c) over logits, or None.
    """

    def __init__(
        self,
        *,
        layer: int,
        norm: Float[Tensor, " Ht"],
        eps: float,
        weight: Float[Tensor, "Vd Ht"],
        draft_token_ids: Int[Tensor, " Vd"],
        vocab_size: int,
        softcap: float | None = None,
        chunk: int = 256,
    ) -> None:
        self.layer = layer
        self.weight = weight
        self._norm, self._eps, self._softcap, self._chunk = norm, eps, softcap, chunk
        self.draft_index = torch.full((vocab_size,), -1)
        self.draft_index[draft_token_ids] = torch.arange(len(draft_token_ids))

    def normed(self, features: Float[Tensor, "m Ht"]) -> Float[Tensor, "m Ht"]:
        """Outputs of the last layer through the final norm, float32."""
        return F.rms_norm(features.float(), self._norm.shape, self._norm, self._eps)

    @torch.no_grad()
    def rows(
        self,
        features: Float[Tensor, "m Ht"],
        next_tokens: Int[Tensor, " m"],
        *,
        greedy: bool = False,
    ) -> TargetRows:
        """features: outputs of the last layer. next_tokens: what the answer goes on with.

        A draft is right if it is the token that the target likes best of all. With `greedy` that is
        the answer's own. Otherwise the answer is believed where its token is among the likeliest or
        outside the draft vocabulary; elsewhere it was sampled, and the likeliest token of the draft
        vocabulary stands in.
        """
        x = self.normed(features).to(self.weight.dtype)
        labels = self.draft_index[next_tokens]
        p = x.new_empty(len(x), len(self.weight))
        entropy = torch.empty(len(x))
        logits = x.new_empty(min(self._chunk, len(x)), len(self.weight))
        for at in range(0, len(x), self._chunk):
            part = slice(at, at + self._chunk)
            of_part = logits[: len(x[part])]
            torch.mm(x[part], self.weight.t(), out=of_part)
            if self._softcap is not None:
                of_part.div_(self._softcap).tanh_().mul_(self._softcap)
            torch.softmax(of_part, dim=1, out=p[part])
            column = labels[part].clamp(min=0)
            normaliser = log_normaliser(of_part, p[part], column)
            entropy[part] = normaliser - mean_logit(of_part, p[part])
            if not greedy:
                labels[part] = _corrected(labels[part], of_part)
        return TargetRows(p, entropy, labels)


def _corrected(labels: Int[Tensor, " r"], logits: Float[Tensor, "r Vd"]) -> Int[Tensor, " r"]:
    sampled: Bool[Tensor, " r"] = (labels >= 0) & ~is_largest(logits, labels, NEAR_TIE)
    rows = sampled.nonzero()[:, 0]
    labels = labels.clone()
    labels[rows] = logits[rows].max(dim=1).indices
    return labels
