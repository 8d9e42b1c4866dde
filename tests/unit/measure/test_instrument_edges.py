"""Verdicts at the edges: far tails, the line of top_p, short answers, candidates that may gain."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import pytest
from audit_cases import MODEL, Said, subject
from scipy import stats
from tiny import tiny_model

from outpace.errors import OptionError
from outpace.measure.advise import run as advise_run
from outpace.measure.advise.candidates import candidates_of
from outpace.measure.advise.costs import PassCurve, StepCost
from outpace.measure.advise.findings import Findings, Measured
from outpace.measure.advise.options import AdviseOptions
from outpace.measure.advise.predict import Machine, predict, predict_auto
from outpace.measure.advise.replay import Replay, Score
from outpace.measure.advise.steps import Step
from outpace.measure.advise.verdict import NOT_SURE, USE, decide
from outpace.measure.audit.run import AuditOptions
from outpace.measure.audit.self_test import run_self_test
from outpace.measure.audit.text_law import next_token
from outpace.measure.formulas import PassCosts
from outpace.measure.methods import parse_methods
from outpace.measure.prompts import BenchPrompt
from outpace.measure.statistics import Ratio, chi_square
from outpace.measure.ties import request_sequence
from outpace.params import SamplingParams
from outpace.types import Verdict
from outpace.verification.judge import verify


@pytest.mark.parametrize("count", [14, 15, 16])
def test_small_p_values_are_those_of_skewed_laws_too(count: int) -> None:
    """Beside the exact tail, which chi-square's distribution puts many times too low."""
    law, num = np.array([0.979, 0.021]), 256
    counts = np.array([num - count, count])
    found = chi_square(counts, law, simulate=True)
    exact = float(stats.binom.sf(count - 1, num, law[1]))
    assert 0.7 < found.p_value / exact < 1.4
    assert chi_square(counts, law).p_value < 0.5 * exact


def test_behind_the_line_of_top_p() -> None:
    """Where rounding may move the mass before it, the next token may come however rare it is."""
    logits = np.full(MODEL.decoder.num_logits, -20.0)
    logits[:4] = np.log([0.5, 0.4, 0.09, 0.01])
    coarse = tiny_model(dtype="bfloat16")
    for top_p, edge in ((0.895, {2}), (0.8, set())):
        seq = request_sequence(coarse, [3, 4], SamplingParams(temperature=1.0, top_p=top_p), 2)
        after = next_token(coarse, logits, seq)
        assert after.edge == edge
        assert after.forbids(3)
        # In float64 the line is where it is.
        assert next_token(MODEL, logits, seq).forbids(2)


@pytest.mark.parametrize("minutes", [math.inf, math.nan, 0.0, -1.0])
def test_minutes_are_a_number(minutes: float) -> None:
    with pytest.raises(OptionError, match="minutes must be a number above 0"):
        AuditOptions(minutes=minutes)


def test_a_level_that_is_none_is_refused_before_anything_is_planted() -> None:
    said = Said()
    with pytest.raises(OptionError, match="level must lie between 0 and 1, got nan"):
        run_self_test(subject({"method": "suffix"}), said, samples=64, level=math.nan)
    assert not said.stages


AUTO, SUFFIX, NGRAM = candidates_of(parse_methods("auto,suffix:4,ngram:4"))
COST = StepCost(draft_ms=0.1, plain_scale=1.0, scale=1.0, rest_ms=0.2)
MACHINE = Machine(PassCurve(4.0, PassCosts((1, 5), (1.0, 1.0))), COST)
FIRST, RIGHT = Step(5, 4, 3, 4, goes_on=True), Step(5, 4, 2, 3, goes_on=True)


def test_auto_on_an_answer_that_was_over_after_one_step() -> None:
    part = predict(Score(SUFFIX, [[FIRST], [FIRST, RIGHT]]), COST, MACHINE)
    assert part.by_prompt[0] is None
    found = predict_auto(AUTO, [part], MACHINE)
    assert found is not None
    assert found.by_prompt == [1.0, pytest.approx(part.ratio)]


def test_who_gains_for_sure_comes_before_who_may() -> None:
    findings = Findings({"name": "tiny"}, temperature=0.0, batch=1, is_complete=True)
    findings.machine = MACHINE
    unsure = Measured(AUTO, Ratio(1.45, 0.9, 2.3, 3), 100.0, 80.0, 2.0, 1, 3, 3, (0, 1, 2))
    sure = Measured(SUFFIX, Ratio(1.4, 1.3, 1.5, 3), 100.0, 80.0, 2.0, 1, 3, 3, (0, 1, 2))
    findings.measured = [unsure, sure]
    verdict = decide(findings)
    assert verdict is not None
    assert (verdict.kind, verdict.candidate) == (USE, SUFFIX)
    findings.measured = [unsure]
    verdict = decide(findings)
    assert verdict is not None
    assert (verdict.kind, dict(verdict.speculative_config)) == (NOT_SURE, {"method": "none"})


def test_more_than_tokens_a_step_allow_is_no_advice() -> None:
    """Plain steps that were timed while something disturbed them, and nothing measured."""
    findings = Findings({"name": "tiny"}, temperature=0.0, batch=1)
    slow = Machine(MACHINE.curve, StepCost(0.0, 3.0, 1.0, 0.2))
    findings.machine = slow
    findings.predictions = [predict(Score(SUFFIX, [[FIRST, RIGHT]]), COST, slow)]
    assert findings.predictions[0].ratio > 1.05 * 3
    verdict = decide(findings)
    assert verdict is not None
    assert (verdict.kind, dict(verdict.speculative_config)) == (NOT_SURE, {"method": "none"})
    findings.machine = MACHINE
    findings.predictions = [predict(Score(SUFFIX, [[FIRST, RIGHT]]), COST, MACHINE)]
    verdict = decide(findings)
    assert verdict is not None
    assert verdict.kind == USE


def test_a_batch_that_the_model_cannot_decode(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model()
    monkeypatch.setattr(type(model.decoder), "max_rows", 1)
    options = AdviseOptions(batch=2, minutes=0.01, quick=True)
    findings = Findings({"name": "tiny"}, temperature=0.0, batch=2)
    prompt = BenchPrompt("a", "a", (5, 6, 7, 8))
    with pytest.raises(OptionError, match="at most 1 at a time"):
        advise_run.advise(model, [prompt], options, lambda *_: None, findings)


@pytest.mark.usefixtures("unchecked_shapes")
def test_a_disagreement_counts_once_for_all_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    """One replay tells of three lengths; what it could not say again is not three times as much."""
    asked: list[int] = []

    def wrong(scores: Any, seqs: Any, drafts: Any, rng: Any, lossy: Any = None) -> list[Verdict]:
        verdicts = verify(scores, seqs, drafts, rng, lossy)
        if not asked and seqs[0].num_output == 5:
            asked.append(1)
            verdicts[0] = Verdict((verdicts[0].token_ids[0] ^ 1,))
        return verdicts

    monkeypatch.setattr(advise_run, "Replay", functools.partial(Replay, judge=wrong))
    findings = Findings({"name": "tiny"}, temperature=0.0, batch=1)
    configs = tuple(parse_methods("suffix:1-3"))
    options = AdviseOptions(configs=configs, max_tokens=16, minutes=0.01, quick=True)
    prompt = BenchPrompt("a", "a", (5, 6, 7, 8))
    advise_run.advise(
        tiny_model(seed=1, max_len=128, scale=0.6), [prompt], options, lambda *_: None, findings
    )
    assert len(asked) == 1
    assert len(findings.predictions) == 3
    assert [note for note in findings.notes if "In 1 replayed steps" in note]
