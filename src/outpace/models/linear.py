"""Matrix products whose cost hardly depends on the number of rows.

Checking K+1 tokens pays only if a pass over K+1 rows costs about what one row costs. An ordinary
`F.linear` on a CPU charges 1.3-2x for a handful of rows; weights repacked once for oneDNN's
blocked layout do not. Other devices use `F.linear`.
"""

from __future__ import annotations

from typing import Protocol, cast, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

# oneDNN blocks a weight for the row count it is told to expect. These choices serve 1..16 rows at
# one price, and with them a row's bits do not depend on how many rows stand beside it: both were
# found by measuring (docs/measuring.md).
EXPECTED_ROWS = {torch.float32: 8, torch.bfloat16: 1}
# Beyond this many rows oneDNN changes its bfloat16 blocking.
MAX_ROWS = {torch.float32: 1 << 30, torch.bfloat16: 128}


@runtime_checkable
class Linear(Protocol):
    """y = x W^T + b (+ residual), rows independent of one another."""

    def __call__(
        self, x: Float[Tensor, "n i"], residual: Float[Tensor, "n o"] | None = None
    ) -> Float[Tensor, "n o"]: ...


class PlainLinear:
    """`F.linear`, for devices and dtypes without prepacked kernels."""

    def __init__(self, weight: Float[Tensor, "o i"], bias: Float[Tensor, " o"] | None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(
        self, x: Float[Tensor, "n i"], residual: Float[Tensor, "n o"] | None = None
    ) -> Float[Tensor, "n o"]:
        y = F.linear(x, self._weight, self._bias)
        return y if residual is None else y + residual


def min_rows(dtype: torch.dtype, device: torch.device) -> int:
    """The fewest rows that take the kernel for several rows.

    A single row takes a matrix-vector kernel, which sums in another order, except in bfloat16 on
    processors with tiles (AMX).
    """
    if device.type != "cpu" or dtype not in EXPECTED_ROWS:
        return 1
    return 1 if dtype == torch.bfloat16 and torch.cpu._is_amx_tile_supported() else 2


class PrepackedLinear:
    """oneDNN on weights in its own blocked layout; the residual is added inside the kernel."""

    def __init__(self, weight: Float[Tensor, "o i"], bias: Float[Tensor, " o"] | None) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(
            weight.contiguous(), EXPECTED_ROWS[weight.dtype]
        )
        self._bias = bias
        self._min_rows = min_rows(weight.dtype, weight.device)
        self._max_rows = MAX_ROWS[weight.dtype]

    def __call__(
        self, x: Float[Tensor, "n i"], residual: Float[Tensor, "n o"] | None = None
    ) -> Float[Tensor, "n o"]:
        n = x.shape[0]
        if n < self._min_rows:
            x = x.repeat(self._min_rows, 1)
            residual = None if residual is None else residual.repeat(self._min_rows, 1)
            return self._product(x, residual)[:n]
        if n > self._max_rows:
            parts = [slice(i, i + self._max_rows) for i in range(0, n, self._max_rows)]
            return torch.cat([self(x[p], None if residual is None else residual[p]) for p in parts])
        return self._product(x, residual)

    def _product(self, x: Tensor, residual: Tensor | None) -> Tensor:
        kernel = torch.ops.mkldnn._linear_pointwise
        if residual is None:
            return cast(Tensor, kernel(x, self._weight, self._bias, "none", [], ""))
        return cast(Tensor, kernel.binary(x, residual, self._weight, self._bias, "add"))


def make_linear(weight: Float[Tensor, "o i"], bias: Float[Tensor, " o"] | None = None) -> Linear:
    """The fastest Linear for the weight's device and dtype."""
    mkldnn = torch.ops.mkldnn
    packable = (
        weight.device.type == "cpu"
        and weight.dtype in EXPECTED_ROWS
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and hasattr(mkldnn, "_reorder_linear_weight")
        and (weight.dtype != torch.bfloat16 or mkldnn._is_mkldnn_bf16_supported())
    )
    return PrepackedLinear(weight, bias) if packable else PlainLinear(weight, bias)
