"""Where an engine's time goes."""

from __future__ import annotations

from dataclasses import dataclass

from outpace.types import StepTimes


@dataclass(slots=True)
class EngineMetrics:
    """Totals over all steps, in seconds.

    draft_s: in the drafter. target_s: in target passes. step_s: whole steps, so what is neither
    drafting nor a target pass is step_s - draft_s - target_s: probabilities, verification,
    detokenisation and bookkeeping.
    """

    num_steps: int = 0
    draft_s: float = 0.0
    target_s: float = 0.0
    step_s: float = 0.0

    def add(self, times: StepTimes) -> None:
        self.num_steps += 1
        self.draft_s += times.draft_s
        self.target_s += times.target_s
        self.step_s += times.step_s

    @property
    def overhead_s_per_step(self) -> float:
        if not self.num_steps:
            return 0.0
        return (self.step_s - self.draft_s - self.target_s) / self.num_steps


@dataclass(frozen=True, slots=True)
class EngineState:
    """An engine at one moment.

    num_running, num_waiting: answers that have a cache row, and that wait for one.
    num_rows: cache rows, the most answers that can run together. num_cached_tokens: tokens that
    the running answers hold in them, of cache_capacity_tokens.
    num_failed_steps: steps that raised, and ended the answers that ran. last_error: the class of
    what the newest of them raised. is_alive: False once nothing can be run any more.
    """

    num_running: int
    num_waiting: int
    num_rows: int
    num_cached_tokens: int
    cache_capacity_tokens: int
    num_failed_steps: int = 0
    last_error: str | None = None
    is_alive: bool = True
