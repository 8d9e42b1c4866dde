"""Which sequences take part in the next pass, and how much each may feed and draft."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

from outpace.engine.request import Request
from outpace.engine.routing import RequestDrafter
from outpace.runner import Runner
from outpace.types import Status


@dataclass(slots=True)
class ScheduledBatch:
    """The requests of one step with, for each, the most tokens to feed and to draft, and whether
    log-probabilities of its prompt are wanted."""

    requests: list[Request] = field(default_factory=list)
    max_feed: list[int] = field(default_factory=list)
    draft_budgets: list[int] = field(default_factory=list)
    score_prompt: list[bool] = field(default_factory=list)

    def add(self, request: Request, feed: int, draft_budget: int) -> None:
        self.requests.append(request)
        self.max_feed.append(feed)
        self.draft_budgets.append(draft_budget)
        self.score_prompt.append(request.is_scoring_prompt)


class Scheduler:
    """Owns every change of a request's status.

    A request waits until a cache row is free; rows were planned so that all of them fit in
    memory at full length. Then it is "feed what is not cached": decoding requests come first, with
    their drafts, which take half of `max_num_batched_tokens` at most while prompts are due; what is
    left goes to prompts, in chunks, first come first served, so that a long prompt delays the
    others by one chunk at a time.

    Several answers to one prompt are requests of their own, and the prompt is fed for one of them:
    the others wait until the cache holds it, then take a copy.
    """

    def __init__(
        self, target: Runner, drafter: RequestDrafter, *, max_num_batched_tokens: int
    ) -> None:
        self._target = target
        self._drafter = drafter
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

    @property
    def running(self) -> list[Request]:
        return list(self._running)

    @property
    def counts(self) -> tuple[int, int]:
        """How many requests run, and how many wait."""
        return len(self._running), len(self._waiting)

    def add(self, request: Request) -> None:
        self._waiting.append(request)

    def next_batch(self) -> ScheduledBatch:
        """Admit what fits, then share out the step's tokens. Empty only without work."""
        self._admit()
        batch = ScheduledBatch()
        pending = [(request, self._num_pending(request)) for request in self._running]
        decoding = [request for request, wanted in pending if wanted == 1]
        prompts = [(request, wanted) for request, wanted in pending if wanted > 1]
        left = self._max_num_batched_tokens - len(decoding)
        # Drafts must not crowd out prompts, which would wait until others end.
        for_drafts = left // 2 if prompts else left
        for request in decoding:
            budget = self._draft_budget(request, for_drafts)
            batch.add(request, 1, budget)
            for_drafts -= budget
            left -= budget
        for request, wanted in prompts:
            feed = min(wanted, left)
            if feed <= 0:
                break
            left -= feed
            budget = self._draft_budget(request, left) if feed == wanted else 0
            batch.add(request, feed, budget)
            left -= budget
        return batch

    def _draft_budget(self, request: Request, left: int) -> int:
        """Draft tokens that fit: into the request, the step, and the cache row, where all nodes of
        a tree take a slot for the time of the step."""
        room = self._target.cache.capacity - len(request.seq.tokens)
        return max(0, min(request.draft_budget, left, room))

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
        num_free = self._target.cache.num_free_rows
        for request in list(self._waiting) if num_free else ():
            source = self._running_sibling(request)
            if source is not None and self._is_feeding_prompt(source):
                continue
            # First, so that whatever fails from here on ends this request with the others that run.
            self._waiting.remove(request)
            self._running.append(request)
            request.seq.status = Status.RUNNING
            self._place(request, source)
            request.admitted_at = time.perf_counter()
            num_free -= 1
            if not num_free:
                break

    def _place(self, request: Request, source: Request | None) -> None:
        """Give a request its cache row, holding no more of its prompt than the drafter can do
        without being shown."""
        seq, drafter = request.seq, self._drafter
        if source is not None:
            length = self._target.fork(source.seq, seq)
            self._target.rewind(seq, drafter.adopt(request, source.seq, length))
            return
        # Scoring a prompt takes the logits of all its positions, cached or not.
        length = self._target.open(seq, reuse=not request.is_scoring_prompt)
        request.num_cached_tokens = drafter.adopt(request, None, length)
        self._target.rewind(seq, request.num_cached_tokens)

    def _running_sibling(self, request: Request) -> Request | None:
        """Another answer to the same prompt that has a cache row; preferably with all of it."""
        running = [r for r in request.siblings if r.seq.status is Status.RUNNING]
        return min(running, key=self._is_feeding_prompt, default=None)

    def _is_feeding_prompt(self, request: Request) -> bool:
        """Whether prompt tokens that another answer could copy are not cached yet."""
        return self._target.num_cached(request.seq) < request.seq.num_prompt - 1

    def _num_pending(self, request: Request) -> int:
        return len(request.seq.tokens) - self._target.num_cached(request.seq)
