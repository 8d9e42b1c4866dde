"""Several drafting methods in one engine: each request is drafted for by the one it asked for."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as List

from outpace.control.decisions import DecisionLog
from outpace.drafters.base import Drafter
from outpace.engine.drafting import GuardedDrafter
from outpace.engine.request import Request
from outpace.types import NO_DRAFT, Draft, Scores, Sequence, StepTimes, Verdict


class DrafterRouter:
    """What `GuardedDrafter` is for one drafter, for several of them, with the same methods.

    A drafter is told of its own sequences only, and one without any in a step is not called. Each
    is guarded by itself, so that one that fails costs the drafts of its own requests alone.
    """

    def __init__(self, drafters: Mapping[str, Drafter], *, takes_trees: bool) -> None:
        """drafters: by the names in `Sequence.method`; the first one is the default."""
        self._drafters = {
            name: GuardedDrafter(drafter, takes_trees=takes_trees)
            for name, drafter in drafters.items()
        }
        self._default = next(iter(drafters))
        self._had_all: GuardedDrafter | None = None  # drafter of all sequences of the step

    @property
    def decisions(self) -> DecisionLog | None:
        """The default's, else those of the first drafter that has any."""
        logs = (drafter.decisions for drafter in self._drafters.values())
        return next((log for log in logs if log is not None), None)

    def capture(self, requests: List[Request]) -> List[int]:
        """Target layers that any drafter wants of a pass over these requests."""
        wanted = [
            layers
            for drafter, places in self._parts(requests)
            if (layers := drafter.capture([requests[i] for i in places]))
        ]
        if len(wanted) < 2:
            return wanted[0] if wanted else ()
        return sorted({layer for layers in wanted for layer in layers})

    def propose(self, requests: List[Request], budgets: List[int]) -> list[Draft]:
        parts = self._parts(requests)
        if len(parts) == 1:
            return parts[0][0].propose(requests, budgets)
        drafts = [NO_DRAFT] * len(requests)
        for drafter, places in parts:
            proposed = drafter.propose([requests[i] for i in places], [budgets[i] for i in places])
            for i, draft in zip(places, proposed, strict=True):
                drafts[i] = draft
        return drafts

    def observe(self, requests: List[Request], scores: Scores, verdicts: List[Verdict]) -> None:
        parts = self._parts(requests)
        self._had_all = parts[0][0] if len(parts) == 1 else None
        if self._had_all is not None:
            self._had_all.observe(requests, scores, verdicts)
            return
        for drafter, places in parts:
            own = [requests[i] for i in places]
            drafter.observe(own, scores.only(places), [verdicts[i] for i in places])

    def timed(self, times: StepTimes) -> None:
        """What a step took says nothing to a drafter that had a part of it only."""
        if self._had_all is not None:
            self._had_all.timed(times)

    def adopt(self, request: Request, source: Sequence | None, length: int) -> int:
        """From where the target must feed. The answers to one prompt have one drafter, so `source`
        is a sequence of the same."""
        return self._of(request.seq).adopt(request, source, length)

    def release(self, seq: Sequence) -> None:
        self._of(seq).release(seq)

    def check_integrity(self) -> None:
        for drafter in self._drafters.values():
            drafter.check_integrity()

    def _of(self, seq: Sequence) -> GuardedDrafter:
        return self._drafters[seq.method or self._default]

    def _parts(self, requests: List[Request]) -> list[tuple[GuardedDrafter, list[int]]]:
        """The drafters that have any of these requests, with the places of theirs."""
        places: dict[str, list[int]] = {}
        for place, request in enumerate(requests):
            places.setdefault(request.seq.method or self._default, []).append(place)
        return [(self._drafters[name], own) for name, own in places.items()]


RequestDrafter = GuardedDrafter | DrafterRouter


def guarded(drafters: Mapping[str, Drafter], *, takes_trees: bool) -> RequestDrafter:
    """The drafters of an engine behind a guard, the default first; a single one needs no routes."""
    if len(drafters) > 1:
        return DrafterRouter(drafters, takes_trees=takes_trees)
    (drafter,) = drafters.values()
    return GuardedDrafter(drafter, takes_trees=takes_trees)
