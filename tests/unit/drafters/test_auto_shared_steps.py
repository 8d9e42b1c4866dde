"""`auto` beside requests of other methods: steps whose time it is not told teach nothing wrong."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as List
from itertools import pairwise
from typing import Any

import pytest
from routed import Answer, fake_head, together
from scripted import scripted
from tiny import tiny_model

from outpace import LLM, SamplingParams
from outpace.control import calibrate
from outpace.control.costs import CostTable
from outpace.control.rivals import Ranked
from outpace.control.stretches import FIRST_STRETCH
from outpace.drafters.auto import AutoDrafter
from outpace.types import Draft, Sequence, StepTimes

pytestmark = pytest.mark.usefixtures("unchecked_shapes")

TARGET = tiny_model(seed=1)
HARD = list(range(2, 60))
OTHER = [40, 41]
FREE_ROWS = CostTable(((1, 10.0), (64, 10.1)), 0.0, 0.0, 0.0)
LONG = SamplingParams(temperature=0, max_tokens=190, ignore_eos=True)


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> Iterator[LLM]:
    """`auto` with a head that is never right, on passes that cost the same whatever they hold; a
    request may name a method that proposes nothing, and takes a step for each token."""
    monkeypatch.setattr(calibrate, "measure_costs", lambda *args, **named: FREE_ROWS)
    real = AutoDrafter.timed

    def timed(self: AutoDrafter, times: StepTimes) -> None:
        assert self._step is not None, "told of a step that it has not observed"
        target_s = FREE_ROWS.seconds(self._step.shape)
        real(self, StepTimes(0.0, target_s, target_s))

    monkeypatch.setattr(AutoDrafter, "timed", timed)
    config = {"method": "auto", "model": fake_head("eagle3")}
    silent = scripted(lambda seq, budget: Draft())
    with LLM(TARGET, speculative_config=config, request_methods=[silent]) as llm:
        drafter = drafter_of(llm)
        drafter._lookup.propose_above = lambda floor, seqs, budgets: [Draft()] * len(seqs)
        yield llm


def drafter_of(llm: LLM) -> Any:
    return llm._engine._drafter._drafters["auto"]._drafter


def trials(llm: LLM) -> list[int]:
    """Output lengths at which the head is asked from now on; grows as it is."""
    trained, asked = drafter_of(llm)._trained, []
    honest = trained.rank

    def rank(seqs: List[Sequence], depths: List[int], width: int) -> list[list[Ranked]]:
        asked.extend(seq.num_output for seq in seqs)
        return honest(seqs, depths, width)

    trained.rank = rank
    return asked


def beside(llm: LLM, method: str) -> Answer:
    """One long answer by `auto` that shares every step with one of that method."""
    params = SamplingParams(temperature=0, max_tokens=195, ignore_eos=True)
    mine, other = together(llm, [("auto", HARD), (method, OTHER)], [LONG, params])
    assert other.output.stats.num_drafter_errors == 0
    return mine


def test_the_first_stretch_ends_and_trials_stay_rare(llm: LLM) -> None:
    """As they do in steps of its own."""
    drafter_of(llm)._draft_costs.predict = lambda num_seqs, levels: 4.0 * levels
    asked = trials(llm)
    answer = beside(llm, "scripted")
    assert answer.output.stats.num_drafter_errors == 0
    assert asked
    assert FIRST_STRETCH <= asked[0] < FIRST_STRETCH + 8
    assert any(length > 60 for length in asked), "given up for good"
    assert len(asked) < 15
    later = [length for length in asked if length > 60]
    assert all(b - a > 30 for a, b in pairwise(later)), "tried again at once"


def test_trials_that_are_never_settled_would_be_repeated_in_every_step(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of the test above."""
    drafter = drafter_of(llm)
    drafter._draft_costs.predict = lambda num_seqs, levels: 4.0 * levels
    drafter._stretches.end()
    monkeypatch.setattr(drafter, "_settle_untimed", lambda: None)
    asked = trials(llm)
    beside(llm, "scripted")
    assert len(asked) > 30


def test_only_steps_of_its_own_are_learned_from(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: list[int] = []
    drafter = drafter_of(llm)
    observe = drafter._costs.observe

    def watched(shape: Any, *args: Any) -> None:
        shapes.append(shape.num_seqs)
        observe(shape, *args)

    monkeypatch.setattr(drafter._costs, "observe", watched)
    beside(llm, "scripted")
    assert not shapes
    assert not drafter.decisions.num_steps
    beside(llm, "none")
    assert drafter.decisions.num_steps > 150, "a plain request beside it is a part of its steps"
    assert set(shapes) <= {1, 2}
    assert 2 in shapes


def test_a_step_that_was_planned_for_some_of_its_requests_is_not_held_against_its_plan(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged: list[int] = []
    stretches = drafter_of(llm)._stretches
    observe = stretches.observe

    def watched(shape: Any, *args: Any) -> None:
        judged.append(shape.num_seqs)
        observe(shape, *args)

    monkeypatch.setattr(stretches, "observe", watched)
    beside(llm, "none")
    both = [record for record in llm.decisions.tail(4096) if record.num_seqs == 2]
    assert len(both) > 150
    assert not any(record.predicted_s for record in both)
    assert 2 not in judged


def test_a_step_alone_after_shared_ones_has_its_own_plan(llm: LLM) -> None:
    """Nothing of a shared step is taken for the account of the next one."""
    drafter = drafter_of(llm)
    short = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    together(llm, [("auto", HARD), ("scripted", OTHER)], [LONG, short])
    together(llm, [("auto", HARD), ("scripted", OTHER)], [short, LONG])
    together(llm, [("auto", OTHER)], short)
    for record in drafter.decisions.tail(4096):
        assert record.num_seqs == 1
        assert record.num_rows >= 1 + sum(request.drafted for request in record.requests)
        if record.predicted_s:
            drafted = sum(request.drafted for request in record.requests)
            assert record.num_rows == 1 + drafted
