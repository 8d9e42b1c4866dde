"""The training loop: batches, schedule, evaluation, checkpoints, progress."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from outpace.training.batches import Batches, held_out_indices
from outpace.training.checkpoints import (
    RunLog,
    RunState,
    load_checkpoint,
    restore_parameters,
    save_checkpoint,
    trained_parameters,
)
from outpace.training.evaluation import evaluate
from outpace.training.optimisers import make_optimisers, rate_at, set_rates
from outpace.training.options import (
    Evaluation,
    Progress,
    ProgressCallback,
    TrainingOptions,
    TrainingResult,
)
from outpace.training.trainee import LossReport, Trainee

if TYPE_CHECKING:
    from outpace.training.store import FeatureStore

_RECENT = 20
"""Steps that a reported loss and acceptance are the mean of."""


def train(
    trainee: Trainee,
    store: FeatureStore,
    options: TrainingOptions,
    directory: Path,
    progress: ProgressCallback | None = None,
) -> TrainingResult:
    """Train until the planned end or until it gets no better; a directory that holds an unfinished
    run of the same options is continued.

    directory: takes checkpoint.pt and log.jsonl; the draft's own files are the caller's to write
    afterwards (`trainee.save(DIR)`): the trainee then holds the best parameters seen (the last
    ones where nothing is held out). Interrupted at any moment and called again, a run of a given
    number of steps or epochs ends with the same bits as uninterrupted, on the same machine and
    threads. Raises OptionError for a directory with a run of other options or data.
    """
    if options.threads is None:
        return _Run(trainee, store, options, directory, progress).run()
    threads = torch.get_num_threads()
    torch.set_num_threads(options.threads)
    try:
        return _Run(trainee, store, options, directory, progress).run()
    finally:
        torch.set_num_threads(threads)


class _Run:
    def __init__(
        self,
        trainee: Trainee,
        store: FeatureStore,
        options: TrainingOptions,
        directory: Path,
        progress: ProgressCallback | None,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._trainee, self._store, self._options = trainee, store, options
        self._directory, self._progress = directory, progress
        self._batches = Batches(store, options.tokens_per_step, options.seed)
        self._held_out = held_out_indices(store, options.held_out_sequences)
        self._optimisers = make_optimisers(trainee.parameter_groups())
        identity = self._identity()
        found = load_checkpoint(directory, trainee.module, self._optimisers, identity)
        self._state = found or RunState(identity, steps=self._planned_steps())
        self._log = RunLog(directory, self._state.step)
        self._recent: deque[tuple[float, LossReport]] = deque(maxlen=_RECENT)
        self._began = time.perf_counter() - self._state.seconds
        self._saved_at = time.perf_counter()
        self._tokens_before, self._resumed_at = self._state.tokens, self._seconds()

    def _identity(self) -> dict[str, Any]:
        """What must not change between the parts of a run."""
        habits = ("threads", "checkpoint_minutes")
        options = {k: v for k, v in asdict(self._options).items() if k not in habits}
        return options | {"sequences": len(self._store), "answer_tokens": self._batches.num_tokens}

    def _planned_steps(self) -> int | None:
        options = self._options
        if options.epochs is not None:
            return max(1, round(options.epochs * self._batches.per_epoch))
        return options.steps

    def _seconds(self) -> float:
        return time.perf_counter() - self._began

    def run(self) -> TrainingResult:
        state = self._state
        while not state.finished:
            self._step()
            evaluation = self._evaluate() if self._evaluation_is_due() else None
            self._plan(after_evaluation=evaluation is not None)
            state.finished = state.stopped_early or state.step == state.steps
            self._report(evaluation)
            due = time.perf_counter() - self._saved_at >= 60 * self._options.checkpoint_minutes
            if due or state.finished:
                self._save()
        if state.best is not None:
            restore_parameters(self._trainee.module, state.best)
        return self._result()

    def _step(self) -> None:
        state, options = self._state, self._options
        indices = self._batches.at(state.epoch, state.position)
        if indices is None:
            state.epoch, state.position = state.epoch + 1, 0
            indices = self._batches.at(state.epoch, 0)
            assert indices is not None
        # Every step starts from its own random state, so that none has to be stored.
        torch.manual_seed(options.seed * 1_000_003 + state.step)
        report = self._trainee.loss(self._store.batch(indices), training=True)
        for optimiser in self._optimisers:
            optimiser.zero_grad(set_to_none=True)
        if report.loss.requires_grad:  # not of a batch whose answers are too short for any draft
            report.loss.backward()  # type: ignore[no-untyped-call]
        factor = rate_at(state.step, self._schedule_steps(), options.warmup_steps)
        set_rates(self._optimisers, factor * options.lr_scale)
        for optimiser in self._optimisers:
            optimiser.step()
        state.step += 1
        state.position += 1
        state.tokens += self._batches.tokens(indices)
        self._recent.append((float(report.loss.detach()), report))
        self._log.add(
            state.step,
            loss=self._recent[-1][0],
            tried=list(report.tried),
            accepted=list(report.accepted),
            tokens=state.tokens,
            seconds=round(self._seconds(), 2),
        )

    def _schedule_steps(self) -> int:
        """Planned steps; while they are unknown, so many that the rate has not begun to fall."""
        return self._state.steps or 10**9

    def _plan(self, *, after_evaluation: bool) -> None:
        """Turn a budget in minutes into steps: after the first few, and again at evaluations,
        because chains live longer, and steps take longer, as drafts get better."""
        state, minutes = self._state, self._options.minutes
        if minutes is None:
            return
        first = state.steps is None and state.step >= self._options.timing_steps
        if first or (after_evaluation and state.steps is not None):
            left = 60 * minutes - self._seconds()
            rate = self._seconds() / state.step
            state.steps = state.step + max(0, round(left / rate))

    def _evaluation_is_due(self) -> bool:
        state, wanted = self._state, self._options.evaluations
        if not self._held_out or state.steps is None:
            return False
        # Counted from the last one: a plan that shrinks must not leave evaluations to catch up on.
        since = state.step - (state.evaluations[-1][0] if state.evaluations else 0)
        return state.step >= state.steps or since * wanted >= state.steps

    def _evaluate(self) -> Evaluation:
        state, options = self._state, self._options
        evaluation = evaluate(self._trainee, self._store, self._held_out, options.evaluated_tokens)
        state.evaluations.append((state.step, asdict(evaluation)))
        self._log.add(state.step, evaluation=asdict(evaluation), seconds=round(self._seconds(), 2))
        best = self._best()
        if best is None or evaluation.score > best.score:
            state.best_step = state.step
            parameters = trained_parameters(self._trainee.module)
            state.best = {name: value.clone() for name, value in parameters.items()}
        elif options.patience is not None:
            since = [step for step, _ in state.evaluations if step > state.best_step]
            state.stopped_early = len(since) >= options.patience
        return evaluation

    def _best(self) -> Evaluation | None:
        found = [e for step, e in self._state.evaluations if step == self._state.best_step]
        return Evaluation(**found[0]) if found else None

    def _report(self, evaluation: Evaluation | None) -> None:
        if self._progress is None:
            return
        state = self._state
        seconds = max(self._seconds() - self._resumed_at, 1e-9)
        left = None
        if state.steps is not None:
            left = (state.steps - state.step) * self._seconds() / state.step
        self._progress(
            Progress(
                step=state.step,
                steps=state.steps,
                epoch=state.epoch,
                tokens=state.tokens,
                tokens_per_second=(state.tokens - self._tokens_before) / seconds,
                loss=sum(loss for loss, _ in self._recent) / len(self._recent),
                acceptance=_acceptance([report for _, report in self._recent]),
                seconds_left=left,
                evaluation=evaluation,
            )
        )

    def _save(self) -> None:
        self._state.seconds = self._seconds()
        save_checkpoint(self._directory, self._trainee.module, self._optimisers, self._state)
        self._saved_at = time.perf_counter()

    def _result(self) -> TrainingResult:
        state = self._state
        return TrainingResult(
            steps=state.step,
            tokens=state.tokens,
            seconds=self._seconds() if state.step else 0.0,
            stopped_early=state.stopped_early,
            best_step=state.best_step,
            best=self._best(),
            evaluations=tuple((step, Evaluation(**e)) for step, e in state.evaluations),
        )


def _acceptance(reports: list[LossReport]) -> tuple[float, ...]:
    """Conditional acceptance at each draft position over several batches."""
    tried = [sum(counts) for counts in zip(*(r.tried for r in reports), strict=True)]
    accepted = [sum(counts) for counts in zip(*(r.accepted for r in reports), strict=True)]
    return tuple(a / t if t else 0.0 for a, t in zip(accepted, tried, strict=True))
