"""`auto`: what it decides on made-up costs, through the engine; and that it stays exact."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as List
from typing import Any

import numpy as np
import pytest
from fake_head import FakeHead, head_config
from heads import COUNTING_SIZE, counting_model
from laws import SMALL, SMALL_VOCAB, chi_square_p, pair_counts, pair_law
from plain import plain_llm
from tiny import tiny_model

from outpace import LLM, SamplingParams
from outpace.control import calibrate
from outpace.control.costs import CostTable
from outpace.control.goodput import Plan, Ways
from outpace.control.rivals import Ranked
from outpace.control.terms import Terms
from outpace.drafters.auto import AutoDrafter, AutoOptions
from outpace.drafters.parts.eagle_drafter import EagleDrafter
from outpace.errors import ModelError, OptionError
from outpace.types import Draft, Sequence, StepTimes
from outpace.verification.tree import _Remaining

FREE_ROWS = CostTable(((1, 10.0), (64, 10.1)), 0.0, 0.0, 0.0)
"""Passes of ten seconds, whatever they hold: real times beside them are nothing."""
DEAR_ROWS = CostTable(((1, 10.0), (64, 640.0)), 0.0, 0.0, 0.0)
"""Every row costs what the first one does: no guess is worth it unless it is certain."""
GREEDY = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
COPYING = [5, 6, 7, 8, 9, 10] * 6
HARD = list(range(2, 60))
TARGET = tiny_model(seed=1)


@pytest.fixture
def costs(monkeypatch: pytest.MonkeyPatch) -> Callable[[CostTable], None]:
    """Lets passes cost what a table says, by measurement and in every step."""

    def use(table: CostTable) -> None:
        monkeypatch.setattr(calibrate, "measure_costs", lambda *args, **named: table)
        real = AutoDrafter.timed

        def timed(self: AutoDrafter, times: StepTimes) -> None:
            if self._step is not None:
                target_s = table.seconds(self._step.shape)
                times = StepTimes(0.0, target_s, target_s)
            real(self, times)

        monkeypatch.setattr(AutoDrafter, "timed", timed)

    return use


def head(draft_vocab_size: int = 94, **options: Any) -> FakeHead:
    config = head_config(
        vocab_size=96,
        draft_vocab_size=draft_vocab_size,
        feature_layers=(0, 1, 2),
        target_hidden_size=32,
    )
    return FakeHead(config, **options)


def auto(**options: Any) -> dict[str, Any]:
    return {"method": "auto", **options}


def run(
    llm: LLM, prompts: List[List[int]], params: SamplingParams = GREEDY, **named: Any
) -> list[Any]:
    return llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, **named)


def ids_of(results: List[Any]) -> list[list[int]]:
    return [result.outputs[0].token_ids for result in results]


@pytest.fixture(scope="module")
def plain() -> list[list[int]]:
    with plain_llm(TARGET) as llm:
        return ids_of(run(llm, [COPYING, HARD]))


@pytest.mark.parametrize("table", [FREE_ROWS, DEAR_ROWS], ids=["free", "dear"])
@pytest.mark.parametrize("trained", [True, False])
def test_it_says_what_plain_decoding_says(
    costs: Any, plain: list[list[int]], table: CostTable, trained: bool
) -> None:
    costs(table)
    config = auto(model=head(seed=3, sharpness=2.0) if trained else "none")
    with LLM(TARGET, speculative_config=config) as llm:
        results = run(llm, [COPYING, HARD])
    assert ids_of(results) == plain
    assert all(result.stats.num_drafter_errors == 0 for result in results)


def test_rows_that_cost_nothing_are_filled(costs: Any) -> None:
    """The target counts, and its prompt has done so twice: the lookup is always right."""
    costs(FREE_ROWS)
    with LLM(counting_model(), speculative_config=auto(model="none")) as llm:
        (result,) = run(llm, [list(range(COUNTING_SIZE)) * 2])
    assert result.stats.acceptance_length > 8
    assert result.stats.num_accepted_tokens == result.stats.num_draft_tokens


def test_guesses_are_not_made_where_they_cost_as_much_as_they_bring(costs: Any) -> None:
    costs(DEAR_ROWS)
    with LLM(TARGET, speculative_config=auto(model=head(seed=3))) as llm:
        run(llm, [HARD])
        totals = llm.decisions.totals
    assert sum(each.drafted for each in totals.values()) <= 6
    assert totals["none"].steps > 50


def test_the_trained_drafter_is_left_where_it_is_never_right_and_tried_again(costs: Any) -> None:
    """The head's guesses are noise: a few are made before that is known, and one in some time."""
    costs(FREE_ROWS)
    long = SamplingParams(temperature=0, max_tokens=190, ignore_eos=True)
    with LLM(TARGET, speculative_config=auto(model=head(seed=3))) as llm:
        drafter = llm._engine._drafter._drafter
        drafter._draft_costs.predict = lambda num_seqs, levels: 4.0 * levels
        drafter._lookup.propose_above = lambda floor, seqs, budgets: [Draft()] * len(seqs)
        run(llm, [HARD], long)
        records = llm.decisions.tail(4096)
    used = [record.step for record in records if any(r.drafted for r in record.requests)]
    assert used[0] < 20
    assert any(step > 60 for step in used), "given up for good"
    assert len(used) < 12


def test_reading_a_prompt_is_not_taken_for_what_drafting_costs(
    costs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trained drafter's first call for a request takes forever, the others no time."""
    costs(FREE_ROWS)
    with LLM(TARGET, speculative_config=auto(model=head(seed=3, sharpness=2.0))) as llm:
        drafter = llm._engine._drafter._drafter
        drafter._lookup.propose_above = lambda floor, seqs, budgets: [Draft()] * len(seqs)
        honest, seen, now = drafter._trained.rank, set(), [0.0]

        def rank(seqs: List[Sequence], depths: List[int], width: int) -> list[list[Ranked]]:
            now[0] += 0.0 if {seq.seq_id for seq in seqs} <= seen else 1000.0
            seen.update(seq.seq_id for seq in seqs)
            return honest(seqs, depths, width)

        drafter._trained.rank = rank
        monkeypatch.setattr("outpace.drafters.auto.perf_counter", lambda: now[0])
        run(llm, [HARD, COPYING, [3, 4]])
        totals = llm.decisions.totals
    assert totals["eagle3"].steps > 20
    assert drafter._draft_costs.predict(1, 1) < 0.1


@pytest.mark.parametrize(("token_s", "is_read"), [(0.01, True), (1000.0, False)])
def test_a_text_is_read_only_where_that_pays(costs: Any, token_s: float, is_read: bool) -> None:
    costs(FREE_ROWS)
    with LLM(TARGET, speculative_config=auto(model=head(seed=3, sharpness=2.0))) as llm:
        drafter = llm._engine._drafter._drafter
        drafter._lookup.propose_above = lambda floor, seqs, budgets: [Draft()] * len(seqs)
        drafter._draft_costs.reading_s = lambda num: token_s * num if num > 8 else 0.0
        run(llm, [HARD])
        records = llm.decisions.tail(4096)
    read = [record for record in records if record.reading_s]
    assert bool(read) is is_read
    assert all(record.predicted_s > record.reading_s for record in read)
    assert any(each.drafted for record in records for each in record.requests) is is_read


def test_requests_of_one_batch_get_lengths_of_their_own(costs: Any) -> None:
    costs(CostTable(((1, 10.0), (64, 160.0)), 0.0, 0.0, 0.0))
    with LLM(TARGET, speculative_config=auto(model="none"), max_num_seqs=2) as llm:
        drafter = llm._engine._drafter._drafter
        certain = drafter._lookup.propose_above

        def propose(floor: float, seqs: List[Sequence], budgets: List[int]) -> list[Draft]:
            """Nothing for the second request."""
            drafts = certain(floor, seqs, budgets)
            return [
                draft if seq.tokens[0] == COPYING[0] else Draft()
                for seq, draft in zip(seqs, drafts, strict=True)
            ]

        drafter._lookup.propose_above = propose
        run(llm, [COPYING, HARD])
        records = llm.decisions.tail(4096)
    both = [record.requests for record in records if len(record.requests) == 2]
    assert any(first.drafted > 2 and second.drafted == 0 for first, second in both)


def test_no_more_levels_are_planned_than_the_trained_drafter_has(
    costs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs(FREE_ROWS)
    monkeypatch.setattr(EagleDrafter, "longest", 2)
    with LLM(TARGET, speculative_config=auto(model=head(seed=3, sharpness=2.0))) as llm:
        trained, asked = llm._engine._drafter._drafter._trained, []
        honest = trained.rank

        def rank(seqs: List[Sequence], depths: List[int], width: int) -> list[list[Ranked]]:
            asked.extend(depths)
            return honest(seqs, depths, width)

        trained.rank = rank
        run(llm, [HARD])
        assert max(asked) == 2
        assert len(llm.decisions.economy().draft_s) == 3


def test_what_a_grammar_forces_is_drafted_by_nobody(costs: Any) -> None:
    costs(FREE_ROWS)
    words = ("the answer is no", "the answer is not known")
    params = SamplingParams(temperature=0, max_tokens=40, structured_outputs={"choice": words})
    with LLM(TARGET, speculative_config=auto(model="none")) as llm:
        (result,) = run(llm, [HARD], params)
        totals = llm.decisions.totals
    assert result.stats.num_accepted_tokens > 8
    assert all(each.accepted <= each.drafted for each in totals.values())


def test_what_it_records_adds_up(costs: Any) -> None:
    costs(FREE_ROWS)
    with LLM(TARGET, speculative_config=auto(model=head(seed=3, sharpness=2.0))) as llm:
        results = run(llm, [COPYING, HARD])
        decisions = llm.decisions
    totals = decisions.totals
    assert set(totals) <= {"suffix", "eagle3", "suffix+eagle3", "none"}
    drafted = sum(result.stats.num_draft_tokens for result in results)
    accepted = sum(result.stats.num_accepted_tokens for result in results)
    assert sum(each.drafted for each in totals.values()) == drafted
    # The verdicts of last steps are cut by the limit of the answer.
    assert abs(sum(each.accepted for each in totals.values()) - accepted) <= 2
    for record in decisions.tail(4096):
        if record.predicted_s:  # not a step that fed a prompt
            assert record.num_rows == record.num_seqs + sum(r.drafted for r in record.requests)
            assert record.num_tokens >= record.num_seqs - 1


LAWS = {
    "T1": SamplingParams(temperature=1.0, max_tokens=3, ignore_eos=True),
    "T1.3-top_p": SamplingParams(temperature=1.3, top_p=0.8, max_tokens=3, ignore_eos=True),
}


def small_head() -> FakeHead:
    config = head_config(
        vocab_size=SMALL_VOCAB, draft_vocab_size=6, feature_layers=(0, 1, 2), target_hidden_size=32
    )
    return FakeHead(config, seed=3)


@pytest.fixture
def sampling_llm(costs: Any) -> Iterator[LLM]:
    costs(FREE_ROWS)
    with LLM(SMALL, speculative_config=auto(model=small_head()), max_num_seqs=64) as llm:
        yield llm


@pytest.mark.parametrize("shape", ["tree", "chain"])
@pytest.mark.parametrize("params", LAWS.values(), ids=LAWS.keys())
def test_sampled_answers_have_the_targets_law(
    sampling_llm: LLM, params: SamplingParams, shape: str
) -> None:
    drafter: Any = sampling_llm._engine._drafter
    if shape == "chain":
        drafter._drafter._merging = None
    counts = pair_counts(sampling_llm, params, 2500)
    totals = sampling_llm.decisions.totals
    assert ("suffix+eagle3" in totals) == (shape == "tree")
    assert sum(each.drafted for each in totals.values()) > 1000
    assert chi_square_p(counts, pair_law(params)) > 1e-4


def test_refused_tokens_that_stay_possible_would_be_noticed(
    sampling_llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rule for trees: what was refused is taken out of what may still come."""
    monkeypatch.setattr(_Remaining, "reject", lambda self, weight, token, q_row: weight)
    drafter: Any = sampling_llm._engine._drafter
    monkeypatch.setattr(type(drafter._drafter._stretches), "is_plain", False)
    params = LAWS["T1"]
    counts = pair_counts(sampling_llm, params, 2500)
    assert chi_square_p(counts, pair_law(params)) < 1e-6


def test_drafts_cut_for_what_they_are_would_be_noticed(
    sampling_llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rule that `auto` must not break: a token that was drawn is not dropped for its q."""
    drafter: Any = sampling_llm._engine._drafter
    drafter._drafter._merging = None  # trees are not drawn
    inner = drafter._drafter._trained
    honest = inner.propose

    def choosy(seqs: List[Sequence], budgets: List[int]) -> list[Draft]:
        drafts = honest(seqs, budgets)
        return [
            draft if draft.q is None or not draft else draft.shortened(_likely(draft))
            for draft in drafts
        ]

    monkeypatch.setattr(inner, "propose", choosy)
    # On a busy machine it would decide to draft too little for the fault to show.
    monkeypatch.setattr(type(drafter._drafter._stretches), "is_plain", False)
    monkeypatch.setattr(drafter._drafter, "_decide", _all_by_the_head)
    monkeypatch.setattr(
        drafter._drafter._lookup,
        "propose_above",
        lambda floor, seqs, budgets: [Draft()] * len(seqs),
    )
    params = LAWS["T1"]
    counts = pair_counts(sampling_llm, params, 2500)
    assert chi_square_p(counts, pair_law(params)) < 1e-6


def _all_by_the_head(seqs: List[Sequence], ways: List[Ways], terms: Terms) -> Plan:
    choices = [("trained", len(each.trained)) for each in ways]
    return Plan(choices, 0.0, 0.0)


def _likely(draft: Draft) -> int:
    """How many tokens of a draft come before the first improbable one."""
    for position, token in enumerate(draft.token_ids):
        q = draft.q_at(position)
        if q is not None and q[token] < np.sort(q)[-2]:
            return position
    return len(draft)


@pytest.mark.parametrize(
    "options",
    [{"max_trained_tokens": 0}, {"store_tokens": -1}, {"num_speculative_tokens": 1.5}],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=next(iter(options))):
        AutoOptions(**options)


def test_a_directory_that_holds_no_draft_is_refused(tmp_path: Any) -> None:
    with pytest.raises(ModelError, match=r"config\.json"):
        LLM(TARGET, speculative_config=auto(model=str(tmp_path)))


def test_none_at_all_is_plain_decoding(costs: Any, plain: list[list[int]]) -> None:
    costs(FREE_ROWS)
    with LLM(TARGET, speculative_config=auto(num_speculative_tokens=0, model="none")) as llm:
        results = run(llm, [COPYING, HARD])
    assert ids_of(results) == plain
    assert all(result.stats.num_draft_tokens == 0 for result in results)
