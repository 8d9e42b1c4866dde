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
