"""Trees of `auto`: made where rows are cheap, of tokens that nobody drew, never wrong."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as List
from typing import Any

import pytest
from fake_head import FakeHead, head_config
from plain import plain_llm
from tiny import tiny_model

from outpace import LLM, SamplingParams
from outpace.control import calibrate
from outpace.control.costs import CostTable
from outpace.drafters.auto import AutoDrafter
from outpace.drafters.parts.eagle_rows import EagleRows
from outpace.runner import Runner
from outpace.types import Draft, Sequence, StepTimes

FREE_ROWS = CostTable(((1, 10.0), (64, 10.1)), 0.0, 0.0, 0.0)
TARGET = tiny_model(seed=1)
PROMPTS = [
    [5, 6, 7, 8, 9, 10] * 6,
    list(range(2, 60)),
    [9, 9, 9, 9, 9],
    [11, 12, 13, 11, 12, 13, 11],
    [40],
]
GREEDY = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
SEEDED = SamplingParams(temperature=0.9, seed=7, max_tokens=60, ignore_eos=True)
BOTH = "suffix+eagle3"


@pytest.fixture(autouse=True)
def _rows_are_free(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Passes take ten seconds, whatever they hold, and are drafted for from the first one on."""
    monkeypatch.setattr(calibrate, "measure_costs", lambda *args, **named: FREE_ROWS)
    real = AutoDrafter.timed

    def timed(self: AutoDrafter, times: StepTimes) -> None:
        if self._step is not None:
            target_s = FREE_ROWS.seconds(self._step.shape)
            times = StepTimes(0.0, target_s, target_s)
        real(self, times)

    monkeypatch.setattr(AutoDrafter, "timed", timed)
    return


def open_llm(head_len: int = 256, **options: Any) -> LLM:
    """head_len: the head's own context."""
    config = head_config(
        vocab_size=96,
        draft_vocab_size=94,
        feature_layers=(0, 1, 2),
        target_hidden_size=32,
        max_len=head_len,
    )
    speculative = {"method": "auto", "model": FakeHead(config, seed=3, sharpness=2.0)}
    return LLM(TARGET, speculative_config=speculative, **options)


def drafter_of(llm: LLM) -> Any:
    return llm._engine._drafter._drafter


def run(llm: LLM, params: SamplingParams, prompts: List[List[int]] = PROMPTS) -> list[list[int]]:
    results = llm.generate([{"prompt_token_ids": ids} for ids in prompts], params)
    assert all(result.stats.num_drafter_errors == 0 for result in results)
    return [result.outputs[0].token_ids for result in results]


def seen_drafts(llm: LLM) -> list[Draft]:
    """What is drafted from now on; grows as it is."""
    drafter, found = drafter_of(llm), []
    honest = drafter.propose

    def propose(seqs: List[Sequence], budgets: List[int]) -> list[Draft]:
        drafts = honest(seqs, budgets)
        assert all(len(d) <= budget for d, budget in zip(drafts, budgets, strict=True))
        found.extend(drafts)
        return drafts

    drafter.propose = propose
    return found


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_answers_are_those_of_plain_decoding(params: SamplingParams, batch: int) -> None:
    with plain_llm(TARGET) as llm:
        wanted = run(llm, params)
    with open_llm(max_num_seqs=batch) as llm:
        drafts = seen_drafts(llm)
        assert run(llm, params) == wanted
        totals = llm.decisions.totals
    assert all(draft.is_deterministic for draft in drafts)
    assert sum(not draft.is_chain for draft in drafts) > 10
    assert totals[BOTH].steps > (10 if params is GREEDY else 3)
    assert totals[BOTH].accepted > 0


def test_with_small_budgets_trees_are_small() -> None:
    with plain_llm(TARGET) as llm:
        wanted = run(llm, GREEDY)
    for budget in (1, 2, 3):
        with open_llm() as llm:
            drafter, drafts = drafter_of(llm), seen_drafts(llm)
            inner = drafter.propose
            drafter.propose = lambda seqs, budgets, inner=inner, most=budget: inner(
                seqs, [min(most, each) for each in budgets]
            )
            assert run(llm, GREEDY) == wanted
        assert max(map(len, drafts)) == budget


def test_where_no_trees_can_be_fed_it_drafts_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Runner, "takes_trees", property(lambda runner: False))
    with plain_llm(TARGET) as llm:
        wanted = run(llm, GREEDY)
    with open_llm() as llm:
        drafts = seen_drafts(llm)
        assert run(llm, GREEDY) == wanted
        totals = llm.decisions.totals
    assert all(draft.is_chain for draft in drafts)
    assert BOTH not in totals
    assert totals["eagle3"].drafted > 0


def test_a_request_with_a_grammar_gets_chains() -> None:
    with open_llm() as llm:
        takes = drafter_of(llm)._merging.takes
        free = Sequence(0, [1, 2], 2, GREEDY)
        bound = Sequence(1, [1, 2], 2, GREEDY, grammar=object())  # type: ignore[arg-type]
        assert takes(free)
        assert not takes(bound)


@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_past_the_heads_context_nothing_changes(params: SamplingParams) -> None:
    copying = [PROMPTS[0] + PROMPTS[0]]
    with plain_llm(TARGET) as llm:
        wanted = run(llm, params, copying)
    with open_llm(head_len=40, max_num_seqs=1) as llm:
        assert run(llm, params, copying) == wanted


@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_beside_a_head_without_an_answer_the_lookup_goes_on_alone(
    params: SamplingParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A head that has nothing to say is asked once, and not given as the source of copies."""
    monkeypatch.setattr(EagleRows, "is_ready", lambda self, seq: False)
    copying = [PROMPTS[0] + PROMPTS[0]]
    with plain_llm(TARGET) as llm:
        wanted = run(llm, params, copying)
    with open_llm(max_num_seqs=1) as llm:
        assert run(llm, params, copying) == wanted
        totals, records = llm.decisions.totals, llm.decisions.tail(4096)
    assert totals.keys() == {"suffix", "none"}
    assert totals["suffix"].steps > 10
    assert sum(not r.requests[0].drafted and r.predicted_tokens > 1.1 for r in records) <= 1


def test_requests_that_sample_get_trees_that_nobody_drew() -> None:
    sampled = SamplingParams(temperature=1.0, max_tokens=40, ignore_eos=True)
    with open_llm(max_num_seqs=1) as llm:
        drafts = seen_drafts(llm)
        run(llm, sampled)
    assert sum(not draft.is_chain for draft in drafts) > 10
    assert all(draft.is_deterministic for draft in drafts)


def test_drawn_chains_beside_trees_keep_their_q() -> None:
    """Those of a request that gets no trees."""
    sampled = SamplingParams(temperature=1.0, max_tokens=40, ignore_eos=True)
    with open_llm(max_num_seqs=2) as llm:
        drafter_of(llm)._merging.takes = lambda seq: seq.params.is_greedy
        drafts = seen_drafts(llm)
        prompts = [{"prompt_token_ids": ids} for ids in (PROMPTS[1], PROMPTS[4])]
        llm.generate(prompts, [GREEDY, sampled])
    assert any(not draft.is_chain for draft in drafts)
    assert any(not draft.is_deterministic for draft in drafts)
    assert all(draft.is_chain for draft in drafts if not draft.is_deterministic)


def test_what_is_predicted_of_trees_comes_about() -> None:
    """Output tokens, added up over the steps with a tree."""
    long = SamplingParams(temperature=0, max_tokens=190, ignore_eos=True)
    with open_llm(max_num_seqs=1) as llm:
        run(llm, long)
        records = llm.decisions.tail(4096)
    trees = [r for r in records if r.predicted_s and r.requests[0].source in (BOTH, "eagle3")]
    assert len(trees) > 40
    predicted = sum(r.predicted_tokens for r in trees)
    assert predicted == pytest.approx(sum(r.num_tokens for r in trees), rel=0.1)
