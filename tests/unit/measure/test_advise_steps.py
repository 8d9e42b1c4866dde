"""What a replay counts: steps, acceptance by position, and predictions computed by hand."""

from __future__ import annotations

import pytest

from outpace.errors import OptionError
from outpace.measure.advise.candidates import candidates_of, families_of, with_draft
from outpace.measure.advise.costs import (
    PassCurve,
    StepCost,
    TimedStep,
    between,
    costs_of,
    curve_of,
    trimmed_mean,
)
from outpace.measure.advise.predict import Machine, needed_acceptance, predict, predict_auto
from outpace.measure.advise.replay import Score
from outpace.measure.advise.steps import PositionScores, Step, summarise_steps
from outpace.measure.formulas import PassCosts
from outpace.measure.methods import parse_methods
from outpace.measure.passes import PassTimes


def positions(drafted: list[int], accepted: list[int], lengths: tuple[int, ...]) -> PositionScores:
    found = PositionScores(len(drafted))
    for num_drafted, count in zip(drafted, accepted, strict=True):
        found.add(num_drafted, {k: min(count, k) for k in lengths})
    return found


class TestSteps:
    def test_walk_from_accepted_to_accepted(self) -> None:
        # Position:            0  1  2  3  4  5
        scores = positions([0, 3, 3, 3, 3, 1], [0, 2, 1, 0, 1, 0], (1, 3))
        assert [step.num_tokens for step in scores.steps(3)] == [1, 3, 2]
        assert [step.num_tokens for step in scores.steps(1)] == [1, 2, 1, 2]
        assert [step.num_rows for step in scores.steps(1)] == [1, 2, 2, 2]

    def test_the_end_of_the_text_cuts_a_step(self) -> None:
        (step,) = positions([4], [1], (4,)).steps(4)
        # The one token left was accepted, and nothing is known of the position after it.
        assert step == Step(5, 4, 1, 1, goes_on=False)

    def test_a_rejection_counts_as_reached(self) -> None:
        steps = [Step(4, 3, 0, 1, True), Step(4, 3, 3, 4, False), Step(4, 3, 1, 2, True)]
        found = summarise_steps([[Step(1, 0, 0, 1, False), *steps]])
        assert found.expected == pytest.approx(7 / 3)
        assert found.reached == [3, 2, 1]
        assert found.conditional == pytest.approx([2 / 3, 1 / 2, 1])
        assert found.alpha == pytest.approx(4 / 6)
        assert found.num_rows == 4


class TestCandidates:
    @pytest.mark.parametrize("text", ["suffix:1-999", "suffix:65", "ngram:1-99999999999"])
    def test_more_draft_tokens_than_any_could_use_are_refused(self, text: str) -> None:
        with pytest.raises(OptionError, match="64"):
            candidates_of(parse_methods(text))
        assert candidates_of(parse_methods("suffix:64"))[0].k == 64

    def test_one_replay_tells_of_all_lengths_of_a_chain(self) -> None:
        configs = parse_methods("suffix:1-3,ngram:2,suffix:8:tree,suffix:4:tree,recycling:2-3,auto")
        families = families_of(candidates_of(configs))
        assert [(f.lengths, f.shares_replay) for f in families] == [
            ([1, 2, 3], True),
            ([2], True),
            ([4], False),
            ([8], False),
            ([2], False),
            ([3], False),
        ]

    def test_lossy_and_empty_ones_are_refused(self) -> None:
        with pytest.raises(OptionError, match="typical"):
            candidates_of([{"method": "suffix", "acceptance_method": "typical"}])
        with pytest.raises(OptionError, match="plain decoding"):
            candidates_of([{"method": "none"}])

    def test_a_draft_goes_to_the_methods_that_take_one(self) -> None:
        given = [{"method": "eagle3"}, {"method": "suffix"}, {"method": "eagle", "model": "own"}]
        assert [c.get("model") for c in with_draft(given, "mine")] == ["mine", None, "own"]


# v(n) = 1, 1.5, 2, ...: half a pass for each further row.
CURVE = PassCurve(4.0, PassCosts((1, 17), (1.0, 9.0)))
PLAIN = StepCost(draft_ms=0.0, plain_scale=0.5, scale=0.7, rest_ms=1.0)
MACHINE = Machine(CURVE, PLAIN)


class TestPrediction:
    def test_by_hand(self) -> None:
        (candidate,) = candidates_of(parse_methods("suffix:2"))
        answers = [
            [Step(1, 0, 0, 1, False), Step(3, 2, 2, 3, False), Step(3, 2, 0, 1, True)],
            [Step(1, 0, 0, 1, False), Step(3, 2, 1, 2, True)],
            [Step(1, 0, 0, 1, False)],  # one step: it says nothing of decoding
        ]
        cost = StepCost(draft_ms=0.5, plain_scale=9.0, scale=0.75, rest_ms=1.5)
        found = predict(Score(candidate, answers), cost, MACHINE)
        # A plain step: 0.5 * 4 + 1 = 3 ms. A step of three rows: 0.5 + 0.75 * 8 + 1.5 = 8 ms.
        assert found.by_prompt == [pytest.approx(4 * 3 / 16), pytest.approx(2 * 3 / 8), None]
        assert found.ratio == pytest.approx(0.75)
        assert found.tokens_per_s == pytest.approx(6 / 0.024)
        assert found.v == pytest.approx(6 / 2)
        assert found.c == pytest.approx(0.5 / 2 / 2)
        assert found.needed_expected == pytest.approx(8 / 3)
        # 1 + a + a^2 = 8/3
        assert found.needed_alpha == pytest.approx(((1 + 4 * 5 / 3) ** 0.5 - 1) / 2)

    def test_a_batch_shares_passes(self) -> None:
        (candidate,) = candidates_of(parse_methods("suffix:1"))
        answers = [[Step(1, 0, 0, 1, False), Step(2, 1, 1, 2, False)]]
        cost = StepCost(draft_ms=0.0, plain_scale=1.0, scale=1.0, rest_ms=0.0)
        machine = Machine(CURVE, cost, batch=4)
        found = predict(Score(candidate, answers), cost, machine)
        assert found.ratio == pytest.approx(2 * CURVE.ms(4) / CURVE.ms(8))

    def test_no_acceptance_is_enough_where_verifying_costs_more_than_all(self) -> None:
        assert needed_acceptance({2: 1}, 3.1) is None
        assert needed_acceptance({2: 1}, 3.0) == pytest.approx(1.0)
        assert needed_acceptance({0: 1, 1: 1}, 1.25) == pytest.approx(0.5)

    def test_auto_is_the_best_of_its_parts_on_each_prompt(self) -> None:
        (auto, suffix) = candidates_of(parse_methods("auto,suffix:2"))
        slow = [Step(1, 0, 0, 1, False), Step(3, 2, 0, 1, True)]
        fast = [Step(1, 0, 0, 1, False), Step(3, 2, 2, 3, False)]
        cost = StepCost(draft_ms=0.0, plain_scale=0.5, scale=0.5, rest_ms=1.0)
        part = predict(Score(suffix, [slow, fast]), cost, MACHINE)
        assert part.by_prompt == [pytest.approx(3 / 5), pytest.approx(9 / 5)]
        found = predict_auto(auto, [part], MACHINE)
        assert found is not None
        assert found.by_prompt == [1.0, pytest.approx(9 / 5)]
        assert found.ratio == pytest.approx((9 / 5) ** 0.5)
        assert predict_auto(auto, [], MACHINE) is None


class TestCosts:
    def test_scale_is_relative_to_passes_of_as_many_rows(self) -> None:
        steps = {
            2: [TimedStep(1, 1, 0.0, 0.002, 0.004), TimedStep(1, 3, 0.001, 0.004, 0.007)],
            4: [TimedStep(1, 5, 0.002, 0.012, 0.015)],
            6: [],
        }
        found = costs_of(steps, CURVE)
        assert sorted(found) == [2, 4]
        assert found[2].plain_scale == pytest.approx(0.5)
        assert found[2].scale == found[4].scale == pytest.approx((0.5 + 1.0) / 2)
        assert found[2].draft_ms == pytest.approx(0.5)
        assert found[2].rest_ms == pytest.approx(2.0)
        assert found[4].rest_ms == pytest.approx(1.0)

    def test_without_plain_steps_their_passes_are_like_the_others(self) -> None:
        found = costs_of({1: [TimedStep(2, 4, 0.0, 0.010, 0.012)]}, CURVE)
        assert found[1].plain_scale == found[1].scale == pytest.approx(1.0)

    def test_outliers_are_left_out(self) -> None:
        assert trimmed_mean([1.0] * 18 + [100.0, 0.0]) == pytest.approx(1.0)

    def test_lengths_between_those_measured(self) -> None:
        costs = {2: StepCost(1.0, 1.0, 1.0, 2.0), 6: StepCost(3.0, 1.0, 1.0, 4.0)}
        assert between(costs, 4).draft_ms == pytest.approx(2.0)
        assert between(costs, 3).rest_ms == pytest.approx(2.5)
        assert between(costs, 1) == costs[2]
        assert between(costs, 9) == costs[6]

    def test_curve_of_medians(self) -> None:
        times = [
            PassTimes("x", 10, 1, [0.002, 0.002, 0.9]),
            PassTimes("x", 10, 5, [0.004, 0.004, 0.004]),
            PassTimes("x", 10, 5, [0.005, 0.005, 0.005], shape="tree"),
        ]
        found = curve_of(times)
        assert found.ms(1) == pytest.approx(2.0)
        assert found.ms(3) == pytest.approx(3.0)
        assert found.ms(5, is_tree=True) == pytest.approx(5.0)
