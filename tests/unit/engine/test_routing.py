"""Which drafter is told what, where requests of one batch have different ones."""

from __future__ import annotations

from collections.abc import Sequence as List
from typing import Any

import numpy as np
import pytest

from outpace.control.decisions import DecisionLog
from outpace.drafters.base import Drafter
from outpace.engine.drafting import GuardedDrafter
from outpace.engine.request import Request
from outpace.engine.routing import DrafterRouter, guarded
from outpace.params import SamplingParams
from outpace.types import Draft, Scores, Sequence, StepTimes, Verdict

TIMES = StepTimes(0.1, 0.2, 0.4)


class Recording(Drafter):
    """Writes down its calls; drafts its own number. fails: names of methods that raise."""

    def __init__(self, number: int, capture: List[int] = (), fails: List[str] = ()) -> None:
        self.number, self.capture, self.fails = number, capture, fails
        self.calls: list[Any] = []
        self.scores: list[Scores] = []

    def _call(self, name: str, *values: Any) -> None:
        self.calls.append((name, *values))
        if name in self.fails:
            raise RuntimeError(name)

    def propose(self, seqs: List[Sequence], budgets: List[int]) -> list[Draft]:
        self._call("propose", [seq.seq_id for seq in seqs], list(budgets))
        return [Draft((self.number, seq.seq_id)) for seq in seqs]

    def observe(self, seqs: List[Sequence], scores: Scores, verdicts: List[Verdict]) -> None:
        self.scores.append(scores)
        self._call("observe", [seq.seq_id for seq in seqs], [v.token_ids for v in verdicts])

    def timed(self, times: StepTimes) -> None:
        self._call("timed")

    def adopt(self, seq: Sequence, source: Sequence | None, length: int) -> int:
        self._call("adopt", seq.seq_id, source and source.seq_id)
        return length - self.number

    def release(self, seq: Sequence) -> None:
        self._call("release", seq.seq_id)

    def check_integrity(self) -> None:
        self._call("check")


def request(seq_id: int, method: str = "", limit: int = 4) -> Request:
    seq = Sequence(seq_id, [2, 3, 4], 3, SamplingParams(), method=method)
    return Request(seq, None, 20, limit)  # type: ignore[arg-type]


def scores_of(count: int) -> Scores:
    """Two rows and two fed tokens for each of so many sequences."""
    pairs = [slice(2 * i, 2 * i + 2) for i in range(count)]
    values = np.arange(6.0 * count).reshape(2 * count, 3)
    prompt_rows = [slice(7 * i, 7 * i + 1) for i in range(count)]
    starts = [10 * i for i in range(count)]
    return Scores(values, pairs, list(pairs), {}, prompt_rows, starts)


def verdicts_of(count: int) -> list[Verdict]:
    return [Verdict((i,)) for i in range(count)]


@pytest.fixture
def drafters() -> dict[str, Recording]:
    return {"a": Recording(1), "b": Recording(2), "c": Recording(3)}


@pytest.fixture
def router(drafters: dict[str, Recording]) -> DrafterRouter:
    return DrafterRouter(drafters, takes_trees=True)


MIXED = [request(0, "b"), request(1), request(2, "a"), request(3, "b")]


def test_a_single_drafter_needs_no_routes() -> None:
    assert isinstance(guarded({"a": Recording(1)}, takes_trees=True), GuardedDrafter)
    two = guarded({"a": Recording(1), "b": Recording(2)}, takes_trees=True)
    assert isinstance(two, DrafterRouter)


def test_each_is_asked_about_its_own_and_drafts_come_back_in_place(
    router: DrafterRouter, drafters: dict[str, Recording]
) -> None:
    drafts = router.propose(MIXED, [2, 3, 4, 5])
    assert [draft.token_ids for draft in drafts] == [(2, 0), (1, 1), (1, 2), (2, 3)]
    assert drafters["a"].calls == [("propose", [1, 2], [3, 4])]
    assert drafters["b"].calls == [("propose", [0, 3], [2, 5])]
    assert not drafters["c"].calls


def test_each_observes_its_own_rows_and_no_array_is_copied(
    router: DrafterRouter, drafters: dict[str, Recording]
) -> None:
    scores = scores_of(4)
    router.observe(MIXED, scores, verdicts_of(4))
    assert drafters["a"].calls == [("observe", [1, 2], [(1,), (2,)])]
    assert drafters["b"].calls == [("observe", [0, 3], [(0,), (3,)])]
    assert not drafters["c"].calls
    for name, places in (("a", [1, 2]), ("b", [0, 3])):
        (seen,) = drafters[name].scores
        assert seen.values is scores.values
        assert seen.hidden is scores.hidden
        for field in ("rows", "fed", "prompt_rows", "starts"):
            assert getattr(seen, field) == [getattr(scores, field)[i] for i in places]


def test_a_batch_of_one_method_is_passed_on_as_it_is(
    router: DrafterRouter, drafters: dict[str, Recording]
) -> None:
    scores, requests = scores_of(2), [request(0, "b"), request(1, "b")]
    router.observe(requests, scores, verdicts_of(2))
    assert drafters["b"].scores[0] is scores
    assert not drafters["a"].calls


def test_time_is_told_to_one_that_had_the_whole_step(
    router: DrafterRouter, drafters: dict[str, Recording]
) -> None:
    def step(*requests: Request) -> list[str]:
        for drafter in drafters.values():
            drafter.calls.clear()
        router.observe(requests, scores_of(len(requests)), verdicts_of(len(requests)))
        router.timed(TIMES)
        return [name for name, each in drafters.items() if ("timed",) in each.calls]

    assert step(*MIXED) == []
    assert step(request(0, "b"), request(1, "b")) == ["b"]
    assert step(request(0), request(1, "a")) == ["a"]
    assert step(*MIXED) == []
    # The plain one is counted in by its drafter; where all are plain, nobody has seen the step.
    assert step(request(0, "b"), request(1, "b", limit=0)) == ["b"]
    assert step(request(0, "b", limit=0)) == []


def test_capture_is_what_the_drafters_of_the_pass_want() -> None:
    wanting = {"a": Recording(1), "b": Recording(2, (2, 5)), "c": Recording(3, [7, 2])}
    router = DrafterRouter(wanting, takes_trees=True)
    a, b, c = (request(i, name) for i, name in enumerate("abc"))
    assert router.capture([a]) == ()
    assert router.capture([a, b]) is wanting["b"].capture
    assert router.capture([c]) is wanting["c"].capture
    assert router.capture([c, b, a]) == [2, 5, 7]
    assert router.capture([a, request(3, "b", limit=0)]) == ()
    assert router.capture([c, request(3, "b", limit=0)]) is wanting["c"].capture


@pytest.mark.parametrize("where", ["propose", "observe", "adopt"])
def test_one_that_raises_costs_only_its_own_requests(where: str) -> None:
    drafters = {"a": Recording(1), "b": Recording(2, fails=[where])}
    router = DrafterRouter(drafters, takes_trees=True)
    requests = [request(0, "b"), request(1), request(2, "a"), request(3, "b")]
    for one in requests:
        router.adopt(one, None, 3)
    drafts = router.propose(requests, [one.draft_budget for one in requests])
    router.observe(requests, scores_of(4), verdicts_of(4))
    assert [one.drafter_failed for one in requests] == [True, False, False, True]
    assert [one.stats.num_drafter_errors for one in requests] == [1, 0, 0, 1]
    assert [len(draft) for draft in drafts][1:3] == [2, 2]
    proposals = [call for call in drafters["a"].calls if call[0] == "propose"]
    assert proposals == [("propose", [1, 2], [4, 4])], "asked again because another failed"


def test_adopting_and_releasing_go_to_the_sequences_drafter(
    router: DrafterRouter, drafters: dict[str, Recording]
) -> None:
    one, other, plain = request(0, "b"), request(1), request(2, "c", limit=0)
    assert router.adopt(one, None, 8) == 6
    assert router.adopt(other, one.seq, 8) == 7
    assert router.adopt(plain, None, 8) == 8, "a plain one can use all that is cached"
    for each in (one, other, plain):
        router.release(each.seq)
    assert drafters["a"].calls == [("adopt", 1, 0), ("release", 1)]
    assert drafters["b"].calls == [("adopt", 0, None), ("release", 0)]
    assert drafters["c"].calls == [("release", 2)]


def test_all_are_checked_and_the_first_log_is_shown(
    router: DrafterRouter, drafters: dict[str, Recording]
) -> None:
    router.check_integrity()
    assert all(each.calls == [("check",)] for each in drafters.values())
    drafters["c"].fails = ["check"]
    with pytest.raises(RuntimeError, match="check"):
        router.check_integrity()
    assert router.decisions is None
    drafters["c"].decisions = DecisionLog()
    assert router.decisions is drafters["c"].decisions
    drafters["b"].decisions = DecisionLog()
    assert router.decisions is drafters["b"].decisions
