"""The unrolled training pass against drafting one column after the other, in float64."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from eagle_heads import ReferenceHead, draft_vocabulary, head_config, head_weights
from tiny import tiny_model
from torch import Tensor

from outpace.heads.checkpoint import read_eagle
from outpace.heads.config import EagleConfig
from outpace.heads.eagle import EagleModule
from outpace.heads.target_parts import TargetParts
from outpace.models.rotation import Rotation, rotate
from outpace.training.eagle import EagleOptions, EagleTrainee
from outpace.training.eagle_init import eagle_from_head
from outpace.training.eagle_layer import Living, UnrolledLayer
from outpace.training.optimisers import make_optimisers
from outpace.training.targets import TargetHead
from outpace.training.trainee import TrainingBatch
from outpace.training.unrolled import Columns, padded_size

SIZES: dict[str, Any] = {"hidden_size": 32, "target_hidden_size": 32, "feature_layers": (0, 1, 2)}
CONFIGS = [
    head_config(norm_before_residual=True, **SIZES),
    head_config(norm_output=True, fc_norm=True, **SIZES),
    head_config("eagle", **{**SIZES, "feature_layers": (2,)}),
]
STEPS = 3
# Prompt and answer of each sequence: one answer is too short for a chain, one is one token.
LENGTHS = [(4, 9), (140, 14), (3, 2), (2, 1), (1, 70)]


def make_batch(seed: int = 0) -> TrainingBatch:
    generator = torch.Generator().manual_seed(seed)
    is_answer = torch.cat([torch.arange(p + a) >= p for p, a in LENGTHS])
    num = len(is_answer)
    features = {
        layer: torch.randn(num, 32, generator=generator).to(torch.bfloat16) for layer in (0, 1, 2)
    }
    starts = tuple(np.cumsum([0, *(p + a for p, a in LENGTHS)]).tolist())
    tokens = torch.randint(0, 107, (num,), generator=generator)
    return TrainingBatch(tokens, features, is_answer, starts)


def make_trainee(config: EagleConfig, **options: Any) -> EagleTrainee:
    generator = torch.Generator().manual_seed(7)
    values: dict[str, Any] = {"ttt_steps": STEPS, "keep": 1.0, "compute_dtype": torch.float64}
    chosen = EagleOptions(**(values | options))
    module = EagleModule(config)
    module.load_state_dict(head_weights(config))
    module.lm_head.weight.requires_grad_(chosen.train_head)
    ids = draft_vocabulary(config)
    target = TargetHead(
        layer=2,
        norm=torch.rand(32, generator=generator) + 0.5,
        eps=1e-5,
        weight=module.lm_head.weight.detach().to(chosen.compute_dtype).clone(),
        draft_token_ids=torch.from_numpy(ids),
        vocab_size=107,
    )
    embedding = torch.randn(107, 32, generator=generator)
    scales = (1.0,) * len(config.feature_layers)
    parts: Any = None
    return EagleTrainee(module, target, embedding, scales, parts, ids, chosen)


def chains_by_hand(batch: TrainingBatch) -> Iterator[tuple[int, int, int]]:
    """(where its sequence begins, the column it starts at, how many steps it has)."""
    for (prompt, answer), start in zip(LENGTHS, batch.starts, strict=False):
        end = start + prompt + answer
        for column in range(start + prompt - 1, end - 2):
            yield start, column, end - 2 - column


def reference_logits(
    trainee: EagleTrainee, batch: TrainingBatch, steps: int
) -> dict[tuple[int, int], np.ndarray]:
    """Of each chain's start and step: what a head says that really drafted its way there."""
    config = trainee.module.config
    found = {}
    features = torch.cat([batch.features[i] for i in config.feature_layers], 1).double().numpy()
    weights, norm = trainee.module.state_dict(), trainee.target._norm.numpy()
    embedding = trainee.embedding.numpy()
    whole: dict[int, tuple[ReferenceHead, np.ndarray, np.ndarray]] = {}
    for start, end in zip(batch.starts, batch.starts[1:], strict=False):
        head = ReferenceHead(config, weights, embedding, norm)
        tokens = batch.token_ids[start + 1 : end].tolist()
        whole[start] = (head, *head.chain(tokens, head.fuse(features[start : end - 1])))
    for start, column, length in chains_by_hand(batch):
        (target_fed, logits, outputs), at = whole[start], column - start
        found[column, 0], output = logits[at], outputs[at]
        keys, values = target_fed.keys[: at + 1], target_fed.values[: at + 1]
        head = ReferenceHead(config, weights, embedding, norm, keys, values)
        for s in range(1, min(steps, length)):
            token = int(batch.token_ids[column + 1 + s])
            (found[column, s],), (output,) = head.chain([token], output[None])
    return found


def test_columns_chains_and_their_ends() -> None:
    batch = make_batch()
    columns = Columns.of(batch)
    wanted = [(column, length) for _, column, length in chains_by_hand(batch)]
    assert list(zip(columns.chains.tolist(), columns.num_steps.tolist(), strict=True)) == wanted
    spare = len(columns) - len(batch.token_ids)
    assert spare >= 128
    assert len(columns) == padded_size(len(columns))


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.algorithm + "-" + str(c.norm_output))
def test_every_step_says_what_a_real_chain_of_drafts_says(config: EagleConfig) -> None:
    """Whichever other chains have ended: a third of them is dropped after each step."""
    trainee, batch = make_trainee(config), make_batch()
    wanted = reference_logits(trainee, batch, STEPS)
    columns = Columns.of(batch)
    module = trainee.module.double()
    seen = 0
    with torch.no_grad():
        living = Living.all_of(columns, trainee._unrolled._fused(batch, len(columns)))
        layer = UnrolledLayer(module, columns, trainee.embedding, STEPS)
        for s in range(STEPS):
            output, context = layer.step(living, s)
            logits = module.logits(output)[: living.count].numpy()
            chains = living.chains[: living.count]
            for chain, row in zip(chains.tolist(), logits, strict=True):
                column = int(columns.chains[chain])
                # Angles of positions are float32.
                np.testing.assert_allclose(row, wanted[column, s], atol=5e-4)
                seen += 1
            going = (columns.num_steps[chains] > s + 1) & (chains % 3 != s)
            living = layer.following(living, output, context, going.nonzero()[:, 0])
    assert seen > 1.9 * len(columns.chains)


def naive_loss(trainee: EagleTrainee, batch: TrainingBatch, steps: int) -> Tensor:
    """The mean KL of all chains at all steps, chain by chain, with nothing written out by hand."""
    module, config = trainee.module, trainee.module.config
    rotation = Rotation(config.rope, config.head_dim, torch.float64, "cpu")
    rotation.reach(300)
    features = torch.cat([batch.features[i] for i in config.feature_layers], 1).double()
    group = config.num_attention_heads // config.num_key_value_heads
    losses = []
    for start, column, length in chains_by_hand(batch):
        keys: list[Tensor] = []
        values: list[Tensor] = []

        def attend(q: Tensor, k: Tensor, v: Tensor, keys=keys, values=values) -> Tensor:
            first = sum(map(len, keys))
            positions = torch.arange(first, first + len(q))
            q, k = (rotate(x, *rotation(positions)) for x in (q, k))
            keys.append(k)
            values.append(v)
            all_keys, all_values = (
                torch.cat(x).repeat_interleave(group, 1).transpose(0, 1) for x in (keys, values)
            )
            mask = torch.arange(all_keys.shape[1]) <= positions[:, None]
            out = F.scaled_dot_product_attention(q.transpose(0, 1), all_keys, all_values, mask)
            return out.transpose(0, 1).flatten(1)

        x = module.fuse(features[start : column + 1])
        tokens = batch.token_ids[start + 1 : column + 2]
        for s in range(min(steps, length)):
            output = module(x, trainee.embedding[tokens], attend)[-1:]
            predicted = column + 2 + s
            last = batch.features[2][predicted - 1].float()
            normed = F.rms_norm(last, (32,), trainee.target._norm, 1e-5).double()
            p = torch.softmax(trainee.target.weight @ normed, 0)
            log_q = torch.log_softmax(module.logits(output)[0], 0)
            losses.append((p * (p.log() - log_q)).sum())
            x, tokens = module.next_input(output), batch.token_ids[predicted : predicted + 1]
    return torch.stack(losses).mean()


def test_the_gradient_is_that_of_drafting_chain_by_chain() -> None:
    trainee, batch = make_trainee(CONFIGS[0]), make_batch()
    trainee.module.double()
    report = trainee.loss(batch, training=True)
    report.loss.backward()
    found = {n: p.grad.clone() for n, p in trainee.module.named_parameters() if p.requires_grad}
    trainee.module.zero_grad()
    wanted = naive_loss(trainee, batch, STEPS)
    wanted.backward()
    assert report.loss.item() == pytest.approx(wanted.item(), rel=1e-5)
    assert len(found) == 12
    for name, parameter in trainee.module.named_parameters():
        if parameter.requires_grad:
            scale = parameter.grad.abs().max().item()
            # Weights of the loss and of keys are summed in float32.
            torch.testing.assert_close(found[name], parameter.grad, atol=1e-5 * scale, rtol=1e-4)


def test_bfloat16_gradients_point_the_same_way() -> None:
    batch, gradients = make_batch(), []
    for dtype in (torch.float64, torch.bfloat16):
        trainee = make_trainee(CONFIGS[0], compute_dtype=dtype)
        trainee.loss(batch, training=True).loss.backward()
        grads = [p.grad.flatten().double() for p in trainee.module.parameters() if p.requires_grad]
        gradients.append(torch.cat(grads))
    assert torch.cosine_similarity(*gradients, dim=0) > 0.99


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.algorithm + "-" + str(c.norm_output))
def test_accepted_lengths_are_those_of_greedy_chains(config: EagleConfig) -> None:
    """On an answer made of the head's own drafts, so that there is something to accept."""
    trainee, batch = make_trainee(config), make_batch()
    trainee.module.double()
    ids = trainee.draft_token_ids
    for _ in range(4):  # the answer follows the drafts, and the drafts follow the answer
        for (column, s), row in reference_logits(trainee, batch, 2).items():
            if column % 4 == 0:
                batch.token_ids[column + 2 + s] = int(ids[row.argmax()])
    logits = reference_logits(trainee, batch, STEPS)
    wanted = []
    for _, column, length in chains_by_hand(batch):
        right = 0
        for s in range(min(STEPS, length)):
            if int(ids[logits[column, s].argmax()]) != int(batch.token_ids[column + 2 + s]):
                break
            right += 1
        wanted.append((column + 1, right))
    newest, lengths = trainee.accepted_lengths(batch, STEPS)
    assert list(zip(newest.tolist(), lengths.tolist(), strict=True)) == wanted
    assert lengths.max() >= 2
    assert (lengths == 0).any()


def test_chains_end_with_their_first_wrong_draft_when_nothing_is_kept() -> None:
    trainee, batch = make_trainee(CONFIGS[0], keep=0.0), make_batch()
    report = trainee.loss(batch, training=True)
    held_out = trainee.loss(batch, training=False)
    assert report.tried == held_out.tried
    assert report.tried[0] == len(Columns.of(batch).chains)
    assert report.tried[1] <= report.accepted[0] < report.tried[0]


def test_labels_believe_the_answer_unless_it_was_sampled() -> None:
    trainee, batch = make_trainee(CONFIGS[0]), make_batch()
    target, ids = trainee.target, trainee.draft_token_ids
    x = target.normed(batch.features[2][:20]).double()
    likeliest = (x @ target.weight.t()).argmax(1)
    tokens = torch.from_numpy(ids)[likeliest].clone()
    outside = sorted(set(range(107)) - set(ids.tolist()))[0]
    tokens[0], tokens[1] = outside, int(ids[(int(likeliest[1]) + 1) % len(ids)])
    rows = target.rows(batch.features[2][:20], tokens)
    assert rows.labels.tolist() == [-1, *likeliest[1:].tolist()]
    greedy = target.rows(batch.features[2][:20], tokens, greedy=True)
    assert greedy.labels[1] == (likeliest[1] + 1) % len(ids)
    torch.testing.assert_close(rows.p.sum(1), torch.ones(20, dtype=torch.float64))


def test_a_batch_without_an_answer_costs_nothing_and_breaks_nothing() -> None:
    trainee, batch = make_trainee(CONFIGS[0]), make_batch()
    batch.is_answer[:] = False
    report = trainee.loss(batch, training=False)
    assert (float(report.loss), sum(report.tried)) == (0.0, 0)


def test_training_helps_and_leaves_a_frozen_head_alone() -> None:
    trainee = make_trainee(
        CONFIGS[0], keep=0.15, compute_dtype=torch.bfloat16, matrix_lr=2e-2, vector_lr=1e-2
    )
    batch = make_batch()
    # A target that can be learned: what it says next is in its features.
    head = trainee.module.lm_head.weight.detach().clone()
    optimisers = make_optimisers(trainee.parameter_groups())
    reports = []
    for _ in range(30):
        torch.manual_seed(0)
        report = trainee.loss(batch, training=True)
        for optimiser in optimisers:
            optimiser.zero_grad()
        report.loss.backward()
        for optimiser in optimisers:
            optimiser.step()
        reports.append(report)
    assert reports[-1].loss.item() < 0.5 * reports[0].loss.item()
    assert reports[-1].accepted[0] > 2 * reports[0].accepted[0]
    torch.testing.assert_close(trainee.module.lm_head.weight.detach(), head, atol=0, rtol=0)


def test_a_trained_head_is_trained() -> None:
    trainee = make_trainee(CONFIGS[0], train_head=True)
    trainee.loss(make_batch(), training=True).loss.backward()
    gradient = trainee.module.lm_head.weight.grad
    assert gradient is not None
    assert (gradient.abs().sum(1) > 0).all()
    kinds = {group["kind"]: len(group["params"]) for group in trainee.parameter_groups()[:2]}
    assert kinds == {"matrix": 8, "vector": 4}
    assert trainee.parameter_groups()[2]["params"] == [trainee.module.lm_head.weight]


class FakeStore:
    """Enough of a `FeatureStore` for the sizes of features."""

    def __len__(self) -> int:
        return 1

    def is_held_out(self, index: int) -> bool:
        return False

    def batch(self, indices: list[int]) -> TrainingBatch:
        batch = make_batch()
        return TrainingBatch(
            batch.token_ids,
            {layer: 4.0**layer * x for layer, x in batch.features.items()},
            batch.is_answer,
            batch.starts,
        )


@pytest.mark.parametrize("train_head", [False, True])
def test_saved_read_and_gone_on_from_with_another_vocabulary(
    tmp_path: Path, train_head: bool
) -> None:
    parts = TargetParts(tiny_model(vocab_size=107, seed=1))
    trainee = make_trainee(CONFIGS[0], train_head=train_head)
    trainee.parts, trainee.feature_scales = parts, (1.0, 4.0, 16.0)
    trainee.save(tmp_path)
    read = read_eagle(tmp_path, parts, "eagle3")
    assert ("lm_head.weight" in read.tensors) == train_head
    features = torch.randn(5, 96)
    scaled = features / torch.tensor([1.0, 4.0, 16.0]).repeat_interleave(32)
    torch.testing.assert_close(
        read.module(parts).fuse(features), trainee.module.fuse(scaled), atol=0.05, rtol=0.05
    )
    vocabulary = np.arange(20, 60)
    store: Any = FakeStore()
    options = EagleOptions(train_head=train_head, compute_dtype=torch.float32)
    again = eagle_from_head(read, parts, store, options, vocabulary)
    assert again.module.config.draft_vocab_size == 40
    assert again.feature_scales == pytest.approx((1.0, 4.0, 16.0), rel=0.1)
    torch.testing.assert_close(
        again.exported().fuse(features), read.module(parts).fuse(features), atol=1e-4, rtol=1e-4
    )
    rows = again.module.lm_head.weight.detach()
    old = {int(t): i for i, t in enumerate(read.draft_token_ids)}
    target_rows = torch.from_numpy(np.array(parts.head_rows(vocabulary.tolist())))
    for i, token in enumerate(vocabulary.tolist()):
        kept = train_head and token in old
        wanted = read.tensors["lm_head.weight"][old[token]].float() if kept else target_rows[i]
        torch.testing.assert_close(rows[i], wanted.float(), atol=1e-6, rtol=1e-6)
