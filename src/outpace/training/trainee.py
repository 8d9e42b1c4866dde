"""What the training loop needs of what it trains, and what it feeds it."""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch
    from jaxtyping import Bool, Float, Int
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """Whole sequences, one after the other.

    token_ids: [N]. features: for each captured layer of the target its output for every token,
    [N, hidden] in bfloat16. is_answer: which tokens belong to an answer: predictions of these
    count. starts: where each sequence begins, and N at the end.
    """

    token_ids: Int[Tensor, " N"]
    features: dict[int, Float[Tensor, "N hidden"]]
    is_answer: Bool[Tensor, " N"]
    starts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LossReport:
    """What one batch gave.

    loss: a scalar to go back from. tried, accepted: [K] for each draft position how many
    predictions were reached (all before them right) and how many of these would be accepted under
    greedy decoding; the ratio is conditional acceptance.
    """

    loss: torch.Tensor
    tried: List[int]
    accepted: List[int]


class Trainee(Protocol):
    """A draft in training: knows its parameters, its loss and its files; knows no loop.

    capture: target layers whose outputs it needs. Losses and exports are its own; batching,
    optimisers, schedules, checkpoints, early stopping and progress are the loop's.
    """

    @property
    def capture(self) -> tuple[int, ...]: ...

    @property
    def module(self) -> torch.nn.Module: ...

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Trainable parameters for the optimisers:
        {"params": [...], "kind": "matrix" | "vector", "lr": float}."""

    def loss(self, batch: TrainingBatch, *, training: bool) -> LossReport:
        """One batch's loss; `training` False: every position counts, nothing is left to chance."""

    def save(self, directory: Path) -> None:
        """Write the draft's own files (config and weights) into an existing directory."""
