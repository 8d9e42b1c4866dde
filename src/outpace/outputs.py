"""What callers see: answers, the events they arrive in, and counters of how they came about."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from itertools import zip_longest

from outpace.types import Draft, Verdict


@dataclass(frozen=True, slots=True)
class Logprob:
    """Log-probability of a token, its rank (1 = most probable) and its text."""

    logprob: float
    rank: int
    decoded_token: str


@dataclass(slots=True)
class SpeculationStats:
    """Counters of one request (or summed over many).

    num_steps: target passes that produced output. num_drafts: those of them that verified a draft.
    num_draft_tokens: draft tokens verified. num_accepted_tokens: those of them that were emitted.
    drafted_per_position and accepted_per_position: the same two by position in the draft, of a tree
    by depth.
    reached_per_position: drafts that went on at the position after all accepted before it.
    num_output_tokens: all emitted tokens. num_probe_tokens: probes, nodes that were only evaluated;
    not among the draft tokens.
    num_drafter_errors: times the drafter failed (the request then goes on plain).
    """

    num_steps: int = 0
    num_output_tokens: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_probe_tokens: int = 0
    drafted_per_position: list[int] = field(default_factory=list)
    accepted_per_position: list[int] = field(default_factory=list)
    reached_per_position: list[int] = field(default_factory=list)
    num_drafter_errors: int = 0
    num_drafts: int = 0

    @property
    def acceptance_length(self) -> float:
        """Output tokens per target pass, recovered or bonus token included (plain: 1.0)."""
        return self.num_output_tokens / self.num_steps if self.num_steps else 0.0

    @property
    def acceptance_rate(self) -> float:
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else 0.0

    @property
    def conditional_acceptance(self) -> list[float]:
        """By position: how often a token was accepted, given that all before it were."""
        accepted = self.accepted_per_position + [0] * len(self.reached_per_position)
        pairs = zip(accepted, self.reached_per_position, strict=False)
        return [count / reached for count, reached in pairs]

    def record(self, draft: Draft, verdict: Verdict) -> None:
        """Count one verified draft and its (trimmed) verdict."""
        self.num_steps += 1
        self.num_output_tokens += len(verdict.token_ids)
        if not draft.token_ids:
            return
        num_accepted = verdict.num_accepted
        self.num_drafts += draft.num_verified > 0
        self.num_draft_tokens += draft.num_verified
        self.num_probe_tokens += draft.num_probes
        self.num_accepted_tokens += num_accepted
        _count(self.drafted_per_position, draft.depths()[: draft.num_verified])
        _count(self.accepted_per_position, range(1, num_accepted + 1))
        # A verdict that a stop rule cut says nothing of the position after it.
        was_cut = len(verdict.token_ids) == num_accepted
        newest = verdict.accepted_nodes[-1] if num_accepted else -1
        goes_on = not was_cut and bool(draft.children()[newest + 1])
        _count(self.reached_per_position, range(1, num_accepted + goes_on + 1))

    def add(self, other: SpeculationStats) -> None:
        """Add the counts of another request."""
        for count in fields(self):
            mine, more = getattr(self, count.name), getattr(other, count.name)
            if isinstance(mine, list):
                pairs = zip_longest(mine, more, fillvalue=0)
                setattr(self, count.name, [a + b for a, b in pairs])
            else:
                setattr(self, count.name, mine + more)


def _count(counts: list[int], depths: Iterable[int]) -> None:
    """Count tokens by depth, the first at depth 1."""
    for depth in depths:
        if depth > len(counts):
            counts.extend([0] * (depth - len(counts)))
        counts[depth - 1] += 1


@dataclass(frozen=True, slots=True)
class Event:
    """What one step added to one request, as seen from outside.

    text: the new text (may be empty while a character or a possible stop string is incomplete);
    the joined texts of all events are the answer. origins: per token, the drafter whose token
    was accepted, or "" for the target's own. kinds: per token, "accepted", "recovered" (the
    target's own after a rejection), "bonus" (its own after everything drafted was accepted) or
    "plain" (its own where nothing was drafted). drafted: the draft tokens that were verified, of a
    tree all nodes in their order. index: which of the request's n answers; its last event has a
    finish reason.
    """

    seq_id: int
    token_ids: tuple[int, ...]
    text: str
    origins: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    drafted: tuple[int, ...] = ()
    logprobs: tuple[dict[int, Logprob], ...] | None = None
    finish_reason: str | None = None
    error: BaseException | None = None
    index: int = 0


@dataclass(slots=True)
class CompletionOutput:
    """One answer, in vLLM's shape."""

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[dict[int, Logprob]] | None
    finish_reason: str | None
    stop_reason: int | str | None = None


@dataclass(slots=True)
class RequestMetrics:
    """Times of one request in seconds, and how many prompt tokens were reused from a cache.

    Of several answers: queued_s until the first was admitted, ttft_s until the first token of any,
    total_s until the last had ended. num_cached_tokens: what earlier requests had left in the
    cache; not what the answers to one prompt share among themselves.
    """

    queued_s: float = 0.0
    ttft_s: float = 0.0
    total_s: float = 0.0
    num_cached_tokens: int = 0


@dataclass(slots=True)
class RequestOutput:
    """One request with its answers, in vLLM's shape, plus speculation statistics.

    outputs: the n answers by index. stats: summed over them. prompt_logprobs: one entry per prompt
    token, if asked for: None for the first, whose probability nothing tells, then as in
    `CompletionOutput.logprobs`. lossy: the name of the rule that accepted draft tokens, if it is
    not a lossless one; None means that the answers have the target's own distribution.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    stats: SpeculationStats
    metrics: RequestMetrics
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    lossy: str | None = None
