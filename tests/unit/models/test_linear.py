"""Prepacked products against `F.linear`, and which of the two a weight gets."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from outpace.models.linear import PlainLinear, PrepackedLinear, make_linear

PACKED_DTYPES = [torch.float32]
if torch.ops.mkldnn._is_mkldnn_bf16_supported():
    PACKED_DTYPES.append(torch.bfloat16)

needs_mkldnn = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="this build of torch has no oneDNN"
)


def random(*shape: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(dtype)


def exact(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, residual: torch.Tensor | None
) -> torch.Tensor:
    y = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    return y if residual is None else y + residual.double()


def tolerance(dtype: torch.dtype, terms: torch.Tensor) -> torch.Tensor:
    """Rounding of the result and of the sum with bias and residual, given the sum of |terms|."""
    epsilon = torch.finfo(dtype).eps
    return 2 * epsilon * terms if dtype == torch.bfloat16 else 16 * epsilon * terms


@needs_mkldnn
@pytest.mark.parametrize("with_residual", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("dtype", PACKED_DTYPES)
def test_equals_linear_for_every_row_count(dtype, with_bias, with_residual):
    weight = random(40, 48, dtype=dtype, seed=1)
    bias = random(40, dtype=dtype, seed=2) if with_bias else None
    linear = PrepackedLinear(weight, bias)
    for n in range(1, 18):
        x = random(n, 48, dtype=dtype, seed=3)
        residual = random(n, 40, dtype=dtype, seed=4) if with_residual else None
        kept = None if residual is None else residual.clone()
        y = linear(x, residual)
        assert y.shape == (n, 40)
        assert y.dtype == dtype
        terms = exact(x.abs(), weight.abs(), None if bias is None else bias.abs(), None)
        terms = terms if residual is None else terms + residual.double().abs()
        error = (y.double() - exact(x, weight, bias, residual)).abs()
        assert (error <= tolerance(dtype, terms)).all()
        if residual is not None:
            assert torch.equal(residual, kept), "the residual was changed in place"


@needs_mkldnn
@pytest.mark.parametrize("dtype", PACKED_DTYPES)
@pytest.mark.parametrize("n", [1, 2, 7, 40, 150])
def test_non_contiguous_input_residual_and_weight(dtype, n):
    wide = random(n, 96, dtype=dtype, seed=5)
    x, residual = wide[:, ::2], random(40, n, dtype=dtype, seed=6).T
    weight = random(48, 40, dtype=dtype, seed=7).T
    bias = random(40, dtype=dtype, seed=8)
    strided, plain = PrepackedLinear(weight, bias), PrepackedLinear(weight.contiguous(), bias)
    expected = plain(x.contiguous(), residual.contiguous())
    assert torch.equal(strided(x, residual), expected)
    assert torch.equal(strided(x), plain(x.contiguous()))


@needs_mkldnn
@pytest.mark.parametrize("dtype", PACKED_DTYPES)
def test_rows_do_not_influence_one_another(dtype):
    linear = PrepackedLinear(random(40, 48, dtype=dtype, seed=1), None)
    x = random(9, 48, dtype=dtype, seed=2)
    before = linear(x)
    x[4] = 1e4
    after = linear(x)
    others = [0, 1, 2, 3, 5, 6, 7, 8]
    assert torch.equal(after[others], before[others])
    assert not torch.equal(after[4], before[4])


@needs_mkldnn
@pytest.mark.parametrize("dtype", PACKED_DTYPES)
def test_no_rows(dtype):
    """A pass over the middle of a prompt wants no logits."""
    linear = PrepackedLinear(random(40, 48, dtype=dtype, seed=1), None)
    assert linear(torch.empty(0, 48, dtype=dtype)).shape == (0, 40)


@needs_mkldnn
@pytest.mark.parametrize("dtype", PACKED_DTYPES)
def test_packable_weights_are_packed(dtype):
    assert isinstance(make_linear(torch.ones(4, 4, dtype=dtype)), PrepackedLinear)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_other_dtypes_use_the_ordinary_product(dtype):
    weight, bias = random(6, 5, dtype=dtype, seed=1), random(6, dtype=dtype, seed=2)
    linear = make_linear(weight, bias)
    assert isinstance(linear, PlainLinear)
    x, residual = random(3, 5, dtype=dtype, seed=3), random(3, 6, dtype=dtype, seed=4)
    assert torch.equal(linear(x), F.linear(x, weight, bias))
    assert torch.equal(linear(x, residual), F.linear(x, weight, bias) + residual)


def test_other_devices_use_the_ordinary_product():
    weight = torch.ones(4, 4, dtype=torch.float32, device="meta")
    assert isinstance(make_linear(weight), PlainLinear)


def test_torch_without_onednn_uses_the_ordinary_product(monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert isinstance(make_linear(torch.ones(4, 4)), PlainLinear)
