"""Which optimiser moves which parameter, by how much, and when."""

from __future__ import annotations

import copy
from itertools import pairwise

import pytest
import torch

from outpace.training.optimisers import make_optimisers, rate_at, set_rates


def groups(
    matrices: list[torch.nn.Parameter], vectors: list[torch.nn.Parameter]
) -> list[dict[str, object]]:
    return [
        {"params": matrices, "kind": "matrix", "lr": 0.1},
        {"params": vectors, "kind": "vector", "lr": 0.01},
    ]


def test_a_matrix_moves_orthogonally_and_a_vector_by_its_sign() -> None:
    torch.manual_seed(0)
    matrix = torch.nn.Parameter(torch.zeros(24, 96))
    vector = torch.nn.Parameter(torch.zeros(5))
    muon, adam = make_optimisers(groups([matrix], [vector]))
    matrix.grad, vector.grad = torch.randn(24, 96), torch.tensor([1.0, -2.0, 3.0, -4.0, 0.5])
    muon.step()
    adam.step()
    singular = torch.linalg.svdvals(matrix.detach()) / (0.1 * 0.2 * 96**0.5)
    # Newton-Schulz brings singular values near 1, not to 1.
    assert singular.min() > 0.6
    assert singular.max() < 1.3
    torch.testing.assert_close(vector.detach(), -0.01 * vector.grad.sign(), atol=1e-6, rtol=1e-4)


def test_kinds_without_parameters_get_no_optimiser() -> None:
    vector = torch.nn.Parameter(torch.zeros(5))
    (only,) = make_optimisers(groups([], [vector]))
    assert isinstance(only, torch.optim.AdamW)


def test_rates_rise_then_fall_to_zero_at_the_last_step() -> None:
    rates = [rate_at(step, 20, 3) for step in range(21)]
    assert rates[:4] == pytest.approx([0.25, 0.5 * 0.95, 0.75 * 0.9, 0.85])
    assert rates[19] == pytest.approx(1 / 20)
    assert rates[20] == 0.0
    assert all(a > b for a, b in pairwise(rates[3:]))


def test_rates_are_shares_of_each_groups_own() -> None:
    matrix = torch.nn.Parameter(torch.zeros(4, 4))
    vector = torch.nn.Parameter(torch.zeros(5))
    optimisers = make_optimisers(groups([matrix], [vector]))
    for _ in range(2):
        set_rates(optimisers, 0.5)
    assert [o.param_groups[0]["lr"] for o in optimisers] == [0.05, 0.005]


def test_stored_state_goes_on_with_the_same_bits() -> None:
    def fresh() -> tuple[list[torch.nn.Parameter], list[torch.optim.Optimizer]]:
        torch.manual_seed(1)
        parameters = [torch.nn.Parameter(torch.randn(6, 9)), torch.nn.Parameter(torch.randn(6))]
        return parameters, make_optimisers(groups(parameters[:1], parameters[1:]))

    def go(parameters: list[torch.nn.Parameter], optimisers: list, steps: range) -> None:
        for step in steps:
            set_rates(optimisers, 1 / (step + 1))
            for parameter in parameters:
                parameter.grad = torch.sin(parameter.detach() * (step + 1))
            for optimiser in optimisers:
                optimiser.step()

    whole, optimisers = fresh()
    go(whole, optimisers, range(6))
    first, optimisers = fresh()
    go(first, optimisers, range(3))
    saved = copy.deepcopy([o.state_dict() for o in optimisers])
    second, optimisers = fresh()
    for parameter, value in zip(second, first, strict=True):
        parameter.data.copy_(value.data)
    for optimiser, state in zip(optimisers, saved, strict=True):
        optimiser.load_state_dict(state)
    go(second, optimisers, range(3, 6))
    assert all(torch.equal(a, b) for a, b in zip(whole, second, strict=True))
