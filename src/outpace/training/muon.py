"""Muon: momentum made orthogonal, in the precision that the processor is fast in.

`torch.optim.Muon` iterates in bfloat16 whatever runs it. On a processor without bfloat16 products
that is emulated, and takes more than nine tenths of a training step; here the precision is chosen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, overload

import torch
from jaxtyping import Float
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic a x + b x^3 + c x^5 that pulls singular values towards 1 (Jordan et al. 2024): the
steepest at 0 that keeps them within about 0.7 and 1.2."""
ITERATIONS = 5
SMALLEST_NORM = 1e-7
SIZE_OF_ADAMW = 0.2
"""Root mean square of AdamW's updates, which these are made to have (2502.16982)."""


class Muon(torch.optim.Optimizer):
    """Nesterov momentum of a matrix's gradient, orthogonalised, times 0.2 sqrt(longer side).

    dtype: of the iteration. Parameters must be matrices. Where `dtype` is bfloat16, steps are those
    of `torch.optim.Muon` with `match_rms_adamw` and without weight decay, bit for bit.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 1e-3,
        momentum: float = 0.95,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})
        self._dtype = dtype
        for group in self.param_groups:
            assert all(p.ndim == 2 for p in group["params"]), "only matrices can be orthogonal"

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Change every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group["lr"], group["momentum"])
        return loss

    def _update(self, parameter: Tensor, grad: Tensor, lr: float, momentum: float) -> None:
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(grad)
        buffer = state["momentum_buffer"]
        buffer.lerp_(grad, 1 - momentum)
        update = orthogonalised(grad.lerp(buffer, momentum), self._dtype)
        size = SIZE_OF_ADAMW * math.sqrt(max(parameter.shape))
        parameter.add_(update, alpha=-lr * size)


def orthogonalised(
    matrix: Float[Tensor, "rows columns"], dtype: torch.dtype
) -> Float[Tensor, "rows columns"]:
    """U V^T of its singular value decomposition, about: see `COEFFICIENTS`. In `dtype`."""
    a, b, c = COEFFICIENTS
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.to(dtype, copy=True)
    if is_tall:
        x = x.T  # products of the shorter side with itself are smaller
    x.div_(x.norm().clamp(min=SMALLEST_NORM))
    for _ in range(ITERATIONS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if is_tall else x
