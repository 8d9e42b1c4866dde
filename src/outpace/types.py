"""The values that travel between the rooms. No behaviour beyond checking and trimming themselves.

Importing this module is cheap on purpose (no torch, no numpy): the command line reads
`SamplingParams` from it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import TYPE_CHECKING, Any

from outpace.errors import OptionError

if TYPE_CHECKING:
    import numpy as np
    import torch


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How the next token is drawn, and when to stop. Names and meaning follow vLLM and OpenAI.

    Every parameter is applied exactly at every drafted position, or refused here.

    temperature: divides the logits; 0 means greedy.
    top_k: keep the k most probable tokens; 0 or -1 keeps all.
    top_p: keep the smallest set of most probable tokens whose mass reaches top_p.
    min_p: drop tokens less probable than min_p times the most probable one.
    seed: same seed, same text, whatever the drafter, draft length or batch (None: independent).
    max_tokens: most output tokens; None goes on to the end of the context.
    stop: strings that end the output; the text ends before the first one to be completed.
    stop_token_ids: ids that end the output, besides the model's own end tokens.
    ignore_eos: go on past the model's own end tokens.
    logprobs: report this many most probable tokens beside the chosen one (0: the chosen only).
        Values are log-softmax of the target's raw logits, before temperature.
    include_stop_str_in_output: keep the stop string that ended the output in the text.
    skip_special_tokens: leave special tokens (end of text, turn markers) out of the text; their
        ids stay in token_ids.

    Raises OptionError for values out of range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = 16
    stop: str | tuple[str, ...] | list[str] = ()
    stop_token_ids: tuple[int, ...] | list[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True

    def __new__(cls, *_: object, **values: object) -> SamplingParams:
        # Before the generated __init__, whose TypeError would not say what is known.
        refuse_unknown("sampling parameter", values, [f.name for f in fields(cls)])
        return object.__new__(cls)

    def __post_init__(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else _as_tuple("stop", self.stop)
        object.__setattr__(self, "stop", stop)
        stop_token_ids = _as_tuple("stop_token_ids", self.stop_token_ids)
        object.__setattr__(self, "stop_token_ids", stop_token_ids)
        _check_number("temperature", self.temperature, 0.0, math.inf)
        _check_integer("top_k", self.top_k, -1)
        _check_number("top_p", self.top_p, 0.0, 1.0, low_open=True)
        _check_number("min_p", self.min_p, 0.0, 1.0)
        if self.seed is not None:
            _check_integer("seed", self.seed, -(2**63), 2**64 - 1)
        if self.max_tokens is not None:
            _check_integer("max_tokens", self.max_tokens, 0)
        if self.logprobs is not None:
            _check_integer("logprobs", self.logprobs, 0)
        for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"):
            if not isinstance(getattr(self, name), bool):
                raise OptionError(f"{name} must be true or false, got {getattr(self, name)!r}")
        for text in stop:
            if not isinstance(text, str) or not text:
                raise OptionError(f"stop must hold non-empty strings, got {text!r}")
        for token_id in stop_token_ids:
            _check_integer("stop_token_ids", token_id, 0)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SamplingParams:
        """Build from a mapping; an unknown key is an error that names the known ones."""
        if not isinstance(values, Mapping):
            raise OptionError(f"sampling parameters must be a mapping, got {values!r:.80}")
        refuse_unknown("sampling parameter", values, [f.name for f in fields(cls)])
        return cls(**values)

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0


def refuse_unknown(kind: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise OptionError if `given` holds names that are not `known`."""
    unknown = sorted(str(name) for name in set(given) - set(known))
    if unknown:
        raise OptionError(
            f"{kind} {', '.join(unknown)} is not supported; supported: {', '.join(known)}"
        )


def _as_tuple(name: str, values: object) -> tuple[Any, ...]:
    if values is None:
        return ()
    if not isinstance(values, list | tuple):
        raise OptionError(f"{name} must be a list, got {values!r:.80}")
    return tuple(values)


def _check_number(
    name: str, value: object, low: float, high: float, low_open: bool = False
) -> None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        inside = (low < value if low_open else low <= value) and value <= high
        # Compared first: an int too large for a float cannot be asked whether it is finite.
        if inside and value <= sys.float_info.max:
            return
    bracket = "(" if low_open else "["
    upper = "infinity)" if high == math.inf else f"{high:g}]"
    raise OptionError(f"{name} must be a number in {bracket}{low:g}, {upper}, got {value!r}")


def _check_integer(name: str, value: object, low: int, high: int | None = None) -> None:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if is_whole and low <= value and (high is None or value <= high):  # type: ignore[operator]
        return
    limit = f"of at least {low}" if high is None else f"from {low} to {high}"
    raise OptionError(f"{name} must be a whole number {limit}, got {value!r}")


class Status(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(eq=False)
class Sequence:
    """One request's tokens and how far it has come. Owned and mutated by the engine only.

    Between steps no cache holds more than `tokens[:-1]`: the newest token is always still to
    be fed, because feeding it is what yields the next distribution.
    """

    seq_id: int
    tokens: list[int]
    num_prompt: int
    params: SamplingParams
    end_token_ids: frozenset[int] = frozenset()
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


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one step decided for one sequence.

    token_ids: the output of the step: the accepted draft tokens, then (unless trimmed away by
        a stop rule) one token of the target's own, recovered or bonus.
    num_accepted: how many of them are accepted draft tokens.
    """

    token_ids: tuple[int, ...] = ()
    num_accepted: int = 0

    def trimmed(self, length: int) -> Verdict:
        """The same verdict cut to its first `length` tokens."""
        return Verdict(self.token_ids[:length], min(self.num_accepted, length))


@dataclass(slots=True)
class Scores:
    """What one target pass returned for a batch of sequences.

    logits: float32 (float64 in the row-invariant mode) [R, V]: for each sequence in turn, one
        row after its last committed token and one after each draft token; none for a sequence
        whose prompt is not fully fed yet.
    rows: for each sequence its slice of `logits`; empty while its prompt is being fed.
    hidden: for each captured layer, the residual stream after it for every *fed* token, [N, H].
        Valid until the next pass.
    fed: for each sequence its slice of the N fed tokens.
    """

    logits: torch.Tensor
    rows: list[slice]
    fed: list[slice]
    hidden: dict[int, torch.Tensor] = field(default_factory=dict)


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


def _count_positions(counts: list[int], length: int) -> None:
    counts.extend([0] * (length - len(counts)))
    for position in range(length):
        counts[position] += 1


@dataclass(frozen=True, slots=True)
class Event:
    """What one step added to one request, as seen from outside.

    text: the new text (may be empty while a character or a possible stop string is incomplete);
    the joined texts of all events are the answer. origins: per token, the drafter whose token
    was accepted, or "" for the target's own.
    """

    seq_id: int
    token_ids: tuple[int, ...]
    text: str
    origins: tuple[str, ...] = ()
    logprobs: tuple[dict[int, Logprob], ...] | None = None
    finish_reason: str | None = None
    error: BaseException | None = None


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
    """Times of one request in seconds, and how many prompt tokens were reused from a cache."""

    queued_s: float = 0.0
    ttft_s: float = 0.0
    total_s: float = 0.0
    num_cached_tokens: int = 0


@dataclass(slots=True)
class RequestOutput:
    """One request with its answers, in vLLM's shape, plus speculation statistics."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    stats: SpeculationStats
    metrics: RequestMetrics
