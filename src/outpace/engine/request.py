"""One prompt on its way through the engine, and each of its answers."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from outpace.engine.fold import OutputFold
from outpace.outputs import (
    CompletionOutput,
    Logprob,
    RequestMetrics,
    RequestOutput,
    SpeculationStats,
)
from outpace.types import Sequence


@dataclass(eq=False, slots=True)
class Request:
    """One answer: a sequence, the fold of its output, and its counters. Owned by the engine.

    max_new: most output tokens, the context length taken into account.
    draft_limit: most draft tokens per step for this request; 0 decodes it plainly.
    prompt_logprobs: what is known so far of the prompt's tokens, in order; None if not asked for.
    siblings: the requests for all answers to the same prompt, this one included.
    drafter_failed: its drafter is not asked any more. Only what a grammar forces is drafted then.
    """

    seq: Sequence
    fold: OutputFold
    max_new: int
    draft_limit: int
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    siblings: list[Request] = field(default_factory=list)
    drafter_failed: bool = False
    stats: SpeculationStats = field(default_factory=SpeculationStats)
    num_cached_tokens: int = 0
    admitted_at: float | None = None
    first_token_at: float | None = None
    finished_at: float | None = None

    @property
    def draft_depth(self) -> int:
        """How deep a draft may be: one output token is always the target's own."""
        return max(0, self.max_new - self.seq.num_output - 1)

    @property
    def draft_budget(self) -> int:
        """Draft tokens, in whatever shape, that may follow now."""
        return self.draft_limit if self.draft_depth else 0

    @property
    def is_scoring_prompt(self) -> bool:
        """Whether log-probabilities of prompt tokens are still to be computed."""
        scored = self.prompt_logprobs
        return scored is not None and len(scored) < self.seq.num_prompt

    def output(self) -> CompletionOutput:
        """The answer so far in vLLM's shape; lists are the caller's own."""
        fold = self.fold
        return CompletionOutput(
            index=self.seq.choice,
            text=fold.text,
            token_ids=list(fold.token_ids),
            logprobs=None if fold.logprobs is None else list(fold.logprobs),
            finish_reason=fold.finish_reason,
            stop_reason=fold.stop_reason,
        )


@dataclass(eq=False, slots=True)
class RequestGroup:
    """One prompt with its n answers. The engine runs the answers one by one, as requests; only
    its callers see them together.

    requests: one per answer, in order of index. The first computes the prompt's logprobs.
    lossy: the name of the rule if they are not verified losslessly.
    """

    request_id: str
    prompt: str | None
    requests: list[Request]
    lossy: str | None = None
    arrived_at: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        for request in self.requests:
            request.siblings = self.requests

    def output(self) -> RequestOutput:
        """The answers so far in vLLM's shape; lists are the caller's own."""
        first = self.requests[0]
        scored = first.prompt_logprobs
        stats = SpeculationStats()
        for request in self.requests:
            stats.add(request.stats)
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt,
            prompt_token_ids=first.seq.tokens[: first.seq.num_prompt],
            outputs=[request.output() for request in self.requests],
            finished=all(request.fold.finish_reason is not None for request in self.requests),
            stats=stats,
            metrics=self._metrics(),
            prompt_logprobs=None if scored is None else list(scored),
            lossy=self.lossy,
        )

    def _metrics(self) -> RequestMetrics:
        def since_arrival(moments: list[float | None], of_all: bool = False) -> float:
            known = [moment for moment in moments if moment is not None]
            if not known or (of_all and len(known) < len(moments)):
                return 0.0
            return (max(known) if of_all else min(known)) - self.arrived_at

        return RequestMetrics(
            queued_s=since_arrival([request.admitted_at for request in self.requests]),
            ttft_s=since_arrival([request.first_token_at for request in self.requests]),
            total_s=since_arrival([request.finished_at for request in self.requests], of_all=True),
            num_cached_tokens=self.requests[0].num_cached_tokens,
        )
