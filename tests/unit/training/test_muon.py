"""Muon: the steps of torch's, in the precision that is asked for."""

from __future__ import annotations

import pytest
import torch

from outpace.training.muon import Muon, orthogonalised

SHAPES = [(24, 96), (96, 24), (16, 16)]


def after(make: type[torch.optim.Optimizer], shape: tuple[int, int], **options: object) -> object:
    torch.manual_seed(3)
    parameter = torch.nn.Parameter(torch.randn(shape))
    optimiser = make([parameter], lr=0.02, momentum=0.95, **options)
    for step in range(4):
        parameter.grad = torch.sin(parameter.detach() * (step + 1))
        optimiser.step()
    return parameter.detach()


@pytest.mark.parametrize("shape", SHAPES)
def test_in_bfloat16_its_steps_are_torchs(shape: tuple[int, int]) -> None:
    ours = after(Muon, shape, dtype=torch.bfloat16)
    options = {"weight_decay": 0.0, "adjust_lr_fn": "match_rms_adamw"}
    assert torch.equal(ours, after(torch.optim.Muon, shape, **options))


@pytest.mark.parametrize("shape", SHAPES)
def test_in_float32_it_goes_the_same_way(shape: tuple[int, int]) -> None:
    exact, rounded = (after(Muon, shape, dtype=d) for d in (torch.float32, torch.bfloat16))
    assert not torch.equal(exact, rounded)
    torch.testing.assert_close(exact, rounded, atol=0.02, rtol=0.02)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(12, 40), (40, 12)])
def test_directions_stay_and_sizes_become_one(shape: tuple[int, int], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    matrix = torch.randn(shape)
    kept = matrix.clone()
    found = orthogonalised(matrix, dtype).float()
    assert torch.equal(matrix, kept)
    u, _, v = torch.linalg.svd(matrix, full_matrices=False)
    sizes = torch.diagonal(u.T @ found @ v.T)
    assert sizes.min() > 0.6
    assert sizes.max() < 1.3
    assert found.norm() == pytest.approx(float(sizes.norm()), rel=0.02)


def test_nothing_becomes_nothing() -> None:
    assert not orthogonalised(torch.zeros(4, 6), torch.float32).any()
