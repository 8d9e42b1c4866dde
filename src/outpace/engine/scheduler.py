"""Which sequences take part in the next pass, and how much each may feed and draft."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

from outpace.engine.request import Request
from outpace.runner import Runner
from outpace.types import Status


@dataclass(slots=True)
class ScheduledBatch:
    """The requests of one step with, for each, the most tokens to feed and to draft."""

    requests: list[Request] = field(default_factory=list)
    max_feed: list[int] = field(default_factory=list)
    draft_budgets: list[int] = field(default_factory=list)


class Scheduler:
    """Owns every change of a request's status.

    A request waits until a cache row is free; rows were planned so that all of them fit in
    memory at full length. Then it is "feed what is not cached": decoding requests come first,
    what is left of `max_num_batched_tokens` goes to prompts, in chunks, first come first served,
    so that a long prompt delays the others by one chunk at a time.
    """

    def __init__(self, target: Runner, *, max_num_batched_tokens: int) -> None:
        self._target = target
        self._max_num_batched_tokens = max_num_batched_tokens
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._running)

    @property
    def requests(self) -> list[Request]:
        """All unfinished requests, running ones first."""
        return [*self._running, *self._waiting]

    def add(self, request: Request) -> None:
        self._waiting.append(request)

    def next_batch(self) -> ScheduledBatch:
        """Admit what fits, then share out the step's tokens. Empty only without work."""
        self._admit()
        batch = ScheduledBatch()
        left = self._max_num_batched_tokens
        pending = {r.seq.seq_id: self._num_pending(r) for r in self._running}
        for request in sorted(self._running, key=lambda r: pending[r.seq.seq_id] > 1):
            wanted = pending[request.seq.seq_id]
            feed = wanted if wanted == 1 else min(wanted, left)
            if feed <= 0:
                continue
            budget = min(request.draft_budget, max(left - feed, 0)) if feed == wanted else 0
            batch.requests.append(request)
            batch.max_feed.append(feed)
            batch.draft_budgets.append(budget)
            left -= feed + budget
        return batch

    def finish(self, request: Request) -> None:
        """Take a request out, whatever its status, and give its cache row back."""
        if request.seq.status is Status.WAITING:
            self._waiting.remove(request)
        elif request.seq.status is Status.RUNNING:
            self._running.remove(request)
        self._target.release(request.seq)
        request.seq.status = Status.FINISHED
        request.finished_at = time.perf_counter()

    def _admit(self) -> None:
        while self._waiting and self._target.cache.num_free_rows:
            request = self._waiting.popleft()
            request.num_cached_tokens = self._target.open(request.seq)
            request.seq.status = Status.RUNNING
            request.admitted_at = time.perf_counter()
            self._running.append(request)

    def _num_pending(self, request: Request) -> int:
        return len(request.seq.tokens) - self._target.num_cached(request.seq)
