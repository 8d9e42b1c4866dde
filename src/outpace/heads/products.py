"""Matrix products of heads that are little more: by the native library beside a target on the
native step, in numpy elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from outpace.models.native.decoder import NativeDecoder
from outpace.native.interface import Activations, WeightFormat
from outpace.native.quantise import BLOCK, q8_0_blocks
from outpace.native.weights import PackedLinear

if TYPE_CHECKING:
    from jaxtyping import Float32

    from outpace.models.load import LoadedModel
    from outpace.native.pool import ThreadPool

Product = Callable[["Float32[np.ndarray, 'n i']"], "Float32[np.ndarray, 'n o']"]
"""x -> x W^T, rows independent of one another."""
MakeProduct = Callable[["Float32[np.ndarray, 'o i']"], Product]


def products_beside(target: LoadedModel) -> MakeProduct:
    """Products by what computes the target, on its threads."""
    if isinstance(target.decoder, NativeDecoder):
        return _native_products(target.decoder.pool)
    return _numpy_product


def _numpy_product(weight: Float32[np.ndarray, "o i"]) -> Product:
    transposed = np.ascontiguousarray(weight).T
    return lambda x: x @ transposed


def _native_products(pool: ThreadPool) -> MakeProduct:
    """8-bit weights meet 16-bit activations. A draft's q is whatever its head computes, so that
    rounding costs a little acceptance at most, and never exactness."""

    def make(weight: Float32[np.ndarray, "o i"]) -> Product:
        out, in_ = weight.shape
        if in_ % BLOCK:
            linear = PackedLinear.packed(WeightFormat.F32, out, in_, np.ascontiguousarray(weight))
            return lambda x: linear.forward(np.ascontiguousarray(x), pool)
        blocks = q8_0_blocks(np.ascontiguousarray(weight))
        linear = PackedLinear.packed(WeightFormat.Q8_0, out, in_, blocks)
        return lambda x: linear.forward(np.ascontiguousarray(x), pool, Activations.INT16)

    return make
