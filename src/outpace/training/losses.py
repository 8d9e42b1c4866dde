"""Losses between a draft's logits and the target's distribution, with their gradients written out.

Rows are judged one by one. p is the target's distribution over the draft vocabulary, q the draft's
(softmax of its logits l), alpha = sum min(p, q) the chance that speculative sampling accepts a
token drawn from q (2211.17192). The gradient with respect to l is computed beside the loss: at a
vocabulary of thousands the logits are most of the work, and are not kept for a second pass.

"kl":     KL(p || q) = sum p log(p / q);             gradient q - p
"ce":     -log q at the target's likeliest token t;  gradient q - [t]
"tv":     1 - alpha;  gradient q (s - [q < p]), s = sum of q where q < p
"hybrid": w KL + (1 - w) TV with w = exp(-3 alpha), w taken as a constant
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from outpace.errors import OptionError

HYBRID_RATE = 3.0


@dataclass(frozen=True)
class Rows:
    """What a loss reads, and writes over: r rows.

    logits, q: [r, V], both free to be used as scratch. p: [r, V], not to be written to.
    column: [r] any index of each row. entropy: [r] of p, float32.
    """

    logits: Float[Tensor, "r V"]
    q: Float[Tensor, "r V"]
    p: Float[Tensor, "r V"]
    column: Int[Tensor, " r"]
    entropy: Float[Tensor, " r"]

    def divergence(self) -> Float[Tensor, " r"]:
        """KL(p || q) of each row."""
        normaliser = log_normaliser(self.logits, self.q, self.column)
        return normaliser - mean_logit(self.logits, self.p) - self.entropy


RowLoss = Callable[[Rows], tuple[Float[Tensor, " r"], Float[Tensor, "r V"]]]
"""Returns (loss in float32, its gradient in the logits' dtype; maybe in the memory of `q`)."""


def kl(rows: Rows) -> tuple[Float[Tensor, " r"], Float[Tensor, "r V"]]:
    return rows.divergence(), rows.q.sub_(rows.p)


def ce(rows: Rows) -> tuple[Float[Tensor, " r"], Float[Tensor, "r V"]]:
    likeliest = rows.p.max(dim=1, keepdim=True).indices
    normaliser = log_normaliser(rows.logits, rows.q, rows.column)
    loss = normaliser - rows.logits.gather(1, likeliest)[:, 0].float()
    return loss, rows.q.scatter_add_(1, likeliest, rows.q.new_full(likeliest.shape, -1.0))


def tv(rows: Rows) -> tuple[Float[Tensor, " r"], Float[Tensor, "r V"]]:
    alpha, gradient = _total_variation(rows.q, rows.p)
    return 1 - alpha, gradient


def hybrid(rows: Rows) -> tuple[Float[Tensor, " r"], Float[Tensor, "r V"]]:
    divergence = rows.divergence()
    alpha, of_tv = _total_variation(rows.q, rows.p)
    w = torch.exp(-HYBRID_RATE * alpha)
    gradient = rows.q.sub_(rows.p).mul_(w[:, None].to(rows.q.dtype))
    gradient += of_tv.mul_((1 - w)[:, None].to(rows.q.dtype))
    return w * divergence + (1 - w) * (1 - alpha), gradient


LOSSES: dict[str, RowLoss] = {"kl": kl, "ce": ce, "tv": tv, "hybrid": hybrid}


def loss_named(name: str) -> RowLoss:
    if name not in LOSSES:
        raise OptionError(f"there is no loss called {name!r}; there are {', '.join(LOSSES)}")
    return LOSSES[name]


def log_normaliser(
    logits: Float[Tensor, "r V"], q: Float[Tensor, "r V"], column: Int[Tensor, " r"]
) -> Float[Tensor, " r"]:
    """log sum exp of each row in float32, from its softmax q: l - log q, at any column."""
    at = column[:, None]
    logit, probability = logits.gather(1, at)[:, 0].float(), q.gather(1, at)[:, 0].float()
    return logit - probability.clamp(min=torch.finfo(torch.float32).tiny).log()


def mean_logit(logits: Float[Tensor, "r V"], p: Float[Tensor, "r V"]) -> Float[Tensor, " r"]:
    """sum p l of each row."""
    products: Tensor = torch.linalg.vecdot(p, logits)
    return products.float()


def _total_variation(
    q: Float[Tensor, "r V"], p: Float[Tensor, "r V"]
) -> tuple[Float[Tensor, " r"], Float[Tensor, "r V"]]:
    """(alpha, gradient of 1 - alpha). Where q < p, alpha grows with q."""
    alpha = torch.minimum(p, q).sum(dim=1, dtype=torch.float32)
    growing = q * (q < p)
    total = growing.sum(dim=1, keepdim=True, dtype=torch.float32)
    return alpha, (q * total.to(q.dtype)).sub_(growing)


class HeadLoss(torch.autograd.Function):
    """Sum over rows of a loss of x @ head^T: an output head and its loss in one.

    Works through `chunk` rows at a time, always in the same memory: what is kept for the way back
    is a gradient for x (and for the head, where it is trained), never the logits.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Float[Tensor, "r H"],
        head: Float[Tensor, "V H"],
        p: Float[Tensor, "m V"],
        entropy: Float[Tensor, " m"],
        labels: Int[Tensor, " m"],
        rows: Int[Tensor, " r"],
        count: int,
        loss: RowLoss,
        chunk: int,
    ) -> tuple[Float[Tensor, ""], Bool[Tensor, " count"]]:
        """p, entropy, labels: of m positions, labels -1 for none; rows: which of them each row of x
        is about (rows past `count`: any). Only the first `count` rows count. Returns (the sum in
        float32, whether a label's logit is the largest of its row)."""
        train_head = ctx.needs_input_grad[1]
        grad_x = torch.empty_like(x)
        grad_head = torch.zeros_like(head, dtype=torch.float32) if train_head else None
        hit = torch.empty(len(x), dtype=torch.bool, device=x.device)
        total = x.new_zeros((), dtype=torch.float32)
        scratch = [x.new_empty(min(chunk, len(x)), len(head)) for _ in range(3)]
        for at in range(0, len(x), chunk):
            part = slice(at, at + chunk)
            index = rows[part].clamp(max=len(p) - 1)
            label = labels[index]
            logits, q, wanted = (buffer[: len(index)] for buffer in scratch)
            torch.mm(x[part], head.t(), out=logits)
            torch.softmax(logits, dim=1, out=q)
            torch.index_select(p, 0, index, out=wanted)
            hit[part] = is_largest(logits, label)
            judged = Rows(logits, q, wanted, label.clamp(min=0), entropy[index])
            values, gradient = loss(judged)
            real = max(count - at, 0)
            total += values[:real].sum()
            gradient[real:] = 0
            torch.mm(gradient, head, out=grad_x[part])
            if grad_head is not None:
                grad_head += gradient.t() @ x[part]
        ctx.save_for_backward(grad_x, grad_head)
        hit = hit[:count]
        ctx.mark_non_differentiable(hit)
        return total, hit

    @staticmethod
    def backward(ctx: Any, grad_total: Tensor, grad_hit: Tensor) -> tuple[Tensor | None, ...]:
        grad_x, grad_head = ctx.saved_tensors
        if grad_head is not None:
            grad_head = (grad_head * grad_total).to(grad_x.dtype)
        grad_x = grad_x * grad_total.to(grad_x.dtype)
        return grad_x, grad_head, None, None, None, None, None, None, None


def is_largest(
    logits: Float[Tensor, "r V"], labels: Int[Tensor, " r"], margin: float = 0.0
) -> Bool[Tensor, " r"]:
    """Whether the logit at each label is its row's largest, or at most `margin` below it; False at
    label -1."""
    at_label = logits.gather(1, labels.clamp(min=0)[:, None])[:, 0]
    return (at_label >= logits.amax(dim=1) - margin) & (labels >= 0)
