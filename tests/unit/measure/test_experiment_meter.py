"""Acceptance as the experiment computes it, and whether it notices what is not so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from scripted import Propose, sampled, scripted
from tiny import tiny_model

from outpace import LLM, SamplingParams
from outpace.engine.instruments import Judge
from outpace.measure.experiment.meter import Agreement, Balance, StepMeter
from outpace.types import Draft, Verdict
from outpace.verification.judge import verify

VOCAB = 96
P = np.array([1 / 2, 1 / 4, 1 / 8, 1 / 8])
Q = np.array([1 / 8, 1 / 2, 1 / 4, 1 / 8])
UNIFORM = tiny_model(scale=0.0, seed=2)
"""Its logits are all 0: p is 1/96 for every token, whatever came before."""
DRAWN = np.array([0.5, 0.25, *[0.25 / 94] * 94])
ALPHA = 2 / 96 + 0.25
"""sum_x min(1/96, q(x)): both likely tokens have more than 1/96, the others less."""
PARAMS = SamplingParams(temperature=0.8, max_tokens=60, ignore_eos=True)


@pytest.fixture(scope="module", autouse=True)
def _unchecked_shapes(unchecked_shapes_in_module: None) -> None:
    """Engines run here, whose speed does not allow the checks."""


def recorded(
    propose: Propose, k: int, judge: Judge = verify, num_prompts: int = 6
) -> tuple[StepMeter, float]:
    """(a meter that has recorded, share of the reached draft tokens that were accepted)."""
    meter = StepMeter(k, judge)
    meter.recording = True
    config = {"method": scripted(propose), "num_speculative_tokens": k}
    prompts = [{"prompt_token_ids": [5 + i, 9]} for i in range(num_prompts)]
    with LLM(
        UNIFORM, speculative_config=config, max_num_seqs=1, instruments=meter.instruments
    ) as llm:
        llm.generate(prompts, PARAMS)
        stats = llm.speculation
    return meter, stats.num_accepted_tokens / sum(stats.reached_per_position)


def test_a_chain_by_hand() -> None:
    """Tokens 1 and 0: accepted with 1/2, then with 1, so that block verification, which makes up
    for the first by the second (P_2 = min(1, 1/2 * 4) = 1), always accepts both."""
    agreement = Agreement()
    agreement.add([P, P, P], Draft((1, 0), (Q, Q)), 2)
    assert agreement.alphas == pytest.approx([5 / 8, 5 / 8])
    assert agreement.weights == pytest.approx([1, 1 / 2])
    assert agreement.expected == pytest.approx(2)
    assert agreement.decided.variance == pytest.approx(0)
    assert agreement.drawn.sum == pytest.approx((1 / 2 - 5 / 8) + 1 / 2 * (1 - 5 / 8))


def test_one_position_by_hand() -> None:
    """Token 1 is accepted with probability 1/2, token 0 always."""
    agreement = Agreement()
    agreement.add([P, P], Draft((1,), (Q,)), 0)
    agreement.add([P, P], Draft((0,), (Q,)), 1)
    assert agreement.alpha(1) == pytest.approx(5 / 8)
    assert agreement.accepted == 1
    assert agreement.expected == pytest.approx(3 / 2)
    assert agreement.decided.variance == pytest.approx(1 / 4)
    # min(1, p/q) is 1, 1/2, 1/2, 1 with probabilities 1/8, 1/2, 1/4, 1/8.
    assert agreement.drawn.variance == pytest.approx(2 * (7 / 16 - (5 / 8) ** 2))


def test_a_draft_without_q_has_p_of_its_token_as_alpha() -> None:
    agreement = Agreement()
    agreement.add([P, P, P], Draft((0, 1)), 1)
    assert agreement.alphas == pytest.approx([1 / 2, 1 / 4])
    assert agreement.expected == pytest.approx(1 / 2 + 1 / 8)
    assert agreement.drawn.variance == 0


def test_nothing_recorded() -> None:
    assert Agreement().alpha(3) is None
    assert Agreement().alphas == []
    assert Agreement().decided.holds


def test_rows_of_different_widths_are_compared_by_token() -> None:
    agreement = Agreement()
    agreement.add([P, P], Draft((1,), (np.array([0.0, 1.0]),)), 0)
    assert agreement.alphas == pytest.approx([1 / 4])


@pytest.mark.parametrize("k", [1, 3])
def test_alpha_of_a_table_is_exact(k: int) -> None:
    meter, accepted_share = recorded(sampled(DRAWN, seed=3), k)
    agreement = meter.agreement
    assert agreement.alphas == pytest.approx([ALPHA] * k, rel=1e-6)
    assert agreement.alpha(k) == pytest.approx(ALPHA, rel=1e-6)
    assert agreement.num_drafts > 100
    assert agreement.drawn.holds
    assert agreement.decided.holds
    # Counted, it is near; by block verification not below.
    assert abs(accepted_share - ALPHA) < 0.12


def test_recorded_steps_are_not_timed() -> None:
    meter, _ = recorded(sampled(DRAWN), 2, num_prompts=1)
    assert meter.times == []


def test_only_full_decoding_steps_are_timed() -> None:
    meter = StepMeter(2)
    config = {"method": scripted(sampled(DRAWN)), "num_speculative_tokens": 2}
    with LLM(
        UNIFORM, speculative_config=config, max_num_seqs=1, instruments=meter.instruments
    ) as llm:
        (output,) = llm.generate([{"prompt_token_ids": [5, 9]}], PARAMS)
        num_steps = llm.metrics.num_steps
    # Not the step that read the prompt, nor those near the end that drafted less.
    assert num_steps - 3 <= len(meter.times) < num_steps
    assert meter.agreement.num_drafts == 0
    assert output.stats.num_steps == num_steps


def accepting(accept: Any) -> Judge:
    """A judge that keeps as many draft tokens as `accept(draft, verdict)` says."""

    def judge(
        scores: Any, seqs: Any, drafts: Sequence[Draft], rng: Any, lossy: Any = None
    ) -> list[Verdict]:
        verdicts = verify(scores, seqs, drafts, rng, lossy)
        changed = []
        for draft, verdict in zip(drafts, verdicts, strict=True):
            count = accept(draft, verdict)
            own = verdict.token_ids[-1:]
            changed.append(
                Verdict((*draft.token_ids[:count], *own), count) if len(draft) else verdict
            )
        return changed

    return judge


@pytest.mark.parametrize(
    "accept",
    [
        pytest.param(lambda draft, verdict: len(draft), id="accepts everything"),
        pytest.param(lambda draft, verdict: 0, id="accepts nothing"),
        pytest.param(
            lambda draft, verdict: max(verdict.num_accepted, int(draft.token_ids[:1] == (0,))),
            id="accepts its favourite",
        ),
    ],
)
def test_a_judge_that_does_not_follow_p_and_q_is_found(accept: Any) -> None:
    meter, _ = recorded(sampled(DRAWN, seed=4), 1, accepting(accept))
    assert meter.agreement.alpha(1) == pytest.approx(ALPHA, rel=1e-6)
    assert not meter.agreement.decided.holds
    assert meter.agreement.drawn.holds


def test_a_wrapped_judge_that_changes_nothing_is_not() -> None:
    meter, _ = recorded(
        sampled(DRAWN, seed=4), 1, accepting(lambda draft, verdict: verdict.num_accepted)
    )
    assert meter.agreement.decided.holds


def test_drafts_that_were_not_drawn_from_their_q_are_found() -> None:
    """The likeliest token each time, with the soft q beside it: mistake 2 of the misconceptions."""
    favourite = np.eye(VOCAB)[0]
    meter, _ = recorded(sampled(favourite, claim=DRAWN), 1)
    assert not meter.agreement.drawn.holds
    assert meter.agreement.decided.holds


def test_chance_by_hand() -> None:
    """Freedman: 2 exp(-t^2 / (2 (V + m t / 3)))."""
    balance = Balance(sum=-30.0, variance=40.0, largest=3.0)
    assert balance.chance == pytest.approx(2 * np.exp(-900 / (2 * (40 + 30))))
    assert Balance().chance == 1
    assert not Balance(sum=5.0, variance=0.0, largest=0.1).holds
