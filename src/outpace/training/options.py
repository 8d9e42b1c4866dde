"""What a training run is told, and what it tells while it runs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from outpace.errors import OptionError


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """A training run's length, batches and habits; learning rates are the trainee's.

    Exactly one of `steps`, `minutes` and `epochs` says how long. A budget in minutes is turned into
    steps after the first `timing_steps` of them, and again at evaluations; checkpoints hold the
    plan, so that a resumed run follows the same schedule.

    tokens_per_step: answer tokens of a batch, about: batches are whole sequences.
    lr_scale: multiplies every learning rate. warmup_steps: rates rise to it over so many steps,
        then fall linearly to zero at the last one.
    evaluations: how often the held-out sequences are looked at, spread evenly over the run.
    patience: stop after so many evaluations without a better one; None never stops early.
    held_out_sequences: at most so many of them an evaluation reads (the same ones every time).
    evaluated_tokens: the largest K of the tokens per cycle that an evaluation reports.
    checkpoint_minutes: how often everything a resumed run needs is written.
    threads: what torch may use; None leaves it as it is.
    """

    steps: int | None = None
    minutes: float | None = None
    epochs: float | None = None
    tokens_per_step: int = 1900
    lr_scale: float = 1.0
    warmup_steps: int = 10
    seed: int = 0
    evaluations: int = 12
    patience: int | None = None
    held_out_sequences: int = 64
    evaluated_tokens: int = 6
    checkpoint_minutes: float = 3.0
    timing_steps: int = 8
    threads: int | None = None

    def __post_init__(self) -> None:
        given = [name for name in ("steps", "minutes", "epochs") if getattr(self, name) is not None]
        if len(given) != 1:
            found = given or "none"
            raise OptionError(
                f"a training run's length is one of steps, minutes and epochs; got {found}"
            )
        positive = (given[0], "tokens_per_step", "lr_scale", "timing_steps", "evaluated_tokens")
        for name in positive:
            # Written so that NaN fails.
            if not 0 < getattr(self, name) < math.inf:
                raise OptionError(f"{name} must be positive and finite, got {getattr(self, name)}")
        if self.seed < 0:
            raise OptionError(f"seed must be a number from 0 on, got {self.seed}")
        if self.patience is not None and self.patience < 1:
            raise OptionError(f"patience is a number of evaluations from 1 on, got {self.patience}")

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What held-out sequences said.

    loss: mean over what was counted. acceptance: [K] conditional acceptance at each draft position,
    over the positions that greedy decoding with `K` draft tokens visits. tokens_per_cycle: [K]
    acceptance length with 1, 2, .. K draft tokens, the target's own token included.
    """

    loss: float
    acceptance: tuple[float, ...]
    tokens_per_cycle: tuple[float, ...]

    @property
    def score(self) -> float:
        """What "better" means between evaluations: tokens per cycle with three draft tokens (the
        most there are, if fewer)."""
        return self.tokens_per_cycle[min(2, len(self.tokens_per_cycle) - 1)]


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands after a step.

    steps: planned, None while a budget in minutes is still being timed. tokens: answer tokens read
    so far. loss: mean of the last steps. acceptance: [K] conditional acceptance per draft position
    over the last training batches. seconds_left: None while unknown. evaluation: set on the steps
    that evaluated.
    """

    step: int
    steps: int | None
    epoch: int
    tokens: int
    tokens_per_second: float
    loss: float
    acceptance: tuple[float, ...]
    seconds_left: float | None
    evaluation: Evaluation | None = None


ProgressCallback = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """How a run ended: steps and answer tokens seen, whether it stopped early, its best evaluation
    (of these parameters, which the trainee now holds) and all of them by step."""

    steps: int
    tokens: int
    seconds: float
    stopped_early: bool
    best_step: int
    best: Evaluation | None
    evaluations: tuple[tuple[int, Evaluation], ...]
