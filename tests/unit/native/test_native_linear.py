"""Matrix products of every format, activation and instruction-set path: values, and equal bits."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType

from outpace.errors import ModelError
from outpace.native.interface import Activations, WeightFormat
from outpace.native.library import status
from outpace.native.pool import ThreadPool
from outpace.native.weights import PackedLinear, pack, packed_bytes

GGUF_TYPES = {
    WeightFormat.Q4_0: GGMLQuantizationType.Q4_0,
    WeightFormat.Q4_1: GGMLQuantizationType.Q4_1,
    WeightFormat.Q8_0: GGMLQuantizationType.Q8_0,
}
# F32 and BF16 weights meet activations of their own kind, whatever is asked for.
KINDS = [
    (WeightFormat.F32, Activations.BF16),
    (WeightFormat.BF16, Activations.BF16),
    *((each, activations) for each in GGUF_TYPES for activations in Activations),
]
LIMITS = {Activations.INT16: 127 * 256, Activations.INT8: 127}

found = status()
pytestmark = pytest.mark.skipif(found.path is None, reason=f"no native step: {found.reason}")
every_path = pytest.mark.parametrize("path", found.usable)
every_kind = pytest.mark.parametrize(
    ("weight_format", "activations"), KINDS, ids=lambda value: value.name.lower()
)


@pytest.fixture(scope="module")
def pool() -> ThreadPool:
    return ThreadPool.shared(2)


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """The bits of float32 values rounded to nearest even."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def from_bfloat16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def random_linear(
    weight_format: WeightFormat, out: int, in_: int, *, bias: bool = True, seed: int = 0
) -> tuple[PackedLinear, np.ndarray]:
    """A matrix and what its stored values are, in float32 [out, in]."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((out, in_), dtype=np.float32) / np.float32(np.sqrt(in_))
    if weight_format == WeightFormat.F32:
        source, stored = values, values
    elif weight_format == WeightFormat.BF16:
        source = to_bfloat16(values)
        stored = from_bfloat16(source)
    else:
        source = gguf.quantize(values, GGUF_TYPES[weight_format])
        stored = gguf.dequantize(source, GGUF_TYPES[weight_format])
    offsets = rng.standard_normal(out, dtype=np.float32) if bias else None
    return PackedLinear.packed(weight_format, out, in_, source, offsets), stored


def random_rows(rows: int, in_: int) -> np.ndarray:
    """Rows of very different sizes, as activations are; one block of zeros, one outlier."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((rows, in_), dtype=np.float32)
    x *= 10.0 ** rng.uniform(-2, 2, (rows, 1)).astype(np.float32)
    x[0, :32] = 0.0
    x[-1, in_ // 2] *= 50
    return x


@pytest.mark.parametrize("weight_format", WeightFormat)
@pytest.mark.parametrize(("out", "in_"), [(1, 32), (16, 64), (33, 96), (100, 416)])
def test_packing_loses_nothing(weight_format: WeightFormat, out: int, in_: int) -> None:
    linear, stored = random_linear(weight_format, out, in_)
    for index in range(out):
        np.testing.assert_array_equal(linear.row(index), stored[index])


def test_packed_formats_stay_at_their_own_size() -> None:
    for weight_format, bits_per_weight in (
        (WeightFormat.Q4_0, 4.5),
        (WeightFormat.Q4_1, 5),
        (WeightFormat.Q8_0, 8.5),
    ):
        assert packed_bytes(weight_format, 160, 640) == 160 * 640 * bits_per_weight / 8


def test_shapes_that_cannot_be_packed() -> None:
    with pytest.raises(ModelError, match="32"):
        packed_bytes(WeightFormat.Q4_1, 16, 48)
    with pytest.raises(ModelError, match="at least one"):
        packed_bytes(WeightFormat.F32, 0, 48)
    with pytest.raises(AssertionError, match="bytes, expected"):
        pack(WeightFormat.F32, 16, 16, np.zeros((16, 15), np.float32))


def rounded(x: np.ndarray, weight_format: WeightFormat, activations: Activations) -> np.ndarray:
    """What the interface says activations are rounded to, in float64."""
    if weight_format == WeightFormat.F32:
        return x.astype(np.float64)
    if weight_format == WeightFormat.BF16 or activations == Activations.BF16:
        return from_bfloat16(to_bfloat16(x)).astype(np.float64)
    blocks = x.reshape(len(x), -1, 32)
    largest = np.abs(blocks).max(axis=2, keepdims=True)
    limit = np.float32(LIMITS[activations])
    inverse = np.divide(limit, largest, out=np.zeros_like(largest), where=largest > 0)
    integers = np.rint(blocks * inverse).astype(np.float64)
    return (integers * (largest / limit)).reshape(x.shape)


def bound(x: np.ndarray, weights: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """How far a sum in float32 may be from the exact one: one rounding of at most 2^-24 of the sum
    of magnitudes for each product, each addition, and each scale (Higham, section 3.1). For packed
    weights `weights` are magnitudes before an offset or minimum is taken off them."""
    return (2 * x.shape[1] + 8) * 2.0**-24 * (np.abs(x) @ weights.T + np.abs(bias))


def magnitudes(stored: np.ndarray, weight_format: WeightFormat) -> np.ndarray:
    """Q4_1's quants and minimums are summed apart, so what is rounded can exceed the weights."""
    if weight_format not in GGUF_TYPES:
        return np.abs(stored)
    blocks = np.abs(stored).reshape(len(stored), -1, 32)
    return np.broadcast_to(3 * blocks.max(axis=2, keepdims=True), blocks.shape).reshape(
        stored.shape
    )


@every_path
@every_kind
def test_values(
    path: str, weight_format: WeightFormat, activations: Activations, pool: ThreadPool
) -> None:
    linear, stored = random_linear(weight_format, 50, 416)
    x = random_rows(19, 416)
    y = linear.forward(x, pool, activations, path)
    weights, bias = stored.astype(np.float64), linear.bias
    assert bias is not None
    met = rounded(x, weight_format, activations)
    allowed = bound(met, magnitudes(stored, weight_format), bias)
    assert (np.abs(y - (met @ weights.T + bias)) <= allowed).all()
    if weight_format != WeightFormat.F32 and activations != Activations.INT16:
        # Unrounded activations are told apart: the bound is not so wide that anything passes.
        assert (np.abs(y - (x.astype(np.float64) @ weights.T + bias)) > allowed).any()


ROW_COUNTS = (1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 16, 17, 31, 33)


@every_path
@every_kind
def test_a_row_has_the_same_bits_beside_any_others(
    path: str, weight_format: WeightFormat, activations: Activations, pool: ThreadPool
) -> None:
    linear, _ = random_linear(weight_format, 50, 224)
    x = random_rows(sum(ROW_COUNTS), 224)
    whole = linear.forward(x, pool, activations, path)
    for num_threads in (1, 3):
        other = ThreadPool.shared(num_threads)
        first = 0
        for rows in ROW_COUNTS:
            part = np.ascontiguousarray(x[first : first + rows])
            y = linear.forward(part, other, activations, path)
            assert y.tobytes() == whole[first : first + rows].tobytes(), f"{rows} rows"
            first += rows


@every_path
@every_kind
def test_a_row_has_the_same_bits_among_hundreds(
    path: str, weight_format: WeightFormat, activations: Activations, pool: ThreadPool
) -> None:
    """Kernels for many rows leave a long sum for other rows, and come back to it."""
    linear, _ = random_linear(weight_format, 70, 1120)
    x = random_rows(300, 1120)
    whole = linear.forward(x, pool, activations, path)
    for first, rows in ((0, 1), (1, 2), (3, 3), (252, 8), (286, 14)):
        part = np.ascontiguousarray(x[first : first + rows])
        y = linear.forward(part, ThreadPool.shared(1), activations, path)
        assert y.tobytes() == whole[first : first + rows].tobytes(), f"{rows} rows at {first}"


@every_path
def test_the_comparison_of_bits_can_fail(path: str, pool: ThreadPool) -> None:
    """About one unit in the last place of one row changes that row's bits, and no other's."""
    linear, _ = random_linear(WeightFormat.F32, 50, 224)
    x = random_rows(9, 224)
    before = linear.forward(x, pool, path=path)
    x[4] *= np.nextafter(np.float32(1), np.float32(2))
    after = linear.forward(x, pool, path=path)
    assert [a.tobytes() == b.tobytes() for a, b in zip(before, after, strict=True)] == [
        row != 4 for row in range(9)
    ]


@every_kind
def test_what_is_not_finite_stays_in_its_row(
    weight_format: WeightFormat, activations: Activations, pool: ThreadPool
) -> None:
    linear, _ = random_linear(weight_format, 50, 224)
    x = random_rows(5, 224)
    clean = linear.forward(x, pool, activations)
    x[2, 7] = np.nan
    y = linear.forward(x, pool, activations)
    assert np.isnan(y[2]).all()
    others = [0, 1, 3, 4]
    assert y[others].tobytes() == clean[others].tobytes()


def test_an_unknown_path(pool: ThreadPool) -> None:
    linear, _ = random_linear(WeightFormat.F32, 16, 32)
    with pytest.raises(ModelError, match="sse9"):
        linear.forward(random_rows(2, 32), pool, path="sse9")
