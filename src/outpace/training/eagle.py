"""Training EAGLE heads: chains of drafts through the unrolled layer, and their loss."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor, nn
from torch.func import functional_call

from outpace.heads.binding import STORED, TARGET
from outpace.heads.checkpoint import write_eagle
from outpace.heads.config import EagleConfig
from outpace.heads.eagle import EagleModule
from outpace.training.eagle_layer import Living, UnrolledLayer
from outpace.training.losses import HeadLoss, loss_named
from outpace.training.targets import TargetHead, TargetRows
from outpace.training.trainee import LossReport, TrainingBatch
from outpace.training.unrolled import Columns

if TYPE_CHECKING:
    from outpace.heads.target_parts import TargetParts

CHUNK = 256
"""Rows of draft logits at a time: more would leave the processor's caches."""


@dataclass(frozen=True, kw_only=True)
class EagleOptions:
    """How an EAGLE head is trained.

    ttt_steps: draft steps that a chain is unrolled for. decay: step s counts decay^s. loss: a name
    in `losses.LOSSES`. keep: chains whose draft was wrong go on to the next step with this chance;
    the others always do. matrix_lr, vector_lr, head_lr: peak rates of matrices (Muon), norms and a
    trained output head (AdamW). train_head: whether the output head departs from the target's rows.
    compute_dtype: of products and activations; parameters are float32.
    """

    ttt_steps: int = 5
    decay: float = 1.0
    loss: str = "kl"
    keep: float = 0.15
    matrix_lr: float = 5e-3
    vector_lr: float = 2e-3
    head_lr: float = 4e-4
    train_head: bool = False
    compute_dtype: torch.dtype = torch.bfloat16


class EagleTrainee:
    """An EAGLE-3 or EAGLE-1 head in training; implements `trainee.Trainee`.

    head, module: the network, its parameters float32. Its `fc` reads features divided by
    `feature_scales` (the size of each captured layer's activations), which `save` works into its
    weights.
    """

    def __init__(
        self,
        module: EagleModule,
        target: TargetHead,
        embedding: Float[Tensor, "V Ht"],
        feature_scales: tuple[float, ...],
        parts: TargetParts,
        draft_token_ids: Int64[np.ndarray, " Vd"],
        options: EagleOptions,
    ) -> None:
        self.head = module
        self.module: nn.Module = module
        self.parts, self.draft_token_ids = parts, draft_token_ids
        self.options = options
        self.target = target
        self.embedding = embedding.to(options.compute_dtype)
        self.feature_scales = feature_scales
        self.capture = tuple(dict.fromkeys((*module.config.feature_layers, target.layer)))
        self._unrolled = _Unrolled(self)

    def parameter_groups(self) -> list[dict[str, Any]]:
        options = self.options
        named = [(n, p) for n, p in self.module.named_parameters() if p.requires_grad]
        matrices = [p for n, p in named if p.ndim == 2 and n != "lm_head.weight"]
        vectors = [p for _, p in named if p.ndim == 1]
        head = [p for n, p in named if n == "lm_head.weight"]
        return [
            {"params": matrices, "kind": "matrix", "lr": options.matrix_lr},
            {"params": vectors, "kind": "vector", "lr": options.vector_lr},
            {"params": head, "kind": "vector", "lr": options.head_lr},
        ]

    def loss(self, batch: TrainingBatch, *, training: bool) -> LossReport:
        with torch.set_grad_enabled(training):
            steps = self.options.ttt_steps
            return self._compute(batch, steps, training=training, greedy=False)[0]

    @torch.no_grad()
    def accepted_lengths(
        self, batch: TrainingBatch, steps: int
    ) -> tuple[Int[Tensor, " A"], Int[Tensor, " A"]]:
        """(newest token of each chain, how many of `steps` drafts from there are the answer's)."""
        _, columns, lengths = self._compute(batch, steps, training=False, greedy=True)
        return columns.chains + 1, lengths

    def exported(self) -> EagleModule:
        """The head as it is used: reading features as the target gives them."""
        config = self.head.config
        module = EagleModule(config)
        module.load_state_dict(self.head.state_dict())
        if config.algorithm == "eagle3":
            with torch.no_grad():
                module.fc.weight /= scale_by_column(config, self.feature_scales)
        return module

    def save(self, directory: Path) -> None:
        """Write config.json and model.safetensors; the output head only if it was trained."""
        lm_head = STORED if self.options.train_head else TARGET
        write_eagle(directory, self.exported(), self.draft_token_ids, self.parts, lm_head=lm_head)

    def _compute(
        self, batch: TrainingBatch, steps: int, *, training: bool, greedy: bool
    ) -> tuple[LossReport, Columns, Int[Tensor, " A"]]:
        """Unroll with the parameters in the dtype of products."""
        dtype = self.options.compute_dtype
        cast = {
            f"module.{name}": parameter.to(dtype)
            for name, parameter in self.module.named_parameters()
            if parameter.requires_grad
        }
        result: tuple[LossReport, Columns, Tensor] = functional_call(
            self._unrolled, cast, (batch, steps, training, greedy)
        )
        return result


def scale_by_column(config: EagleConfig, scales: tuple[float, ...]) -> Float[Tensor, " F"]:
    """The scale of what each column of `fc` reads."""
    return torch.tensor(scales).repeat_interleave(config.target_hidden_size)


class _Unrolled(nn.Module):
    """The unrolled pass as a module of its own, so that its parameters can be replaced by casts."""

    def __init__(self, trainee: EagleTrainee) -> None:
        super().__init__()
        self.module = trainee.head
        self._options = trainee.options
        self._target = trainee.target
        self._embedding = trainee.embedding
        self._scales = trainee.feature_scales
        self._loss = loss_named(trainee.options.loss)

    def forward(
        self, batch: TrainingBatch, num_steps: int, training: bool, greedy: bool
    ) -> tuple[LossReport, Columns, Int[Tensor, " A"]]:
        """The loss over all chains, and how many leading drafts of each were right."""
        columns = Columns.of(batch)
        lengths = torch.zeros_like(columns.chains)
        tried, accepted = [0] * num_steps, [0] * num_steps
        total, weight = torch.zeros(()), 0.0
        if len(lengths) == 0:
            return LossReport(total, tried, accepted), columns, lengths
        living = Living.all_of(columns, self._fused(batch, len(columns)))
        target_rows = self._target_rows(batch, columns.chains[living.chains], greedy)
        layer = UnrolledLayer(self.module, columns, self._embedding, num_steps)
        clean = torch.ones_like(living.chains, dtype=torch.bool)
        for s in range(num_steps):
            output, context = layer.step(living, s)
            summed, hit = self._judge(output, target_rows, living.chains + s, living.count)
            each = self._options.decay**s
            total, weight = total + each * summed, weight + each * living.count
            chains, right = living.chains[: living.count], clean[: living.count] & hit
            tried[s], accepted[s] = int(clean[: living.count].sum()), int(right.sum())
            lengths[chains] += right
            going = self._going_on(hit, training) & (columns.num_steps[chains] > s + 1)
            kept = going.nonzero()[:, 0]
            if len(kept) == 0:
                break
            clean = right[kept]
            living = layer.following(living, output, context, kept)
        return LossReport(total / weight, tried, accepted), columns, lengths

    def _target_rows(
        self, batch: TrainingBatch, chains: Int[Tensor, " m"], greedy: bool
    ) -> TargetRows:
        last = batch.features[self._target.layer]
        return self._target.rows(last[chains + 1], batch.token_ids[chains + 2], greedy=greedy)

    def _fused(self, batch: TrainingBatch, num_columns: int) -> Float[Tensor, "M H"]:
        """What each column starts from; spare columns of zeros behind the batch's."""
        config, dtype = self.module.config, self._options.compute_dtype
        captured = [batch.features[layer] for layer in config.feature_layers]
        if config.algorithm == "eagle":
            captured = [self._target.normed(captured[0])]
        width = config.target_hidden_size
        features = torch.zeros(num_columns, width * len(captured), dtype=dtype)
        for i, (x, scale) in enumerate(zip(captured, self._scales, strict=True)):
            into = features[: len(x), i * width : (i + 1) * width]
            torch.mul(x.to(dtype), 1 / scale, out=into)
        return self.module.fuse(features)

    def _judge(
        self,
        output: Float[Tensor, "m H"],
        target_rows: TargetRows,
        predicted: Int[Tensor, " m"],
        count: int,
    ) -> tuple[Float[Tensor, ""], Bool[Tensor, " r"]]:
        """The sum of the losses of a step's first `count` logits, and which of these put the right
        token first.

        predicted: the row of `target_rows` that each output predicts."""
        judged: tuple[Tensor, Tensor] = HeadLoss.apply(  # type: ignore[no-untyped-call]
            self.module.normed(output),
            self.module.lm_head.weight if self._options.train_head else self._target.weight,
            target_rows.p,
            target_rows.entropy,
            target_rows.labels,
            predicted,
            count,
            self._loss,
            CHUNK,
        )
        return judged

    def _going_on(self, hit: Bool[Tensor, " r"], training: bool) -> Bool[Tensor, " r"]:
        if not training or self._options.keep == 0:
            return hit
        return hit | (torch.rand(len(hit)) < self._options.keep)
