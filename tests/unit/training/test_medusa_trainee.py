"""Medusa heads in training: what they learn from, what they report, and where they end up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from heads import COUNTING_SIZE, batch_of, counting_heads, counting_model, some_vocabulary, train
from tiny import tiny_model

from outpace import LLM, SamplingParams
from outpace.errors import ModelError, OptionError
from outpace.heads.medusa import read_medusa
from outpace.heads.target_parts import TargetParts
from outpace.training.evaluation import ChainTrainee
from outpace.training.medusa import MedusaOptions, MedusaTrainee
from outpace.training.trainee import Trainee, TrainingBatch

TARGET = counting_model()
PARTS = TargetParts(TARGET)
WHOLE = some_vocabulary(COUNTING_SIZE, None)


def counting_text(start: int, length: int) -> list[int]:
    return [(start + i) % COUNTING_SIZE for i in range(length)]


def counting_batch(*lengths: int, num_prompt: int = 3) -> TrainingBatch:
    texts = [counting_text(7 * i, length) for i, length in enumerate(lengths)]
    return batch_of(TARGET, texts, num_prompt, [2])


def trainee(start: Path | None = None, **options: Any) -> MedusaTrainee:
    options = {"compute_dtype": torch.float32, **options}
    checkpoint = None if start is None else read_medusa(start, PARTS)
    return MedusaTrainee(PARTS, WHOLE, MedusaOptions(**options), checkpoint)


def test_it_is_a_trainee() -> None:
    made = trainee()
    as_trainee: Trainee = made
    assert as_trainee.capture == (2,)
    assert isinstance(made, ChainTrainee)
    groups = made.parameter_groups()
    assert [group["kind"] for group in groups] == ["matrix", "vector"]
    assert sum(len(group["params"]) for group in groups) == 6


def test_new_heads_guess_what_the_target_says_next() -> None:
    """All of them are one token short: the loss is that of the wrong token, and none is right."""
    report = trainee().loss(counting_batch(20, 12), training=False)
    assert report.tried == [17 - 1 + 9 - 1, 0, 0]
    assert report.accepted == [0, 0, 0]
    assert float(report.loss) > 5


def test_heads_that_are_right_accept_everything(tmp_path: Path) -> None:
    """Of n answer tokens the first and the last but one .. start chains; a chain reaches the end of
    its answer, never the next one's beginning."""
    made = trainee(counting_heads(tmp_path / "heads"))
    batch = counting_batch(20, 12, 5)
    report = made.loss(batch, training=False)
    # Answers of 17, 9 and 2 tokens.
    assert report.tried == report.accepted == [16 + 8 + 1, 15 + 7, 14 + 6]
    newest, lengths = made.accepted_lengths(batch, 6)
    assert newest.tolist() == [*range(3, 19), *range(23, 31), 35]
    assert lengths.tolist() == [*[3] * 14, 2, 1, *[3] * 6, 2, 1, 1]
    assert made.accepted_lengths(batch, 2)[1].max() == 2


def test_each_head_is_judged_by_its_own_token(tmp_path: Path) -> None:
    """The second head breaks: the first stays right, and no third draft is reached."""
    made = trainee(counting_heads(tmp_path / "heads"))
    with torch.no_grad():
        made.module.blocks[1].layers[0].weight.zero_()
    report = made.loss(counting_batch(20), training=False)
    assert report.tried == [16, 15, 0]
    assert report.accepted == [16, 0, 0]
    assert made.accepted_lengths(counting_batch(20), 3)[1].tolist() == [1] * 16


@pytest.mark.parametrize("decay", [1.0, 0.5])
def test_the_loss_is_a_weighted_mean(decay: float, tmp_path: Path) -> None:
    """KL against the target's distribution of the token a head guesses, written out."""
    made = trainee(counting_heads(tmp_path / "heads"), decay=decay)
    with torch.no_grad():
        for parameter in made.module.parameters():
            parameter += torch.randn(parameter.shape)
    batch = counting_batch(14, 9)
    features = made.target.normed(batch.features[2])
    rows = made.target.weight
    p = torch.softmax(features @ rows.T, dim=1)
    total, weight = 0.0, 0.0
    for start, end in ((0, 14), (14, 23)):
        for newest_fed in range(start + 2, end - 2):
            for head in range(min(3, end - newest_fed - 2)):
                logits = made.module(head, features[newest_fed : newest_fed + 1])[0] @ rows.T
                wanted = p[newest_fed + 1 + head]
                divergence = (wanted * (wanted.log() - torch.log_softmax(logits, 0))).sum()
                total += decay**head * float(divergence.detach())
                weight += decay**head
    report = made.loss(batch, training=True)
    assert float(report.loss.detach()) == pytest.approx(total / weight, rel=1e-3)


def test_heads_learn_to_count_and_then_draft_so(tmp_path: Path) -> None:
    made = trainee(compute_dtype=torch.bfloat16)
    batches = [counting_batch(60, 50, 40), counting_batch(64, 33)]
    report = train(made, batches, 40, lr_scale=8)
    assert report.accepted == report.tried
    made.save(tmp_path)
    again = read_medusa(tmp_path, PARTS).module()
    for name, tensor in made.module.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor.bfloat16().float())
    speculation = {"method": "medusa", "model": str(tmp_path), "num_speculative_tokens": 3}
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    with LLM(TARGET, speculative_config=speculation) as llm:
        (result,) = llm.generate([{"prompt_token_ids": [5, 6]}], params)
    assert result.stats.num_accepted_tokens == result.stats.num_draft_tokens


def test_a_reduced_vocabulary_misses_what_it_lacks() -> None:
    """A chain ends where the answer's token cannot be drafted."""
    vocabulary = some_vocabulary(COUNTING_SIZE, 20)
    options = MedusaOptions(compute_dtype=torch.float32)
    made = MedusaTrainee(PARTS, vocabulary, options)
    train(made, [counting_batch(64, 64, 40)], 40, lr_scale=8)
    batch = counting_batch(40)
    newest, lengths = made.accepted_lengths(batch, 3)
    has_token = np.isin(batch.token_ids.numpy(), vocabulary)
    for token, length in zip(newest.tolist(), lengths.tolist(), strict=True):
        possible = has_token[token + 1 : token + 4].tolist()
        assert length == [*possible, False].index(False)


def test_going_on_keeps_the_shape(tmp_path: Path) -> None:
    made = trainee(counting_heads(tmp_path / "heads", num_heads=2), num_heads=5, bias=False)
    assert made.module.config.num_heads == 2
    assert made.module.config.bias


def test_what_cannot_be_trained_is_refused() -> None:
    with pytest.raises(OptionError, match="no loss called 'mse'"):
        trainee(loss="mse")
    layer_norm = tiny_model(norm="layer")
    with pytest.raises(ModelError, match="layer norm"):
        MedusaTrainee(TargetParts(layer_norm), some_vocabulary(96, None), MedusaOptions())
