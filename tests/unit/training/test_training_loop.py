"""The loop around a trainee: order, schedule, evaluation, and going on after a kill."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence as List
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from interrupted import KillAfter, killed

from outpace.errors import OptionError
from outpace.training.batches import Batches, held_out_indices
from outpace.training.evaluation import CycleCount, evaluate
from outpace.training.loop import train
from outpace.training.options import Progress, TrainingOptions, TrainingResult
from outpace.training.trainee import LossReport, TrainingBatch

WIDTH = 6


class MemoryStore:
    """Sequences of random features; the last third is held out."""

    def __init__(self, num_sequences: int = 24) -> None:
        generator = torch.Generator().manual_seed(0)
        self._lengths = [5 + i % 4 for i in range(num_sequences)]
        self._features = [torch.randn(n, WIDTH, generator=generator) for n in self._lengths]

    def __len__(self) -> int:
        return len(self._lengths)

    def num_prompt(self, index: int) -> int:
        return 2

    def num_tokens(self, index: int) -> int:
        return self._lengths[index]

    def temperature(self, index: int) -> float:
        return 0.7 * (index % 2)

    def is_held_out(self, index: int) -> bool:
        return index >= 2 * len(self) // 3

    def batch(self, indices: List[int]) -> TrainingBatch:
        lengths = [self._lengths[i] for i in indices]
        return TrainingBatch(
            torch.zeros(sum(lengths), dtype=torch.int64),
            {1: torch.cat([self._features[i] for i in indices])},
            torch.cat([torch.arange(n) >= 2 for n in lengths]),
            (0, *torch.tensor(lengths).cumsum(0).tolist()),
        )


class Regression:
    """Learns a linear map of features, with noise on its inputs; "accepts" what it gets nearly
    right. `call` is called before every training batch."""

    capture = (1,)

    def __init__(self, call: Any = None) -> None:
        torch.manual_seed(5)
        self.module = torch.nn.Linear(WIDTH, WIDTH)
        self.frozen = torch.nn.Parameter(torch.ones(1), requires_grad=False)
        self.module.register_parameter("frozen", self.frozen)
        self.seen: list[int] = []
        self._call = call
        self._wanted = torch.randn(WIDTH, WIDTH)

    def parameter_groups(self) -> list[dict[str, Any]]:
        return [
            {"params": [self.module.weight], "kind": "matrix", "lr": 0.6},
            {"params": [self.module.bias], "kind": "vector", "lr": 0.05},
        ]

    def loss(self, batch: TrainingBatch, *, training: bool) -> LossReport:
        x = batch.features[1][batch.is_answer]
        if training:
            self.seen.append(len(x))
            if self._call is not None:
                self._call()
            x = x + 0.01 * torch.randn_like(x)
        error = (self.module(x) - x @ self._wanted).square().sum(1)
        right = error < 1.0
        return LossReport(
            error.mean(), [len(x), int(right.sum())], [int(right.sum()), int(right.sum()) // 2]
        )

    def save(self, directory: Path) -> None:
        raise AssertionError("the loop does not write drafts")


OPTIONS = TrainingOptions(
    steps=12, tokens_per_step=15, evaluations=3, evaluated_tokens=2, checkpoint_minutes=0.0
)


def run(
    directory: Path, options: TrainingOptions = OPTIONS, call: Any = None, progress: Any = None
) -> tuple[Regression, TrainingResult]:
    trainee, store = Regression(call), MemoryStore()
    any_store: Any = store
    return trainee, train(trainee, any_store, options, directory, progress)


def log_lines(directory: Path) -> list[dict[str, Any]]:
    lines = (directory / "log.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(s).items() if k != "seconds"} for s in lines]


def test_a_run_learns_evaluates_and_reports(tmp_path: Path) -> None:
    reports: list[Progress] = []
    trainee, result = run(tmp_path, replace(OPTIONS, steps=60), progress=reports.append)
    assert (result.steps, len(reports)) == (60, 60)
    assert [step for step, _ in result.evaluations] == [20, 40, 60]
    assert [r.step for r in reports if r.evaluation] == [20, 40, 60]
    assert reports[-1].loss < 0.2 * reports[0].loss
    assert reports[-1].acceptance[0] > 0.4 > reports[0].acceptance[0]
    assert reports[-1].seconds_left == 0
    assert all(r.steps == 60 and r.tokens_per_second > 0 for r in reports)
    assert reports[-1].tokens == result.tokens == sum(trainee.seen)
    assert result.best is not None
    assert result.best.score == max(e.score for _, e in result.evaluations)
    assert {p.name for p in tmp_path.iterdir()} == {"checkpoint.pt", "log.jsonl"}


def test_batches_are_whole_sequences_in_an_order_of_the_seed() -> None:
    store: Any = MemoryStore()
    batches = Batches(store, 15, seed=3)
    epochs = []
    for epoch in range(2):
        epochs.append([batches.at(epoch, i) for i in range(20)])
        listed = [i for batch in epochs[-1] if batch for i in batch]
        assert sorted(listed) == list(range(16))
        full = [batches.tokens(b) for b in epochs[-1] if b][:-1]
        assert all(15 <= tokens < 15 + 6 for tokens in full)
    assert epochs[0] != epochs[1]
    again, other = Batches(store, 15, seed=3), Batches(store, 15, seed=4)
    assert again.at(1, 2) == epochs[1][2]
    assert other.at(1, 2) != epochs[1][2]


def test_greedy_answers_are_evaluated_if_there_are_any() -> None:
    store: Any = MemoryStore()
    assert held_out_indices(store, 10) == [16, 18, 20, 22]
    assert held_out_indices(store, 2) == [16, 22]
    store.temperature = lambda index: 0.7
    assert held_out_indices(store, 99) == list(range(16, 24))


@pytest.mark.parametrize("calls", [0, 1, 4, 7, 11])
def test_killed_at_any_step_and_called_again_a_run_ends_with_the_same_bits(
    tmp_path: Path, calls: int
) -> None:
    whole, wanted = run(tmp_path / "whole")
    assert killed(lambda: run(tmp_path / "cut", call=KillAfter(calls)))
    resumed, result = run(tmp_path / "cut")
    assert len(resumed.seen) == 12 - calls
    for name, parameter in whole.module.named_parameters():
        assert torch.equal(parameter, dict(resumed.module.named_parameters())[name]), name
    assert result.evaluations == wanted.evaluations
    assert (result.steps, result.tokens, result.best_step) == (12, wanted.tokens, wanted.best_step)
    assert log_lines(tmp_path / "cut") == log_lines(tmp_path / "whole")


def test_killed_between_checkpoints_the_steps_since_the_last_are_done_again(
    tmp_path: Path,
) -> None:
    whole, _ = run(tmp_path / "whole")
    assert killed(lambda: run(tmp_path / "cut", call=KillAfter(5)))
    rare = replace(OPTIONS, checkpoint_minutes=1e9)
    assert killed(lambda: run(tmp_path / "cut", rare, call=KillAfter(4)))
    assert len(log_lines(tmp_path / "cut")) > 5
    resumed, _ = run(tmp_path / "cut")
    assert len(resumed.seen) == 7
    assert torch.equal(whole.module.weight, resumed.module.weight)
    assert log_lines(tmp_path / "cut") == log_lines(tmp_path / "whole")


def test_a_run_whose_checkpoint_is_lost_ends_elsewhere_only_in_time(tmp_path: Path) -> None:
    """The control of the tests above: without the checkpoint all twelve steps are done."""
    assert killed(lambda: run(tmp_path, call=KillAfter(5)))
    (tmp_path / "checkpoint.pt").unlink()
    resumed, _ = run(tmp_path)
    assert len(resumed.seen) == 12


def test_another_seed_ends_with_other_bits(tmp_path: Path) -> None:
    a, _ = run(tmp_path / "a")
    b, _ = run(tmp_path / "b", replace(OPTIONS, seed=1))
    assert not torch.equal(a.module.weight, b.module.weight)


def test_a_finished_run_called_again_does_nothing(tmp_path: Path) -> None:
    first, wanted = run(tmp_path)
    again, result = run(tmp_path)
    assert again.seen == []
    assert torch.equal(first.module.weight, again.module.weight)
    assert result.evaluations == wanted.evaluations


def test_another_run_in_the_same_directory_is_refused_by_name(tmp_path: Path) -> None:
    run(tmp_path)
    with pytest.raises(OptionError, match=r"steps 12.*steps 13.*another directory"):
        run(tmp_path, replace(OPTIONS, steps=13))
    run(tmp_path, replace(OPTIONS, checkpoint_minutes=5.0, threads=1))


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    run(tmp_path)
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(OptionError, match=r"checkpoint\.pt.*damaged"):
        run(tmp_path)


def test_a_run_that_gets_no_better_stops_and_gives_its_best(tmp_path: Path) -> None:
    options = replace(OPTIONS, steps=40, evaluations=20, patience=2, lr_scale=1e-12)
    _, result = run(tmp_path / "a", options)
    assert result.stopped_early
    assert (result.steps, result.best_step) == (6, 2)
    # A rate that destroys what was learned: the best is an early one, and is what one gets.
    options = replace(OPTIONS, steps=40, evaluations=20, lr_scale=60.0)
    trainee, result = run(tmp_path / "b", options)
    assert not result.stopped_early
    store: Any = MemoryStore()
    held_out = held_out_indices(store, 64)
    assert evaluate(trainee, store, held_out, 2) == result.best


def test_a_budget_in_minutes_becomes_steps_that_are_kept(tmp_path: Path) -> None:
    options = replace(OPTIONS, steps=None, minutes=0.01, timing_steps=2)
    reports: list[Progress] = []
    _, result = run(tmp_path, options, progress=reports.append)
    assert reports[0].steps is None
    assert reports[1].steps is not None
    assert result.steps == reports[-1].steps
    assert result.seconds == pytest.approx(0.6, abs=0.5)


def test_a_budget_in_epochs(tmp_path: Path) -> None:
    store: Any = MemoryStore()
    per_epoch = Batches(store, 15, 0).per_epoch
    _, result = run(tmp_path, replace(OPTIONS, steps=None, epochs=2.0))
    assert result.steps == 2 * per_epoch


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"steps": None}, "one of steps, minutes and epochs; got none"),
        ({"minutes": 1.0}, r"got \['steps', 'minutes'\]"),
        ({"steps": 0}, "steps must be positive and finite, got 0"),
        ({"steps": None, "epochs": float("nan")}, "epochs must be positive and finite, got nan"),
        ({"steps": None, "minutes": float("inf")}, "minutes must be positive and finite, got inf"),
        ({"seed": -1}, "seed must be a number from 0 on, got -1"),
        ({"tokens_per_step": 0}, "tokens_per_step must be positive"),
        ({"patience": 0}, "from 1 on, got 0"),
    ],
)
def test_options_that_cannot_be(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        replace(OPTIONS, **changes)


def test_a_batch_without_any_draft_is_passed_over(tmp_path: Path) -> None:
    """Answers of one token: nothing follows of which a draft could be right."""

    class Silent(Regression):
        def loss(self, batch: TrainingBatch, *, training: bool) -> LossReport:
            report = super().loss(batch, training=training)
            if training and batch.starts[-1] % 2:
                return LossReport(torch.zeros(()), report.tried, report.accepted)
            return report

    store: Any = MemoryStore()
    result = train(Silent(), store, OPTIONS, tmp_path)
    assert result.steps == OPTIONS.steps


def test_nothing_to_train_on_is_said(tmp_path: Path) -> None:
    store: Any = MemoryStore()
    store.is_held_out = lambda index: True
    with pytest.raises(OptionError, match="no sequence to train on"):
        train(Regression(), store, OPTIONS, tmp_path)


def test_nothing_held_out_trains_without_evaluations(tmp_path: Path) -> None:
    store: Any = MemoryStore()
    store.is_held_out = lambda index: False
    result = train(Regression(), store, OPTIONS, tmp_path)
    assert (result.steps, result.evaluations, result.best) == (12, (), None)


def test_cycles_replayed_by_hand() -> None:
    """Six tokens: after the first, two drafts are right; after the second ..."""
    lengths = [2, 0, 1, 1, 0]
    one, two, three = (CycleCount(k) for k in (1, 2, 3))
    for count in (one, two, three):
        count.add(lengths)
    # K = 1: 0 takes 1 -> 2 takes 1 -> 4 takes 0: three cycles of five tokens.
    assert (one.cycles, one.tokens, one.tried, one.accepted) == (3, 5, [3], [2])
    # K = 2: 0 takes 2 -> 3 takes 1 (one token is left after it): two cycles.
    assert (two.cycles, two.tried, two.accepted) == (2, [2, 2], [2, 1])
    assert two.tokens_per_cycle == 2.5
    # K = 3: the third position is tried once, by the first cycle.
    assert (three.tried, three.accepted) == ([2, 2, 1], [2, 1, 0])
    assert three.acceptance == (1.0, 0.5, 0.0)


def test_a_trainee_that_cannot_chain_is_judged_by_its_reports() -> None:
    store: Any = MemoryStore()
    trainee = Regression()
    trainee.loss = lambda batch, training: LossReport(torch.tensor(2.0), [100, 50], [50, 20])
    found = evaluate(trainee, store, held_out_indices(store, 9), 2)
    assert found.loss == 2.0
    assert found.acceptance == (0.5, 0.4)
    assert found.tokens_per_cycle == pytest.approx((1.5, 1.7))
    assert found.score == pytest.approx(1.7)


def test_a_log_cut_short_is_continued(tmp_path: Path) -> None:
    run(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    log = tmp_path / "b" / "log.jsonl"
    log.write_text(log.read_text()[:-7])
    run(tmp_path / "b")
    assert log_lines(tmp_path / "b") == log_lines(tmp_path / "a")[:-1]
