"""The step: draft, verify, keep, tell. Plain decoding is the same step with an empty drafter."""

from __future__ import annotations

import time
from collections.abc import Mapping
from collections.abc import Sequence as List

import numpy as np

from outpace.control.decisions import DecisionLog
from outpace.drafters.base import Drafter
from outpace.engine.instruments import Instruments
from outpace.engine.metrics import EngineMetrics, EngineState
from outpace.engine.request import Request
from outpace.engine.routing import guarded
from outpace.engine.scheduler import Scheduler
from outpace.models.tokenizer import Tokenizer
from outpace.outputs import Event, Logprob, SpeculationStats
from outpace.runner import Runner
from outpace.sampling import raw_logprobs
from outpace.types import Draft, Scores, StepTimes, Verdict
from outpace.verification.lossy import TypicalAcceptance

SCORED_TOGETHER = 64
"""Prompt tokens whose log-probabilities are computed at a time: bounds the copies of logits."""


class Engine:
    """Runs requests to their end, one step at a time. Not thread-safe: one thread owns it."""

    def __init__(
        self,
        target: Runner,
        drafters: Mapping[str, Drafter],
        tokenizer: Tokenizer,
        *,
        rng: np.random.Generator,
        lossy: TypicalAcceptance | None = None,
        max_num_batched_tokens: int = 512,
        instruments: Instruments | None = None,
    ) -> None:
        """drafters: by method; the first is the default of requests that name none."""
        self.metrics = EngineMetrics()
        self.speculation = SpeculationStats()
        self._target = target
        self._drafter = guarded(drafters, takes_trees=target.takes_trees)
        self._tokenizer = tokenizer
        self._rng = rng
        self._lossy = lossy
        self._instruments = instruments or Instruments()
        self._scheduler = Scheduler(
            target, self._drafter, max_num_batched_tokens=max_num_batched_tokens
        )

    @property
    def decisions(self) -> DecisionLog | None:
        """See `Drafter.decisions`."""
        return self._drafter.decisions

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work

    def add(self, request: Request) -> None:
        self._scheduler.add(request)

    def step(self) -> list[Event]:
        """One target pass over everything that is due. Returns what each request gained."""
        started = time.perf_counter()
        batch = self._scheduler.next_batch()
        requests, seqs = batch.requests, [request.seq for request in batch.requests]
        drafts = self._drafter.propose(requests, batch.draft_budgets)
        drafted = time.perf_counter()
        scores = self._target.extend(
            seqs,
            drafts,
            max_feed=batch.max_feed,
            score_prompt=batch.score_prompt,
            capture=self._drafter.capture(requests),
        )
        scored = time.perf_counter()
        verdicts = self._instruments.judge(scores, seqs, drafts, self._rng, self._lossy)
        verdicts, events = self._accept(requests, drafts, scores, verdicts)
        self._target.commit(seqs)
        self._drafter.observe(requests, scores, verdicts)
        self._finish(requests, events)
        self._record(started, drafted, scored)
        return events

    def cancel(self, request: Request, reason: str = "abort") -> Event | None:
        """End a request early; its row is free at once. None if it had ended already."""
        if request.fold.finish_reason is not None:
            return None
        fold, seq = request.fold, request.seq
        fold.finish(reason)
        self._release(request)
        return Event(
            seq.seq_id,
            (),
            fold.take_delta(),
            finish_reason=fold.finish_reason,
            index=seq.choice,
        )

    def cancel_id(self, seq_id: int) -> None:
        """Cancel the request with this sequence and the other answers to its prompt."""
        for request in self._scheduler.requests:
            if any(sibling.seq.seq_id == seq_id for sibling in request.siblings):
                self.cancel(request)

    def cancel_all(self) -> list[Event]:
        """End every request early."""
        events = [self.cancel(request) for request in self._scheduler.requests]
        return [event for event in events if event is not None]

    def fail_running(self, error: Exception) -> list[Event]:
        """End the requests that run with an error: after a step that raised, none can go on. Those
        that wait were no part of it; without any that run, one of them must have been."""
        requests = self._scheduler.running or self._scheduler.requests
        events = [_failed(request, error) for request in requests]
        self._finish(requests, events)
        return events

    def state(self) -> EngineState:
        """What is going on. May be asked from any thread, and is approximate then."""
        num_running, num_waiting = self._scheduler.counts
        cache = self._target.cache
        return EngineState(
            num_running=num_running,
            num_waiting=num_waiting,
            num_rows=cache.num_rows,
            num_cached_tokens=cache.num_open_tokens,
            cache_capacity_tokens=cache.num_rows * cache.capacity,
        )

    def check_integrity(self) -> None:
        """Raise AssertionError if anything is held for requests that have ended."""
        if not self._scheduler.has_work:
            self._target.check_integrity()
            self._drafter.check_integrity()

    def _accept(
        self,
        requests: List[Request],
        drafts: List[Draft],
        scores: Scores,
        verdicts: List[Verdict],
    ) -> tuple[list[Verdict], list[Event]]:
        """Fold the decided tokens into the outputs, one at a time, until a stop rule ends them.

        Returns the verdicts cut at the stop: nobody after this sees a token that is not output.
        """
        kept: list[Verdict] = []
        events: list[Event] = []
        for i, (request, draft, verdict) in enumerate(zip(requests, drafts, verdicts, strict=True)):
            event: Event | None = None
            try:
                if request.is_scoring_prompt:
                    self._score_prompt(request, scores.on_host()[scores.prompt_rows[i]])
                if verdict.error is not None:
                    event = _failed(request, verdict.error)
                elif verdict.token_ids:
                    logits = scores.on_host()[scores.rows[i]]
                    verdict, event = self._fold(request, draft, logits, verdict)
            except Exception as error:
                # What fails here (a tokenizer on strange ids, say) concerns this request alone.
                verdict, event = Verdict(), _failed(request, error)
            kept.append(verdict)
            if event is not None:
                events.append(event)
        return kept, events

    def _score_prompt(self, request: Request, logits: np.ndarray) -> None:
        """Add the log-probabilities of the prompt tokens that follow the fed ones.

        logits: [n, V], a row after each token fed; the first follows the newest token scored.
        """
        scored, num_top = request.prompt_logprobs, request.seq.params.prompt_logprobs
        assert scored is not None
        assert num_top is not None
        following = request.seq.tokens[len(scored) : request.seq.num_prompt][: len(logits)]
        for start in range(0, len(following), SCORED_TOGETHER):
            token_ids = following[start : start + SCORED_TOGETHER]
            scored.extend(self._report(logits[start : start + len(token_ids)], token_ids, num_top))

    def _fold(
        self, request: Request, draft: Draft, logits: np.ndarray, verdict: Verdict
    ) -> tuple[Verdict, Event]:
        num_top, logprobs = request.seq.params.logprobs, None
        if num_top is not None:
            rows = [0, *(node + 1 for node in verdict.accepted_nodes)]
            logprobs = self._report(logits[rows], verdict.token_ids, num_top)
        length = 0
        for position, token in enumerate(verdict.token_ids[: request.max_new]):
            length += 1
            if request.fold.push(token, logprobs[position] if logprobs else None):
                break
        if request.max_new == 0:
            request.fold.finish("length")  # only the prompt was to be scored
        kept = verdict.trimmed(length)
        request.seq.tokens.extend(kept.token_ids)
        request.stats.record(draft, kept)
        self.speculation.record(draft, kept)
        if request.first_token_at is None and length:
            request.first_token_at = time.perf_counter()
        own = length - kept.num_accepted
        kinds = ("accepted",) * kept.num_accepted + (_kind_of_own(draft, kept),) * own
        event = Event(
            seq_id=request.seq.seq_id,
            token_ids=kept.token_ids,
            text=request.fold.take_delta(),
            origins=(draft.origin,) * kept.num_accepted + ("",) * own,
            kinds=kinds,
            drafted=draft.token_ids[: draft.num_verified],
            logprobs=tuple(logprobs[:length]) if logprobs else None,
            finish_reason=request.fold.finish_reason,
            index=request.seq.choice,
        )
        return kept, event

    def _report(
        self, logits: np.ndarray, token_ids: List[int], num_top: int
    ) -> list[dict[int, Logprob]]:
        """Log-probabilities of `token_ids` and of the `num_top` most probable tokens beside each.

        logits: [n, V] with n of at least the number of tokens.
        """
        reports = raw_logprobs(logits[: len(token_ids)], token_ids, num_top)
        return [
            {
                token: Logprob(value, rank, self._tokenizer.token_text(token))
                for token, value, rank in report
            }
            for report in reports
        ]

    def _finish(self, requests: List[Request], events: list[Event]) -> None:
        """Let go of requests that have ended. An error ends the other answers to its prompt too,
        whose last events are added to `events`."""
        ended = {event.seq_id: event for event in events if event.finish_reason is not None}
        for request in requests:
            event = ended.get(request.seq.seq_id)
            if event is None:
                continue
            self._release(request)
            if event.error is not None:
                cancelled = [self.cancel(sibling) for sibling in request.siblings]
                events.extend(last for last in cancelled if last is not None)

    def _release(self, request: Request) -> None:
        self._scheduler.finish(request)
        self._drafter.release(request.seq)

    def _record(self, started: float, drafted: float, scored: float) -> None:
        times = StepTimes(drafted - started, scored - drafted, time.perf_counter() - started)
        self.metrics.add(times)
        self._drafter.timed(times)
        if self._instruments.timed is not None:
            self._instruments.timed(times)


def _kind_of_own(draft: Draft, verdict: Verdict) -> str:
    """How the target came to choose the last token of a verdict; see `Event`."""
    if not draft.num_verified:
        return "plain"
    newest = verdict.accepted_nodes[-1] if verdict.num_accepted else -1
    return "recovered" if draft.children()[newest + 1] else "bonus"


def _failed(request: Request, error: Exception) -> Event:
    request.fold.finish_reason = "error"
    seq = request.seq
    return Event(seq.seq_id, (), "", finish_reason="error", error=error, index=seq.choice)
