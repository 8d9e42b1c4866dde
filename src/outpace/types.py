"""The values that travel between the rooms. They trim and add up themselves."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import Enum
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from outpace.params import SamplingParams

if TYPE_CHECKING:
    import numpy as np
    import torch


class Status(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(eq=False)
class Sequence:
    """One request's tokens and how far it has come. Owned and mutated by the engine only.

    Between steps no cache holds more than `tokens[:-1]`: the newest token is always still to
    be fed, because feeding it is what yields the next distribution.

    choice: index of the answer among the n to one prompt; part of a seeded request's noise.
    end_token_ids: the model's own end tokens, whether or not the request stops at them.
    bad_words_ids: `params.bad_words` as sequences of token ids, none of which may be completed.
    """

    seq_id: int
    tokens: list[int]
    num_prompt: int
    params: SamplingParams
    end_token_ids: frozenset[int] = frozenset()
    choice: int = 0
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    status: Status = Status.WAITING

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.num_prompt


@dataclass(frozen=True, slots=True)
class Draft:
    """A chain of proposed tokens, each following the one before it.

    token_ids: the proposal, first token first.
    q: for each token the distribution it was drawn from (array [V] of probabilities), or None
        where the token was chosen deterministically (q is then one-hot). `q=None` says so for
        all. It is a claim that must be exactly true; None is always safe.
    origin: which drafter proposed it; used in statistics only.
    """

    token_ids: tuple[int, ...] = ()
    q: tuple[np.ndarray | None, ...] | None = None
    origin: str = ""

    def __post_init__(self) -> None:
        if self.q is not None and len(self.q) != len(self.token_ids):
            raise ValueError(f"{len(self.token_ids)} draft tokens but {len(self.q)} rows of q")

    def __len__(self) -> int:
        return len(self.token_ids)

    def q_at(self, position: int) -> np.ndarray | None:
        return None if self.q is None else self.q[position]

    @property
    def is_deterministic(self) -> bool:
        """Whether every q is one-hot."""
        return self.q is None or all(row is None for row in self.q)

    def shortened(self, length: int) -> Draft:
        """The same draft cut to its first `length` tokens."""
        q = None if self.q is None else self.q[:length]
        return Draft(self.token_ids[:length], q, self.origin)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one step decided for one sequence.

    token_ids: the output of the step: the accepted draft tokens, then one token of the target's
        own, recovered or bonus, unless a stop rule trimmed it away or no token may come there.
    num_accepted: how many of them are accepted draft tokens.
    error: why the request cannot go on, if it cannot; there are no tokens then.
    """

    token_ids: tuple[int, ...] = ()
    num_accepted: int = 0
    error: Exception | None = None

    def trimmed(self, length: int) -> Verdict:
        """The same verdict cut to its first `length` tokens."""
        return Verdict(self.token_ids[:length], min(self.num_accepted, length), self.error)


@dataclass(slots=True)
class Scores:
    """What one target pass returned for a batch of sequences.

    values: logits as the model returned them, float32 (float64 from a float64 model) [R, V]: for
        each sequence in turn, one row after its last committed token and one after each draft
        token; none for a sequence whose prompt is not fully fed yet. Read them as `logits` or
        `on_host`.
    rows: for each sequence its slice of `logits`; empty while its prompt is being fed.
    hidden: for each captured layer, the residual stream after it for every *fed* token, [N, H].
        Valid until the next pass.
    fed: for each sequence its slice of the N fed tokens.
    prompt_rows: for each sequence whose prompt is scored the slice of `logits` with one row after
        each fed token, the last of which are those of `rows`; empty for the others.
    """

    values: torch.Tensor | np.ndarray
    rows: list[slice]
    fed: list[slice]
    hidden: dict[int, torch.Tensor] = field(default_factory=dict)
    prompt_rows: list[slice] = field(default_factory=list)

    @property
    def logits(self) -> torch.Tensor:
        """The values as a tensor, where the model has them; not copied."""
        import torch

        return torch.as_tensor(self.values)

    def on_host(self) -> np.ndarray:
        """The values in host memory; copied, all rows at once, if they are on another device.

        A model that computes with numpy never meets torch here, whose every call costs more than
        reading a row.
        """
        values: Any = self.values
        return values.cpu().numpy() if hasattr(values, "cpu") else values


@dataclass(frozen=True, slots=True)
class Logprob:
    """Log-probability of a token, its rank (1 = most probable) and its text."""

    logprob: float
    rank: int
    decoded_token: str


@dataclass(slots=True)
class SpeculationStats:
    """Counters of one request (or summed over many).

    num_steps: target passes that produced output. num_draft_tokens: draft tokens verified.
    num_accepted_tokens: those of them that were emitted. drafted_per_position and
    accepted_per_position: the same two by position in the draft. reached_per_position: drafts in
    which all tokens before the position were accepted. num_output_tokens: all emitted
    tokens. num_drafter_errors: times the drafter failed (the request then goes on plain).
    """

    num_steps: int = 0
    num_output_tokens: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    drafted_per_position: list[int] = field(default_factory=list)
    accepted_per_position: list[int] = field(default_factory=list)
    reached_per_position: list[int] = field(default_factory=list)
    num_drafter_errors: int = 0

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

    def record(self, num_drafted: int, verdict: Verdict) -> None:
        """Count one verified draft and its (trimmed) verdict."""
        self.num_steps += 1
        self.num_output_tokens += len(verdict.token_ids)
        self.num_draft_tokens += num_drafted
        self.num_accepted_tokens += verdict.num_accepted
        _count_positions(self.drafted_per_position, num_drafted)
        _count_positions(self.accepted_per_position, verdict.num_accepted)
        # A verdict that a stop rule cut says nothing of the position after it.
        was_cut = len(verdict.token_ids) == verdict.num_accepted
        reached = verdict.num_accepted + (0 if was_cut else 1)
        _count_positions(self.reached_per_position, min(reached, num_drafted))

    def add(self, other: SpeculationStats) -> None:
        """Add the counts of another request."""
        for count in fields(self):
            mine, more = getattr(self, count.name), getattr(other, count.name)
            if isinstance(mine, list):
                pairs = zip_longest(mine, more, fillvalue=0)
                setattr(self, count.name, [a + b for a, b in pairs])
            else:
                setattr(self, count.name, mine + more)


def _count_positions(counts: list[int], length: int) -> None:
    counts.extend([0] * (length - len(counts)))
    for position in range(length):
        counts[position] += 1


@dataclass(frozen=True, slots=True)
class Event:
    """What one step added to one request, as seen from outside.

    text: the new text (may be empty while a character or a possible stop string is incomplete);
    the joined texts of all events are the answer. origins: per token, the drafter whose token
    was accepted, or "" for the target's own. index: which of the request's n answers; its last
    event has a finish reason.
    """

    seq_id: int
    token_ids: tuple[int, ...]
    text: str
    origins: tuple[str, ...] = ()
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
    `CompletionOutput.logprobs`.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    stats: SpeculationStats
    metrics: RequestMetrics
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
