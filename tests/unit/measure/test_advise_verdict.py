"""The advice in words: what to use, or which of the reasons there is not to."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from outpace.measure.advise.as_json import findings_json
from outpace.measure.advise.batches import predicted_at, predicted_crossover
from outpace.measure.advise.candidates import Candidate, candidates_of
from outpace.measure.advise.costs import PassCurve, StepCost
from outpace.measure.advise.findings import AtBatch, Findings, Measured
from outpace.measure.advise.memory import Memory
from outpace.measure.advise.predict import Machine, predict, predict_auto
from outpace.measure.advise.replay import Recorded, Score
from outpace.measure.advise.run import worth_measuring
from outpace.measure.advise.steps import Step
from outpace.measure.advise.verdict import (
    ACCEPTANCE,
    BATCH,
    BUSY,
    NONE,
    NOT_SURE,
    USE,
    VERIFICATION,
    decide,
)
from outpace.measure.advise.verifying import Runs, expected_of
from outpace.measure.formulas import PassCosts
from outpace.measure.methods import parse_methods
from outpace.measure.statistics import Ratio

AUTO, SUFFIX, NGRAM = candidates_of(parse_methods("auto,suffix:4,ngram:4"))
COST = StepCost(draft_ms=0.1, plain_scale=1.0, scale=1.0, rest_ms=0.2)
FLAT = PassCurve(4.0, PassCosts((1, 5, 17), (1.0, 1.0, 1.6)))
STEEP = PassCurve(4.0, PassCosts((1, 5), (1.0, 3.0)))
FIRST = Step(1, 0, 0, 1, goes_on=False)
RIGHT = Step(5, 4, 2, 3, goes_on=True)
WRONG = Step(5, 4, 0, 1, goes_on=True)


def found(
    steps: list[Step],
    curve: PassCurve,
    *,
    candidate: Candidate = SUFFIX,
    batch: int = 1,
    measured: Ratio | None = None,
    **more: Any,
) -> Findings:
    """Findings of one candidate that took these steps on each of three prompts."""
    findings = Findings({"name": "tiny"}, temperature=0.7, batch=batch, is_complete=True, **more)
    findings.recorded = [Recorded(str(i), "a", (1, 2), (3, 4, 5)) for i in range(3)]
    findings.machine = Machine(curve, COST, batch)
    score = Score(candidate, [[FIRST, *steps]] * 3)
    findings.predictions = [predict(score, COST, findings.machine)]
    findings.alone = {candidate.name: predicted_at(score, COST, findings.machine, 1)}
    ratio = measured or Ratio(findings.predictions[0].ratio, None, None, 3)
    findings.measured = [Measured(candidate, ratio, 100.0, 80.0, 2.0, 1, 3, 3)]
    return findings


def test_use() -> None:
    findings = found([RIGHT], FLAT, measured=Ratio(1.4, 1.2, 1.6, 3))
    findings.batches = [AtBatch(2, 1.3, 1.2), AtBatch(4, 1.1, 0.93)]
    findings.batches_of = SUFFIX.name
    verdict = decide(findings)
    assert verdict is not None
    assert (verdict.kind, verdict.reason, verdict.is_measured) == (USE, None, True)
    assert verdict.speculative_config == {"method": "suffix", "num_speculative_tokens": 4}
    assert verdict.text == (
        "Use suffix K=4: 1.40 times plain decoding (1.20 to 1.60) on these 3 prompts at "
        "temperature 0.7. With 4 requests together it is a loss (0.93)."
    )
    findings.batches = [AtBatch(2, 1.3, 1.2), AtBatch(4, 1.1)]
    findings.predicted_crossover = 9
    verdict = decide(findings)
    assert verdict is not None
    assert verdict.text.endswith(
        "With 2 together it still pays (1.20). A loss is predicted from 9 together."
    )


def test_more_than_the_tokens_allow_is_unreliable_and_never_advised() -> None:
    findings = found([RIGHT], FLAT, measured=Ratio(4.69, 4.0, 5.0, 3))
    (busy,) = findings.measured
    findings.measured = [replace(busy, expected=1.78)]
    # Plain decoding was as slow beside the other method, whose ratio alone could be right.
    calm = replace(busy, candidate=NGRAM, ratio=Ratio(1.4, 1.2, 1.6, 3), expected=1.9)
    findings.measured.append(calm)
    verdict = decide(findings)
    assert verdict is not None
    assert (verdict.kind, verdict.reason) == (NOT_SURE, BUSY)
    assert verdict.candidate == SUFFIX
    assert verdict.speculative_config == {"method": "none"}
    assert "unreliable" in verdict.text
    assert "chance" not in verdict.text
    assert set(findings.errors) <= {NGRAM.name}
    facts = json.loads(json.dumps(findings_json(findings, verdict)))
    assert [each["is_reliable"] for each in facts["measured"]] == [False, True]
    # A pass over more rows may be a little cheaper; so much more is no disturbance.
    findings.measured = [replace(busy, ratio=Ratio(2.1, 1.9, 2.3, 3), expected=1.78)]
    verdict = decide(findings)
    assert verdict is not None
    assert verdict.kind == USE


def test_predictions_above_the_tokens_are_not_advised_of_auto_either() -> None:
    findings = found([RIGHT], FLAT)
    findings.measured = []
    findings.predictions = [replace(findings.predictions[0], ratio=3.5)]
    findings.auto = predict_auto(AUTO, findings.predictions, findings.machine)
    assert findings.auto is not None
    findings.auto = replace(findings.auto, ratio=3.6)
    verdict = decide(findings)
    assert verdict is not None
    assert (verdict.kind, verdict.reason) == (NOT_SURE, BUSY)


def test_batches_that_cannot_be_right_are_not_told_of() -> None:
    findings = found([RIGHT], FLAT, measured=Ratio(1.4, 1.2, 1.6, 3))
    findings.batches = [AtBatch(2, 1.3, 5.0, is_reliable=False), AtBatch(4, 1.1, 0.93)]
    findings.batches_of = SUFFIX.name
    verdict = decide(findings)
    assert verdict is not None
    assert "5.00" not in verdict.text
    assert "With 4 requests together" in verdict.text


def test_acceptance_is_that_of_the_prompts_as_ratios_are() -> None:
    # 8 tokens in 1 pass, 8 in 8: two prompts with E 8 and 1 allow a ratio of 2.83, not 16 / 9.
    runs = Runs(later={0: (8, 1), 1: (8, 8), 2: (0, 0)})
    assert expected_of(runs, [0, 1, 2]) == pytest.approx(8**0.5)
    assert expected_of(runs, [2]) is None
    (prediction,) = found([RIGHT], FLAT).predictions
    assert prediction.most_ratio == pytest.approx(3)


def test_part_of_the_prompts_is_said_to_be_part() -> None:
    findings = found([RIGHT], FLAT, measured=Ratio(1.5, None, None, 1))
    findings.measured = [replace(findings.measured[0], places=(1,))]
    verdict = decide(findings)
    assert verdict is not None
    assert "on 1 of these 3 prompts" in verdict.text
    assert "is predicted for all 3" in verdict.text


def test_an_interval_that_holds_one_is_no_advice() -> None:
    verdict = decide(found([RIGHT], FLAT, measured=Ratio(1.2, 0.9, 1.6, 3)))
    assert verdict is not None
    assert verdict.kind == NOT_SURE
    assert verdict.speculative_config == {"method": "none"}
    assert "1.20 times plain decoding (0.90 to 1.60)" in verdict.text


def test_without_an_interval_the_prediction_has_to_agree() -> None:
    measured = Ratio(1.5, None, None, 2)
    verdict = decide(found([RIGHT], FLAT, measured=measured))
    assert verdict is not None
    assert verdict.kind == USE
    assert "give no interval; 3.00 is predicted" in verdict.text
    verdict = decide(found([WRONG], FLAT, measured=measured))
    assert verdict is not None
    assert verdict.kind == NOT_SURE


def test_acceptance_too_low() -> None:
    findings = found([WRONG], FLAT)
    verdict = decide(findings)
    assert verdict is not None
    assert (verdict.kind, verdict.reason) == (NONE, ACCEPTANCE)
    assert verdict.speculative_config == {"method": "none"}
    # A step takes 4.3 ms, a plain one too: the 1.00 tokens that it gives are just not enough.
    assert "alpha is 0.00, 1.00 tokens a step where 1.00 would be needed" in verdict.text
    needed = findings.predictions[0].needed_alpha
    assert needed is not None
    assert f"an alpha of {needed:.2f}" in verdict.text


def test_no_acceptance_would_be_enough() -> None:
    steepest = PassCurve(4.0, PassCosts((1, 5), (1.0, 6.0)))
    verdict = decide(found([WRONG], steepest))
    assert verdict is not None
    assert "not even accepting everything drafted would do (5.00 tokens)" in verdict.text


def test_verification_too_dear() -> None:
    verdict = decide(found([RIGHT], replace(STEEP, v=PassCosts((1, 5), (1.0, 3.4)))))
    assert verdict is not None
    assert (verdict.kind, verdict.reason) == (NONE, VERIFICATION)
    assert "3.00 tokens a step would be 3.00 times plain" in verdict.text
    assert "take 3.40 plain ones" in verdict.text
    assert "v(5) 3.40" in verdict.text


def test_batch_too_large() -> None:
    curve = PassCurve(4.0, PassCosts((1, 5, 8, 40), (1.0, 1.0, 1.2, 7.0)))
    verdict = decide(found([RIGHT], curve, batch=8))
    assert verdict is not None
    assert (verdict.kind, verdict.reason) == (NONE, BATCH)
    assert "with 8 requests together a pass has no room" in verdict.text
    assert "Alone suffix K=4 would give 3.07 times" in verdict.text


def test_auto_is_preferred_where_it_is_as_fast() -> None:
    findings = found([RIGHT], FLAT, measured=Ratio(1.41, 1.2, 1.6, 3))
    auto = Measured(AUTO, Ratio(1.40, 1.2, 1.6, 3), 100.0, 80.0, 2.0, 1, 3, 3)
    findings.measured.append(auto)
    verdict = decide(findings)
    assert verdict is not None
    assert verdict.candidate == AUTO
    assert verdict.text.endswith("In larger batches it drafts less by itself.")
    findings.measured[1] = replace(auto, ratio=Ratio(1.3, 1.2, 1.6, 3))
    verdict = decide(findings)
    assert verdict is not None
    assert verdict.candidate == SUFFIX


def test_after_an_interruption() -> None:
    findings = found([RIGHT], FLAT)
    findings.measured, findings.is_complete = [], False
    verdict = decide(findings)
    assert verdict is not None
    assert verdict.kind == USE
    assert not verdict.is_measured
    assert "is expected" in verdict.text
    assert "not measured" in verdict.text
    assert decide(Findings({}, 0.0, 1)) is None


def test_prediction_errors_are_reported() -> None:
    findings = found([RIGHT], FLAT, measured=Ratio(2.0, 1.8, 2.2, 3))
    assert findings.errors == {"suffix K=4": pytest.approx(0.5, abs=0.05)}
    findings.auto = predict_auto(AUTO, findings.predictions, findings.machine)
    findings.memory = {"suffix K=4": Memory(1, 2)}
    facts = json.loads(json.dumps(findings_json(findings, decide(findings))))
    assert facts["largest_prediction_error"] == pytest.approx(0.5, abs=0.05)
    assert facts["measured"][0]["prediction_error"] == facts["largest_prediction_error"]
    assert facts["predictions"][0]["needed_alpha"] < facts["predictions"][0]["alpha"] + 1
    assert facts["verdict"]["method"] == "suffix K=4"
    assert facts["machine"]["v"]["5"] == 1.0


def test_a_prediction_is_held_against_the_prompts_that_ran() -> None:
    findings = found([RIGHT], FLAT)
    (prediction,) = findings.predictions
    findings.predictions = [replace(prediction, by_prompt=[1.0, 2.0, 8.0])]
    findings.measured = [
        replace(findings.measured[0], ratio=Ratio(2.0, None, None, 2), places=(1, 2))
    ]
    assert findings.predicted_for(findings.measured[0]) == pytest.approx(4.0)
    assert findings.errors == {"suffix K=4": pytest.approx(1.0)}


def test_crossover_batch() -> None:
    machine = Machine(PassCurve(4.0, PassCosts((1, 16, 80), (1.0, 1.0, 9.0))), COST)
    score = Score(SUFFIX, [[FIRST, RIGHT]])
    # Three tokens for passes of 5 b rows: free up to 16, then an eighth of a pass for each row.
    ratios = [predicted_at(score, COST, machine, batch) for batch in range(1, 13)]
    first = next(batch for batch, ratio in enumerate(ratios, 1) if ratio < 1)
    assert predicted_crossover(score, COST, machine) == first
    assert 6 < first < 12
    flat = replace(machine, curve=PassCurve(4.0, PassCosts((1,), (1.0,))))
    assert predicted_crossover(score, COST, flat) is None


def test_the_best_of_each_method_are_measured_and_auto() -> None:
    candidates = candidates_of(parse_methods("auto,suffix:1-3,ngram:1-2"))
    findings = found([RIGHT], FLAT)
    base = findings.predictions[0]
    ratios = [1.1, 1.3, 1.2, 0.9, 0.8]
    findings.predictions = [
        replace(base, candidate=candidate, ratio=ratio)
        for candidate, ratio in zip(candidates[1:], ratios, strict=True)
    ]
    chosen = worth_measuring(candidates, findings, few=False)
    assert [c.name for c in chosen] == ["suffix K=2", "ngram K=1", "auto"]
