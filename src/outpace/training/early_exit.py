"""Training an exit: a middle layer learns to say what the target's last layer will."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from outpace.errors import OptionError
from outpace.heads.exit import ExitCheckpoint, ExitConfig, ExitModule, write_exit
from outpace.heads.shared_head import check_target
from outpace.training.frozen_head import frozen_head, groups_by_shape, judge
from outpace.training.losses import loss_named
from outpace.training.trainee import LossReport, TrainingBatch
from outpace.training.unrolled import Columns, padded_rows

if TYPE_CHECKING:
    from jaxtyping import Int64

    from outpace.heads.target_parts import TargetParts


@dataclass(frozen=True, kw_only=True)
class ExitOptions:
    """How an exit is trained.

    rank: of a new adapter (None: a square matrix). loss: a name in `losses.LOSSES`. matrix_lr,
    vector_lr: peak rates of the adapter (Muon) and the norm (AdamW). reported_steps: draft
    positions that a `LossReport` tells of. compute_dtype: of products and activations; parameters
    are float32.
    """

    rank: int | None = None
    loss: str = "kl"
    matrix_lr: float = 1e-2
    vector_lr: float = 4e-3
    reported_steps: int = 4
    compute_dtype: torch.dtype = torch.bfloat16


class ExitTrainee:
    """An exit in training, over the target's own frozen output head; implements `trainee.Trainee`.

    Drafting runs the layers below the exit themselves, over the target's keys and values: what the
    exit says after a right draft token is what it says after the same token of an answer, so that
    every token is one example and a chain is as long as its run of right guesses.
    """

    def __init__(
        self,
        parts: TargetParts,
        exit_layer: int,
        draft_token_ids: Int64[np.ndarray, " Vd"],
        options: ExitOptions,
        start: ExitCheckpoint | None = None,
    ) -> None:
        """start: an exit to go on from. Raises OptionError where the target has no such exit, or
        `start` is another layer's, and ModelError for a target that exits cannot be trained on."""
        if not 1 <= exit_layer < parts.num_layers:
            raise OptionError(
                f"exit_layer={exit_layer}, but {parts.name} has {parts.num_layers} layers: the "
                f"exit must be one of 1 to {parts.num_layers - 1}"
            )
        sizes = {"vocab_size": parts.vocab_size, "hidden_size": parts.hidden_size}
        check_target(parts, "a trained exit", **sizes)
        self.options, self.parts, self.draft_token_ids = options, parts, draft_token_ids
        config = ExitConfig(
            **sizes,
            exit_layer=exit_layer,
            draft_vocab_size=len(draft_token_ids),
            rms_norm_eps=parts.norm_eps,
            rank=options.rank if start is None else start.config.rank,
        )
        self.module = ExitModule(config, torch.from_numpy(np.array(parts.final_norm)))
        if start is not None:
            if start.config.exit_layer != exit_layer:
                raise OptionError(
                    f"exit_layer={exit_layer}, but {start.directory} was trained for layer "
                    f"{start.config.exit_layer}"
                )
            self.module.load_state_dict(start.module().state_dict())
        self.target = frozen_head(parts, draft_token_ids, options.compute_dtype)
        self.capture = (exit_layer, self.target.layer)
        self._loss = loss_named(options.loss)

    def parameter_groups(self) -> list[dict[str, Any]]:
        rates = {"matrix_lr": self.options.matrix_lr, "vector_lr": self.options.vector_lr}
        return groups_by_shape(self.module, **rates)

    def loss(self, batch: TrainingBatch, *, training: bool) -> LossReport:
        with torch.set_grad_enabled(training):
            columns = Columns.of(batch)
            total, hit = self._judge(batch, columns, greedy=False)
        steps = self.options.reported_steps
        lengths = _run_lengths(hit, columns, steps)
        reachable = columns.num_steps.clamp(max=steps)
        tried = [int(((lengths >= s) & (reachable > s)).sum()) for s in range(steps)]
        accepted = [int((lengths > s).sum()) for s in range(steps)]
        return LossReport(total / max(len(hit), 1), tried, accepted)

    @torch.no_grad()
    def accepted_lengths(
        self, batch: TrainingBatch, steps: int
    ) -> tuple[Int[Tensor, " A"], Int[Tensor, " A"]]:
        """(newest token of each chain, how many of `steps` drafts from there are the answer's)."""
        columns = Columns.of(batch)
        _, hit = self._judge(batch, columns, greedy=True)
        return columns.chains + 1, _run_lengths(hit, columns, steps)

    def save(self, directory: Path) -> None:
        """Write config.json and model.safetensors."""
        write_exit(directory, self.module, self.draft_token_ids, self.parts)

    def _judge(
        self, batch: TrainingBatch, columns: Columns, *, greedy: bool
    ) -> tuple[Float[Tensor, ""], Bool[Tensor, " A"]]:
        """The sum of the losses of the first draft token of every chain, and where it is right."""
        newest = columns.chains + 1
        if len(newest) == 0:
            return torch.zeros(()), torch.zeros(0, dtype=torch.bool)
        target_rows = self.target.rows(
            batch.features[self.target.layer][newest], batch.token_ids[newest + 1], greedy=greedy
        )
        rows = padded_rows(torch.arange(len(newest), device=newest.device))
        hidden = batch.features[self.module.config.exit_layer][newest[rows]]
        x = self.module(hidden.to(self.options.compute_dtype))
        return judge(x, self.target, target_rows, rows, len(newest), self._loss)


def _run_lengths(hit: Bool[Tensor, " A"], columns: Columns, steps: int) -> Int[Tensor, " A"]:
    """How many chains from each on have a right first token, within its answer; at most `steps`."""
    lengths = torch.zeros_like(columns.chains)
    for s in range(steps):
        going = ((lengths == s) & (columns.num_steps > s)).nonzero()[:, 0]
        lengths[going] += hit[going + s]
    return lengths
