"""Exits in training: what they learn from, what they report, and where they end up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from heads import batch_of, some_vocabulary, train
from tiny import greedy_tokens, tiny_model

from outpace import LLM, SamplingParams
from outpace.errors import ModelError, OptionError
from outpace.heads.exit import read_exit
from outpace.heads.target_parts import TargetParts
from outpace.training.early_exit import ExitOptions, ExitTrainee
from outpace.training.evaluation import ChainTrainee
from outpace.training.trainee import Trainee, TrainingBatch

TARGET = tiny_model(seed=1, num_layers=3)
PARTS = TargetParts(TARGET)
WHOLE = some_vocabulary(96, None)
EXIT = 2


def answers(*prompts: list[int]) -> TrainingBatch:
    """The target's own greedy answers, 40 tokens each, to prompts of 3."""
    texts = [prompt + greedy_tokens(TARGET, prompt, 40) for prompt in prompts]
    return batch_of(TARGET, texts, 3, [EXIT, 3])


PROMPTS = [[5, 6, 7], [40, 2, 3], [9, 9, 9], [30, 31, 60], [88, 4, 17], [71, 70, 69]]


@pytest.fixture(scope="module")
def batch() -> TrainingBatch:
    return answers(*PROMPTS)


def trainee(start: Path | None = None, **options: Any) -> ExitTrainee:
    options = {"compute_dtype": torch.float32, **options}
    checkpoint = None if start is None else read_exit(start, PARTS)
    return ExitTrainee(PARTS, EXIT, WHOLE, ExitOptions(**options), checkpoint)


@pytest.mark.parametrize(("rank", "num_matrices"), [(None, 1), (8, 2)])
def test_it_is_a_trainee(rank: int | None, num_matrices: int) -> None:
    made = trainee(rank=rank)
    as_trainee: Trainee = made
    assert as_trainee.capture == (EXIT, 3)
    assert isinstance(made, ChainTrainee)
    groups = made.parameter_groups()
    assert [len(group["params"]) for group in groups] == [num_matrices, 1]


def test_the_loss_is_the_mean_divergence(batch: TrainingBatch) -> None:
    made = trainee()
    with torch.no_grad():
        made.module.linear.weight += 0.2 * torch.randn(32, 32)
    rows = made.target.weight
    p = torch.softmax(made.target.normed(batch.features[3]) @ rows.T, dim=1)
    logits = made.module(batch.features[EXIT].float()) @ rows.T
    divergence = (p * (p.log() - torch.log_softmax(logits, 1))).sum(1)
    # Of each text of 43 tokens the answer's, but the last: nothing of it follows.
    counted = [start + i for start in range(0, 6 * 43, 43) for i in range(3, 42)]
    report = made.loss(batch, training=True)
    assert float(report.loss.detach()) == pytest.approx(
        float(divergence.detach()[counted].mean()), rel=1e-4
    )


def test_chains_are_runs_of_right_guesses(batch: TrainingBatch) -> None:
    made = trainee(reported_steps=3)
    rows = made.target.weight
    with torch.no_grad():
        guesses = (made.module(batch.features[EXIT].float()) @ rows.T).argmax(1)
    right = (guesses[:-1] == batch.token_ids[1:]).tolist()
    newest, lengths = made.accepted_lengths(batch, 5)
    expected = []
    for token in newest.tolist():
        left = 42 - token % 43
        run = [*right[token : token + min(5, left)], False]
        expected.append(run.index(False))
    assert lengths.tolist() == expected
    assert 0 < max(expected) <= 5
    report = made.loss(batch, training=False)
    assert report.accepted == [sum(n > s for n in expected) for s in range(3)]
    reached = [
        sum(
            n >= s and 42 - token % 43 > s
            for token, n in zip(newest.tolist(), expected, strict=True)
        )
        for s in range(3)
    ]
    assert report.tried == reached


@pytest.mark.parametrize("rank", [None, 16])
def test_an_exit_learns_and_then_drafts_so(
    rank: int | None, batch: TrainingBatch, tmp_path: Path
) -> None:
    made = trainee(rank=rank, compute_dtype=torch.bfloat16)
    before = made.loss(batch, training=False)
    after = train(made, [batch], 40, lr_scale=3)
    assert float(after.loss) < 0.6 * float(before.loss)
    assert after.accepted[0] > 1.3 * before.accepted[0] > 0
    made.save(tmp_path)
    again = read_exit(tmp_path, PARTS).module()
    for name, tensor in made.module.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor.bfloat16().float())
    lengths = [acceptance({"model": str(tmp_path)}), acceptance({"exit_layer": EXIT})]
    assert lengths[0] > 1.15 * lengths[1]


def acceptance(options: dict[str, Any]) -> float:
    """Of drafts on the texts trained on; of an exit that learned them it should have risen."""
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    speculation = {"method": "early_exit", "num_speculative_tokens": 3, **options}
    with LLM(TARGET, speculative_config=speculation, max_num_seqs=6) as llm:
        results = llm.generate([{"prompt_token_ids": ids} for ids in PROMPTS], params)
    return sum(r.stats.num_output_tokens for r in results) / sum(r.stats.num_steps for r in results)


def test_going_on_from_an_exit(batch: TrainingBatch, tmp_path: Path) -> None:
    first = trainee(rank=4)
    train(first, [batch], 5, lr_scale=3)
    first.save(tmp_path)
    second = trainee(tmp_path, rank=9)
    assert second.module.config.rank == 4
    loss = float(second.loss(batch, training=False).loss)
    assert loss == pytest.approx(float(first.loss(batch, training=False).loss), rel=1e-2)
    with pytest.raises(OptionError, match=r"exit_layer=1, but .* was trained for layer 2"):
        ExitTrainee(PARTS, 1, WHOLE, ExitOptions(), read_exit(tmp_path, PARTS))


def test_what_cannot_be_trained_is_refused() -> None:
    for exit_layer in (0, 3):
        with pytest.raises(OptionError, match=rf"exit_layer={exit_layer}.* one of 1 to 2"):
            ExitTrainee(PARTS, exit_layer, WHOLE, ExitOptions())
    with pytest.raises(OptionError, match="no loss called 'mse'"):
        trainee(loss="mse")
    with pytest.raises(ModelError, match="layer norm"):
        ExitTrainee(TargetParts(tiny_model(norm="layer")), 1, WHOLE, ExitOptions())
