"""Optimisers for a draft's parameters, and the schedule of their rates."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from outpace.training.muon import Muon
from outpace.training.precision import compute_dtype


def make_optimisers(groups: Iterable[dict[str, Any]]) -> list[torch.optim.Optimizer]:
    """One optimiser for each kind of parameter in `Trainee.parameter_groups`.

    "matrix": Muon (Jordan et al. 2024): the momentum of a gradient, 0.95, made orthogonal, with
    updates of the size of AdamW's (2502.16982) at one rate. "vector": AdamW (1711.05101) without
    weight decay, for norms and for matrices whose rows stand for tokens.
    """
    groups = list(groups)
    kinds = {group["kind"] for group in groups}
    assert kinds <= {"matrix", "vector"}, kinds
    optimisers: list[torch.optim.Optimizer] = []
    if matrices := _of_kind(groups, "matrix"):
        optimisers.append(Muon(matrices, dtype=compute_dtype()))
    if vectors := _of_kind(groups, "vector"):
        optimisers.append(torch.optim.AdamW(vectors, betas=(0.9, 0.95), weight_decay=0.0))
    return optimisers


def _of_kind(groups: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [
        {"params": list(group["params"]), "lr": group["lr"], "base_lr": group["lr"]}
        for group in groups
        if group["kind"] == kind and group["params"]
    ]


def rate_at(step: int, num_steps: int, warmup_steps: int) -> float:
    """What the learning rates are multiplied by at a step, counted from 0: up over `warmup_steps`,
    then linearly to zero after the last of `num_steps`."""
    warm = min(1.0, (step + 1) / (warmup_steps + 1))
    return warm * max(0.0, 1 - step / max(num_steps, 1))


def set_rates(optimisers: Iterable[torch.optim.Optimizer], factor: float) -> None:
    for optimiser in optimisers:
        for group in optimiser.param_groups:
            group["lr"] = group["base_lr"] * factor
