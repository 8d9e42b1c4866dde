"""Losses against hand-computed values, and their written-out gradients against autograd."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from outpace.errors import OptionError
from outpace.training.losses import LOSSES, HeadLoss, Rows, is_largest, loss_named

P = torch.tensor([[0.5, 0.25, 0.25]], dtype=torch.float64)
Q = torch.tensor([[0.25, 0.25, 0.5]], dtype=torch.float64)
KL = 0.5 * math.log(2) - 0.25 * math.log(2)
W = math.exp(-3 * 0.75)


def plain(name: str, logits: Tensor, p: Tensor) -> Tensor:
    """[r] by the formulas, for autograd to differentiate."""
    log_q = torch.log_softmax(logits, dim=1)
    divergence = (p * (p.log() - log_q)).sum(1)
    alpha = torch.minimum(p, log_q.exp()).sum(1)
    w = torch.exp(-3 * alpha).detach()
    return {
        "kl": divergence,
        "ce": -log_q.gather(1, p.argmax(1, keepdim=True))[:, 0],
        "tv": 1 - alpha,
        "hybrid": w * divergence + (1 - w) * (1 - alpha),
    }[name]


def rows_of(logits: Tensor, p: Tensor) -> Rows:
    entropy = -(p * p.log()).sum(1).float()
    column = torch.zeros(len(p), dtype=torch.int64)
    return Rows(logits.clone(), torch.softmax(logits, 1), p, column, entropy)


@pytest.mark.parametrize(
    ("name", "value"),
    [("kl", KL), ("ce", math.log(4)), ("tv", 0.25), ("hybrid", W * KL + (1 - W) * 0.25)],
)
def test_values_computed_by_hand(name: str, value: float) -> None:
    loss, _ = LOSSES[name](rows_of(Q.log() + 7.0, P))
    assert loss.item() == pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_are_those_of_the_formulas(name: str) -> None:
    generator = torch.Generator().manual_seed(3)
    logits = 2 * torch.randn(9, 31, generator=generator, dtype=torch.float64)
    p = torch.softmax(2 * torch.randn(9, 31, generator=generator, dtype=torch.float64), 1)
    loss, gradient = LOSSES[name](rows_of(logits, p))
    wanted = plain(name, logits.requires_grad_(), p)
    wanted.sum().backward()
    torch.testing.assert_close(loss.double(), wanted.detach(), atol=1e-5, rtol=1e-5)
    # Sums over the vocabulary are float32.
    torch.testing.assert_close(gradient, logits.grad, atol=1e-7, rtol=1e-6)


def head_inputs() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(10, 6, generator=generator, dtype=torch.float64)
    head = torch.randn(17, 6, generator=generator, dtype=torch.float64)
    p = torch.softmax(2 * torch.randn(12, 17, generator=generator, dtype=torch.float64), 1)
    rows = torch.tensor([0, 1, 3, 4, 5, 7, 8, 9, 11, 11])
    return x, head, p, rows


def applied(
    x: Tensor, head: Tensor, p: Tensor, rows: Tensor, name: str, count: int, chunk: int
) -> tuple[Tensor, Tensor]:
    entropy = -(p * p.log()).sum(1).float()
    labels = p.argmax(1)
    labels[4] = -1
    out: tuple[Tensor, Tensor] = HeadLoss.apply(
        x, head, p, entropy, labels, rows, count, LOSSES[name], chunk
    )
    return out


@pytest.mark.parametrize("chunk", [3, 256])
@pytest.mark.parametrize("name", LOSSES)
def test_a_head_and_its_loss_in_one(name: str, chunk: int) -> None:
    """Rows past `count` give nothing; the rest is what autograd says, for x and for the head."""
    x, head, p, rows = head_inputs()
    count = 8
    x.requires_grad_()
    head.requires_grad_()
    total, hit = applied(x, head, p, rows, name, count, chunk)
    (3 * total).backward()
    found = x.grad.clone(), head.grad.clone()
    x.grad = head.grad = None
    logits = x[:count] @ head.t()
    wanted = plain(name, logits, p[rows[:count]]).sum()
    (3 * wanted).backward()
    assert total.item() == pytest.approx(wanted.item(), rel=1e-5)
    torch.testing.assert_close(found[0], x.grad, atol=1e-10, rtol=1e-6)
    # What is summed over chunks is summed in float32.
    torch.testing.assert_close(found[1], head.grad, atol=1e-4, rtol=1e-4)
    labels = p[rows[:count]].argmax(1)
    assert hit.tolist() == [
        bool(row.argmax() == label) and int(index) != 4
        for row, label, index in zip(logits, labels, rows, strict=False)
    ]


def test_a_frozen_head_gets_no_gradient() -> None:
    x, head, p, rows = head_inputs()
    total, _ = applied(x.requires_grad_(), head, p, rows, "kl", 10, 4)
    total.backward()
    assert x.grad is not None
    assert head.grad is None


def test_bfloat16_gradients_are_close_to_exact_ones() -> None:
    x, head, p, rows = head_inputs()
    results = []
    for cast in (Tensor.double, Tensor.bfloat16):
        leaf = x.clone().requires_grad_()
        total, _ = applied(cast(leaf), cast(head), cast(p), rows, "kl", 10, 4)
        total.backward()
        results.append((total.item(), leaf.grad))
    assert results[1][0] == pytest.approx(results[0][0], rel=0.03)
    similarity = torch.cosine_similarity(results[0][1].flatten(), results[1][1].flatten(), dim=0)
    assert similarity > 0.999


def test_largest_with_ties_margins_and_no_label() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0], [0.0, 2.0, 1.9], [5.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    labels = torch.tensor([2, 2, 1, -1])
    assert is_largest(logits, labels).tolist() == [True, False, False, False]
    assert is_largest(logits, labels, 0.2).tolist() == [True, True, False, False]


def test_an_unknown_loss_is_refused_with_those_there_are() -> None:
    known: Callable[..., object] = loss_named("kl")
    assert known is LOSSES["kl"]
    with pytest.raises(OptionError, match=r"'mse'.*kl, ce, tv, hybrid"):
        loss_named("mse")
