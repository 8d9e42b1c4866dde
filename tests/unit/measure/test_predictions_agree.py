"""One speed-up condition, three places that compute it: what advise predicts before anything runs,
what bench predicts beside what it measured, and the formula."""

from __future__ import annotations

import pytest

from outpace.measure.advise.candidates import candidates_of
from outpace.measure.advise.costs import PassCurve, StepCost
from outpace.measure.advise.predict import Machine, predict
from outpace.measure.advise.replay import Score
from outpace.measure.advise.steps import Step
from outpace.measure.bench.costs import StepCosts, predicted_ratio
from outpace.measure.formulas import PassCosts, speedup
from outpace.measure.methods import parse_methods

K, ROWS = 3, 4
PLAIN_MS, DRAFT_MS = 10.0, 1.5
V = PassCosts((1, 2, ROWS), (1.0, 1.2, 1.8))
ACCEPTED = (0, 3, 1, 2, 0, 3)
EXPECTED = sum(accepted + 1 for accepted in ACCEPTED) / len(ACCEPTED)


def advised(rest_ms: float) -> float:
    """By replay: drafts of K tokens of which so many were accepted, after a first plain step."""
    (candidate,) = candidates_of(parse_methods(f"suffix:{K}"))
    drafting = [
        Step(ROWS, K, accepted, accepted + 1, goes_on=accepted < K) for accepted in ACCEPTED
    ]
    score = Score(candidate, [[Step(1, 0, 0, 1, goes_on=False), *drafting]])
    plain = StepCost(draft_ms=0.0, plain_scale=1.0, scale=1.0, rest_ms=rest_ms)
    cost = StepCost(draft_ms=DRAFT_MS, plain_scale=1.0, scale=1.0, rest_ms=rest_ms)
    return predict(score, cost, Machine(PassCurve(PLAIN_MS, V, 1.0), plain)).ratio


def benched(rest_ms: float) -> float:
    """From the mean step of a run, the pass itself not looked at."""
    rows = (ROWS,) * len(ACCEPTED)
    mine = StepCosts(ROWS, DRAFT_MS / 1e3, 99.0, rest_ms / 1e3, EXPECTED, DRAFT_MS / 1e3 / K, rows)
    plain = StepCosts(1, 0.0, PLAIN_MS / 1e3, rest_ms / 1e3, 1.0, None, (1, 1))
    return predicted_ratio(mine, plain, V)


@pytest.mark.parametrize("rest_ms", [0.0, 0.7])
def test_advise_and_bench_predict_the_same(rest_ms: float) -> None:
    assert advised(rest_ms) == pytest.approx(benched(rest_ms))


def test_both_are_the_formula_where_nothing_else_costs_time() -> None:
    c = DRAFT_MS / K / PLAIN_MS
    assert advised(0.0) == pytest.approx(speedup(EXPECTED, K, c, V))
    assert advised(0.7) != pytest.approx(speedup(EXPECTED, K, c, V))
