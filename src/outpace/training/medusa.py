"""Training Medusa heads: each on the token it is to guess, the nearer ones counting more."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from outpace.heads.binding import TARGET
from outpace.heads.medusa import MedusaCheckpoint, MedusaConfig, MedusaModule, write_medusa
from outpace.heads.shared_head import check_target
from outpace.training.frozen_head import frozen_head, groups_by_shape, judge
from outpace.training.losses import loss_named
from outpace.training.targets import TargetRows
from outpace.training.trainee import LossReport, TrainingBatch
from outpace.training.unrolled import Columns, padded_rows

if TYPE_CHECKING:
    from jaxtyping import Int64

    from outpace.heads.target_parts import TargetParts


@dataclass(frozen=True, kw_only=True)
class MedusaOptions:
    """How Medusa heads are trained.

    num_heads, num_layers, bias: of new heads. decay: head k (from 1) counts decay^(k - 1); the
    paper's is 0.8. loss: a name in `losses.LOSSES`. matrix_lr, vector_lr: peak rates of matrices
    (Muon) and biases (AdamW). compute_dtype: of products and activations; parameters are float32.
    """

    num_heads: int = 3
    num_layers: int = 1
    bias: bool = True
    decay: float = 0.8
    loss: str = "kl"
    matrix_lr: float = 2e-2
    vector_lr: float = 5e-3
    compute_dtype: torch.dtype = torch.bfloat16


class MedusaTrainee:
    """Heads in training, over the target's own frozen output head; implements `trainee.Trainee`.

    A chain starts at every token c of a batch whose two successors belong to an answer: the target
    says c + 1, and head s (from 0) guesses c + 2 + s (`unrolled.Columns`).
    """

    def __init__(
        self,
        parts: TargetParts,
        draft_token_ids: Int64[np.ndarray, " Vd"],
        options: MedusaOptions,
        start: MedusaCheckpoint | None = None,
    ) -> None:
        """start: heads to go on from; their number and layers are kept. Raises ModelError for a
        target that Medusa heads cannot read."""
        self.options, self.parts, self.draft_token_ids = options, parts, draft_token_ids
        vocab_size, hidden_size = parts.vocab_size, parts.hidden_size
        check_target(parts, "a Medusa head", vocab_size=vocab_size, hidden_size=hidden_size)
        shape = options if start is None else start.config
        config = MedusaConfig(
            vocab_size=vocab_size,
            hidden_size=hidden_size,
            draft_vocab_size=len(draft_token_ids),
            num_heads=shape.num_heads,
            num_layers=shape.num_layers,
            bias=shape.bias,
        )
        self.module = MedusaModule(config)
        if start is not None:
            self.module.load_state_dict(start.module().state_dict())
        self.target = frozen_head(parts, draft_token_ids, options.compute_dtype)
        self.capture = (self.target.layer,)
        self._loss = loss_named(options.loss)

    def parameter_groups(self) -> list[dict[str, Any]]:
        rates = {"matrix_lr": self.options.matrix_lr, "vector_lr": self.options.vector_lr}
        return groups_by_shape(self.module, **rates)

    def loss(self, batch: TrainingBatch, *, training: bool) -> LossReport:
        with torch.set_grad_enabled(training):
            columns = Columns.of(batch)
            total, weight = torch.zeros(()), 0.0
            hits: list[Bool[Tensor, " A"]] = []
            x, target_rows = self._inputs(batch, columns, greedy=False)
            for head in range(self.module.config.num_heads):
                each = self.options.decay**head
                summed, hit = self._judge(head, x, target_rows, columns)
                hits.append(hit)
                total = total + each * summed
                weight += each * int((columns.num_steps > head).sum())
        tried, accepted = _conditional(hits, columns)
        return LossReport(total / max(weight, 1.0), tried, accepted)

    @torch.no_grad()
    def accepted_lengths(
        self, batch: TrainingBatch, steps: int
    ) -> tuple[Int[Tensor, " A"], Int[Tensor, " A"]]:
        """(newest token of each chain, how many of `steps` drafts from there are the answer's); no
        more than there are heads."""
        columns = Columns.of(batch)
        x, target_rows = self._inputs(batch, columns, greedy=True)
        lengths = torch.zeros_like(columns.chains)
        right = torch.ones_like(lengths, dtype=torch.bool)
        for head in range(min(steps, self.module.config.num_heads)):
            right = right & self._judge(head, x, target_rows, columns)[1]
            lengths += right
        return columns.chains + 1, lengths

    def save(self, directory: Path) -> None:
        """Write config.json and model.safetensors, without the output head: it is the target's."""
        write_medusa(directory, self.module, self.draft_token_ids, self.parts, lm_head=TARGET)

    def _inputs(
        self, batch: TrainingBatch, columns: Columns, *, greedy: bool
    ) -> tuple[Float[Tensor, "A H"], TargetRows]:
        """What the heads read at each chain, and what the target says two tokens later."""
        last, chains = batch.features[self.target.layer], columns.chains
        x = self.target.normed(last[chains]).to(self.options.compute_dtype)
        following = batch.token_ids[chains + 2]
        return x, self.target.rows(last[chains + 1], following, greedy=greedy)

    def _judge(
        self,
        head: int,
        x: Float[Tensor, "A H"],
        target_rows: TargetRows,
        columns: Columns,
    ) -> tuple[Float[Tensor, ""], Bool[Tensor, " A"]]:
        """The sum of a head's losses over the chains that reach its token, and at which of all
        chains it put the right token first."""
        reaching = (columns.num_steps > head).nonzero()[:, 0]
        hit = torch.zeros(len(x), dtype=torch.bool, device=x.device)
        if len(reaching) == 0:
            return torch.zeros(()), hit
        rows = padded_rows(reaching)
        total, hit[reaching] = judge(
            self.module(head, x[rows]),
            self.target,
            target_rows,
            rows + head,
            len(reaching),
            self._loss,
        )
        return total, hit


def _conditional(hits: list[Bool[Tensor, " A"]], columns: Columns) -> tuple[list[int], list[int]]:
    """For each head at how many chains its token was reached, and guessed, all before it right."""
    clean = torch.ones(len(columns.chains), dtype=torch.bool)
    tried, accepted = [], []
    for head, hit in enumerate(hits):
        clean = clean & (columns.num_steps > head)
        tried.append(int(clean.sum()))
        clean = clean & hit
        accepted.append(int(clean.sum()))
    return tried, accepted
