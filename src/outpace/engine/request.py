"""One request on its way through the engine."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from outpace.engine.fold import OutputFold
from outpace.types import (
    CompletionOutput,
    RequestMetrics,
    RequestOutput,
    Sequence,
    SpeculationStats,
)


@dataclass(eq=False, slots=True)
class Request:
    """A sequence, the fold of its output, and its counters. Owned by the engine.

    max_new: most output tokens, the context length taken into account.
    draft_limit: most draft tokens per step for this request; 0 decodes it plainly.
    """

    request_id: str
    prompt: str | None
    seq: Sequence
    fold: OutputFold
    max_new: int
    draft_limit: int
    stats: SpeculationStats = field(default_factory=SpeculationStats)
    num_cached_tokens: int = 0
    arrived_at: float = field(default_factory=time.perf_counter)
    admitted_at: float | None = None
    first_token_at: float | None = None
    finished_at: float | None = None

    @property
    def draft_budget(self) -> int:
        """Draft tokens that may follow now: one output token is always the target's own."""
        return max(0, min(self.draft_limit, self.max_new - self.seq.num_output - 1))

    def output(self) -> RequestOutput:
        """The answer so far in vLLM's shape; lists are the caller's own."""
        fold = self.fold
        completion = CompletionOutput(
            index=0,
            text=fold.text,
            token_ids=list(fold.token_ids),
            logprobs=None if fold.logprobs is None else list(fold.logprobs),
            finish_reason=fold.finish_reason,
            stop_reason=fold.stop_reason,
        )
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt,
            prompt_token_ids=self.seq.tokens[: self.seq.num_prompt],
            outputs=[completion],
            finished=fold.finish_reason is not None,
            stats=self.stats,
            metrics=self._metrics(),
        )

    def _metrics(self) -> RequestMetrics:
        def since_arrival(moment: float | None) -> float:
            return 0.0 if moment is None else moment - self.arrived_at

        return RequestMetrics(
            queued_s=since_arrival(self.admitted_at),
            ttft_s=since_arrival(self.first_token_at),
            total_s=since_arrival(self.finished_at),
            num_cached_tokens=self.num_cached_tokens,
        )
