"""Training a small Llama that drafts for a target, with the target's own tokenizer.

It learns the target's answers by what the target would have said at each token (distillation):
the outputs of the target's last layer are captured, its final norm and output head give the
distribution again, a few hundred positions at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.func import functional_call

from outpace.errors import ModelError
from outpace.heads.binding import KEY, Binding
from outpace.heads.files import write_draft
from outpace.models.hf.config import config_from_hf
from outpace.models.hub import names
from outpace.models.open import open_checkpoint
from outpace.models.tokenizer import check_same_vocabulary
from outpace.training.draft_network import LlamaNetwork
from outpace.training.draft_size import ROPE_THETA, ModelSize, draft_config
from outpace.training.frozen_head import frozen_head
from outpace.training.losses import HeadLoss, loss_named
from outpace.training.trainee import LossReport, TrainingBatch

if TYPE_CHECKING:
    from outpace.heads.target_parts import TargetParts
    from outpace.models.config import ModelConfig

CHUNK, POSITIONS = 128, 512
"""Rows of draft logits at a time, and positions whose target distributions stand in memory."""
INITIAL_NORM = 0.25
"""Of the final norm. An embedding that is the output head as well likes the token that it just read
best, the more the larger the logits are: a small norm keeps that from being unlearned first."""
REPORTED = 5
"""Draft positions that reports tell of."""


@dataclass(frozen=True, kw_only=True)
class DraftModelOptions:
    """How a draft model is trained.

    loss: a name in `losses.LOSSES`. matrix_lr, vector_lr, embedding_lr: peak rates of matrices
    (Muon), norms and the embedding (AdamW). compute_dtype: of products; parameters are float32.
    """

    loss: str = "kl"
    matrix_lr: float = 5e-3
    vector_lr: float = 2e-3
    embedding_lr: float = 2e-3
    compute_dtype: torch.dtype = torch.bfloat16


class DraftModelTrainee:
    """A draft model in training; implements `trainee.Trainee` and `evaluation.ChainTrainee`."""

    def __init__(
        self, module: LlamaNetwork, parts: TargetParts, options: DraftModelOptions
    ) -> None:
        self.module, self.parts, self.options = module, parts, options
        self.capture = (parts.num_layers,)
        self._loss = loss_named(options.loss)
        ids = np.arange(module.config.vocab_size)
        self._target = frozen_head(parts, ids, options.compute_dtype)

    def parameter_groups(self) -> list[dict[str, Any]]:
        options = self.options
        named = dict(self.module.named_parameters())
        embedding = [named.pop("model.embed_tokens.weight")]
        matrices = [p for p in named.values() if p.ndim == 2]
        vectors = [p for p in named.values() if p.ndim == 1]
        return [
            {"params": matrices, "kind": "matrix", "lr": options.matrix_lr},
            {"params": vectors, "kind": "vector", "lr": options.vector_lr},
            {"params": embedding, "kind": "vector", "lr": options.embedding_lr},
        ]

    def loss(self, batch: TrainingBatch, *, training: bool) -> LossReport:
        with torch.set_grad_enabled(training):
            rows = _predicting(batch)
            total, hit = self._judged(batch, rows, greedy=False)
        tried, accepted = _chains(rows, hit, REPORTED)
        return LossReport(total / max(len(rows), 1), tried, accepted)

    @torch.no_grad()
    def accepted_lengths(
        self, batch: TrainingBatch, steps: int
    ) -> tuple[Int[Tensor, " A"], Int[Tensor, " A"]]:
        """(newest token of each chain, how many of `steps` drafts from there are the answer's).

        A draft model sees the same tokens whether the answer or a right draft brought them, so one
        pass over the answer tells all chains.
        """
        rows = _predicting(batch)
        _, hit = self._judged(batch, rows, greedy=True)
        runs = _run_lengths(rows, hit).clamp(max=steps)
        # The answer's first token is the target's own; chains start from there.
        drafting = batch.is_answer[rows]
        return rows[drafting], runs[drafting]

    def save(self, directory: Path) -> None:
        """Write a Hugging Face directory: config.json, model.safetensors and the tokenizer."""
        tokenizer = self.parts.target.tokenizer
        tokenizer.save(directory)
        values = config_json(self.module.config)
        values["bos_token_id"] = tokenizer.bos_id
        values["eos_token_id"] = sorted(tokenizer.end_token_ids)
        values[KEY] = Binding.to(self.parts).as_json()
        tensors = {
            name: tensor.detach().to("cpu", torch.bfloat16)
            for name, tensor in self.module.state_dict().items()
        }
        write_draft(directory, values, tensors)

    def _judged(
        self, batch: TrainingBatch, rows: Int[Tensor, " r"], *, greedy: bool
    ) -> tuple[Float[Tensor, ""], Bool[Tensor, " r"]]:
        """(sum of the losses of what follows the tokens `rows`, whether each was predicted)."""
        dtype = self.options.compute_dtype
        cast = {name: p.to(dtype) for name, p in self.module.named_parameters()}
        x = functional_call(self.module, cast, (batch.token_ids, batch.starts))[rows]
        head = cast["model.embed_tokens.weight"]
        last = batch.features[self._target.layer]
        total, hits = x.new_zeros((), dtype=torch.float32), []
        for at in range(0, len(rows), POSITIONS):
            part = rows[at : at + POSITIONS]
            target = self._target.rows(last[part], batch.token_ids[part + 1], greedy=greedy)
            judged: tuple[Tensor, Tensor] = HeadLoss.apply(  # type: ignore[no-untyped-call]
                x[at : at + POSITIONS],
                head,
                target.p,
                target.entropy,
                target.labels,
                torch.arange(len(part)),
                len(part),
                self._loss,
                CHUNK,
            )
            total = total + judged[0]
            hits.append(judged[1])
        return total, torch.cat(hits) if hits else torch.zeros(0, dtype=torch.bool)


def new_draft_model(
    parts: TargetParts,
    size: ModelSize,
    token_counts: Int[Tensor, " V"],
    options: DraftModelOptions,
    *,
    seed: int = 0,
) -> DraftModelTrainee:
    """A draft model whose embedding is the target's, reduced to its width; the rest is random.

    token_counts: how often each token occurs in the answers; frequent ones weigh more in the
    reduction. Raises OptionError for a loss that does not exist.
    """
    torch.manual_seed(seed)
    vocab_size = parts.target.decoder.num_logits
    module = LlamaNetwork(draft_config(parts.config, size, vocab_size))
    rows = torch.from_numpy(parts.embedding_rows(list(range(vocab_size))))
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.ndim == 2:
                parameter.normal_(0, parameter.shape[1] ** -0.5)
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                parameter.zero_()  # each layer starts as a pass-through
        module.model.norm.weight.fill_(INITIAL_NORM)
        module.embedding.copy_(reduced_rows(rows, size.hidden_size, token_counts[:vocab_size]))
    return DraftModelTrainee(module, parts, options)


def draft_model_from(
    directory: Path, parts: TargetParts, options: DraftModelOptions
) -> DraftModelTrainee:
    """A draft model that goes on from the weights of another one.

    Raises ModelError for a model that is no plain Llama with tied embeddings, OptionError for one
    of another vocabulary.
    """
    checkpoint = open_checkpoint(names.resolve(str(directory)))
    check_same_vocabulary(parts.target.tokenizer, checkpoint.tokenizer())
    config = checkpoint.config
    if not _is_plain(config) or config.vocab_size > parts.vocab_size:
        raise ModelError(
            f"{directory} is no plain Llama with tied embeddings and at most {parts.vocab_size:,} "
            "vocabulary rows, the target's; start from one that is, or leave it out"
        )
    module = LlamaNetwork(config)
    weights = {name: checkpoint.load(name).float() for name in checkpoint.names()}
    module.load_state_dict({name: weights[name] for name in module.state_dict()})
    return DraftModelTrainee(module, parts, options)


def config_json(config: ModelConfig) -> dict[str, Any]:
    """The `config.json` of a plain Llama, as `transformers` spells it."""
    rope = config.layers[0].rope
    assert rope is not None
    theta = rope.frequencies[1] ** -(rope.dim // 2) if rope.dim > 2 else ROPE_THETA
    theta = float(f"{theta:.6g}")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.norm_eps,
        "rope_theta": theta,
        "rope_parameters": {"rope_theta": theta, "rope_type": "default"},
        "max_position_embeddings": config.max_position_embeddings,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "dtype": "bfloat16",
    }


def _is_plain(config: ModelConfig) -> bool:
    """Whether the network here computes it: its `config_json` says all that there is to say."""
    if config.layers[0].rope is None:
        return False
    return replace(config_from_hf(config_json(config)), name=config.name) == config


def reduced_rows(
    rows: Float[Tensor, "V Ht"], width: int, counts: Int[Tensor, " V"]
) -> Float[Tensor, "V H"]:
    """Rows in the `width` directions that keep most of their inner products (principal directions
    of the rows, weighted by how often each occurs, plus one)."""
    width = min(width, rows.shape[1])
    weighted = rows * (counts + 1).sqrt()[:, None]
    _, directions = torch.linalg.eigh(weighted.T @ weighted)
    reduced: Tensor = rows @ directions[:, -width:].flip(1)
    return reduced


def _predicting(batch: TrainingBatch) -> Int[Tensor, " r"]:
    """The tokens that are followed by a token of the same sequence's answer, ascending."""
    followed = torch.zeros_like(batch.is_answer)
    followed[:-1] = batch.is_answer[1:]
    followed[[start - 1 for start in batch.starts[1:]]] = False
    return followed.nonzero()[:, 0]


def _run_lengths(rows: Int[Tensor, " r"], hit: Bool[Tensor, " r"]) -> Int[Tensor, " r"]:
    """How many predictions from each row on are right, without a gap."""
    index = torch.arange(len(rows))
    ends = torch.ones_like(hit)
    ends[:-1] = rows.diff() != 1
    # Where the next miss lies, or the end of the answer.
    stop = torch.where(~hit, index, torch.where(ends, index + 1, len(rows) + 1))
    return stop.flip(0).cummin(0).values.flip(0) - index


def _chains(
    rows: Int[Tensor, " r"], hit: Bool[Tensor, " r"], steps: int
) -> tuple[list[int], list[int]]:
    """(tried, accepted) as in `LossReport`, chains starting at every row."""
    right = _run_lengths(rows, hit)
    left = _run_lengths(rows, torch.ones_like(hit))
    tried = [int(((right >= s) & (left > s)).sum()) for s in range(steps)]
    accepted = [int((right > s).sum()) for s in range(steps)]
    return tried, accepted
