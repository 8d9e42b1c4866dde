"""What steps cost, told from noisy times: the law that made them is found again."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from outpace.control.costs import CostTable, DraftCosts, PassShape, StepCosts

KNOTS = ((1, 4e-3), (2, 4.4e-3), (4, 5e-3), (8, 7e-3), (16, 10e-3), (17, 16e-3), (32, 20e-3))
TABLE = CostTable(KNOTS, per_seq_s=1e-4, per_token_s=1e-6, per_token_row_s=2e-7)
Law = Callable[[PassShape], float]


def noisy(rng: random.Random, seconds: float) -> float:
    """5 % of noise, and in every tenth step the machine is taken away for a while."""
    slow = rng.uniform(2.0, 10.0) if rng.random() < 0.1 else 1.0
    return seconds * slow * math.exp(rng.gauss(0.0, 0.05))


def run(
    costs: StepCosts, law: Law, steps: int, *, seed: int = 0, regime: str = "greedy", rest: Law
) -> list[float]:
    """Let costs see that many steps of 1 to 9 rows; the errors of what they predicted, relative to
    what the step would have taken without noise."""
    rng, errors = random.Random(seed), []
    for step in range(steps):
        shape = PassShape(1, rng.choice((1, 1, 2, 3, 5, 9)), 100 + step)
        target_s, rest_s = law(shape), rest(shape)
        predicted = costs.curve(1, shape.context, shape.num_rows, regime)[-1]
        errors.append(abs(predicted / (target_s + rest_s) - 1.0))
        costs.observe(shape, regime, noisy(rng, target_s), noisy(rng, rest_s))
    return errors


def usual_rest(shape: PassShape) -> float:
    return 0.3e-3 + 0.04e-3 * shape.num_rows


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


class TestTable:
    def test_measured_row_counts_are_kept(self) -> None:
        assert [TABLE.pass_s(rows) for rows, _ in KNOTS] == [s for _, s in KNOTS]

    def test_between_them_it_is_linear(self) -> None:
        assert TABLE.pass_s(6) == pytest.approx(6e-3)
        assert TABLE.pass_s(12) == pytest.approx(8.5e-3)

    def test_beyond_them_the_upper_half_goes_on(self) -> None:
        slope = (20e-3 - 10e-3) / 16
        assert TABLE.pass_s(33) == pytest.approx(20e-3 + slope)
        assert TABLE.pass_s(128) == pytest.approx(20e-3 + 96 * slope)

    @pytest.mark.parametrize(
        ("knots", "rows", "seconds"),
        [(((1, 2.0),), 9, 2.0), (((1, 2.0), (8, 9.0)), 10, 11.0), (((2, 1.0), (3, 2.0)), 1, 1.0)],
    )
    def test_few_knots_are_enough(
        self, knots: tuple[tuple[int, float], ...], rows: int, seconds: float
    ) -> None:
        assert CostTable(knots).pass_s(rows) == pytest.approx(seconds)

    def test_sequences_and_context_add_to_it(self) -> None:
        shape = PassShape(num_seqs=2, num_rows=8, context=1000)
        assert TABLE.seconds(shape) == pytest.approx(7e-3 + 1e-4 + 1e-3 + 4 * 2e-4)

    @pytest.mark.parametrize(
        "values",
        [
            {"knots": ()},
            {"knots": ((0, 1.0), (1, 2.0))},
            {"knots": ((1, 1.0), (1, 2.0))},
            {"knots": ((1, 2.0), (2, 1.0))},
            {"knots": ((1, 0.0),)},
            {"knots": ((1, math.nan),)},
            {"knots": ((1, math.inf),)},
            {"knots": ((1, 1.0),), "per_seq_s": -1.0},
            {"knots": ((1, 1.0),), "per_token_s": math.nan},
        ],
    )
    def test_nonsense_is_refused(self, values: dict[str, object]) -> None:
        with pytest.raises(ValueError, match="got"):
            CostTable(**values)  # type: ignore[arg-type]


class TestCurve:
    def test_it_is_the_table_before_any_step(self) -> None:
        costs = StepCosts(TABLE)
        shapes = [PassShape(3, rows, 500) for rows in range(3, 41)]
        curve = costs.curve(3, 500, 40, "greedy")
        assert curve == pytest.approx(
            [TABLE.seconds(s) + costs.rest_s(s, "greedy") for s in shapes]
        )
        assert costs.plain_s == pytest.approx(4e-3)

    def test_it_is_what_target_and_rest_add_up_to(self) -> None:
        costs = StepCosts(TABLE)
        run(costs, TABLE.seconds, 50, rest=usual_rest)
        shape = PassShape(2, 7, 300)
        both = costs.target_s(shape) + costs.rest_s(shape, "greedy")
        assert costs.curve(2, 300, 7, "greedy")[-1] == pytest.approx(both)

    def test_it_never_descends(self) -> None:
        costs = StepCosts(TABLE)
        for _ in range(200):  # eight rows look cheaper than one
            costs.observe(PassShape(1, 1, 10), "greedy", 9e-3, 3e-3)
            costs.observe(PassShape(1, 8, 10), "greedy", 3e-3, 1e-3)
        assert costs.target_s(PassShape(1, 8, 10)) < costs.target_s(PassShape(1, 1, 10))
        curve = costs.curve(1, 10, 60, "greedy")
        assert curve == sorted(curve)

    def test_one_row_alone_is_enough(self) -> None:
        assert len(StepCosts(TABLE).curve(1, 0, 1, "greedy")) == 1


class TestLearning:
    def test_noise_leaves_the_prediction_close(self) -> None:
        errors = run(StepCosts(TABLE), TABLE.seconds, 400, rest=usual_rest)
        assert mean(errors[30:]) < 0.06
        assert max(errors[30:]) < 0.25

    def test_a_table_that_is_wrong_as_a_whole_is_put_right_at_once(self) -> None:
        errors = run(StepCosts(TABLE), lambda s: 3.0 * TABLE.seconds(s), 100, rest=usual_rest)
        assert errors[0] > 0.5
        assert mean(errors[10:]) < 0.1

    def test_a_table_of_the_wrong_shape_is_corrected(self) -> None:
        law = CostTable(tuple((rows, 4e-3 + 2e-3 * rows) for rows, _ in KNOTS)).seconds
        errors = run(StepCosts(TABLE), law, 400, rest=usual_rest)
        assert mean(errors[:30]) > 0.15
        assert mean(errors[200:]) < 0.1

    def test_a_slow_phase_is_followed_within_twenty_steps(self) -> None:
        costs = StepCosts(TABLE)
        run(costs, TABLE.seconds, 200, rest=usual_rest)
        slow = run(
            costs,
            lambda s: 2.0 * TABLE.seconds(s),
            60,
            seed=1,
            rest=lambda s: 2.0 * usual_rest(s),
        )
        assert slow[0] > 0.4
        assert mean(slow[20:]) < 0.1
        assert mean(run(costs, TABLE.seconds, 60, seed=2, rest=usual_rest)[20:]) < 0.1

    def test_a_few_outliers_change_next_to_nothing(self) -> None:
        costs = StepCosts(TABLE)
        run(costs, TABLE.seconds, 200, rest=usual_rest)
        before = costs.curve(1, 300, 9, "greedy")
        for _ in range(2):
            costs.observe(PassShape(1, 5, 300), "greedy", 50e-3, 5e-3)
        assert costs.curve(1, 300, 9, "greedy") == pytest.approx(before, rel=0.06)

    @pytest.mark.parametrize("rows", [[1] * 200, [1, 1, 1, 4, 9] * 40])
    @pytest.mark.parametrize(("fixed", "per_row"), [(2e-4, 1.5e-3), (1e-3, 0.0), (5e-5, 2e-4)])
    def test_the_rest_is_learned_per_row(
        self, rows: list[int], fixed: float, per_row: float
    ) -> None:
        costs, rng = StepCosts(TABLE), random.Random(0)
        for num_rows in rows:
            shape = PassShape(1, num_rows, 50)
            costs.observe(shape, "seeded", 4e-3, noisy(rng, fixed + per_row * num_rows))
        for num_rows in set(rows):
            rest_s = costs.rest_s(PassShape(1, num_rows, 50), "seeded")
            assert rest_s == pytest.approx(fixed + per_row * num_rows, rel=0.2)

    def test_a_rest_that_changes_is_learned_anew(self) -> None:
        costs = StepCosts(TABLE)
        for per_row, steps in ((0.0, 500), (1e-3, 150)):
            for step in range(steps):
                rows = 1 + 8 * (step % 2)
                costs.observe(PassShape(1, rows, 50), "greedy", 4e-3, 3e-4 + per_row * rows)
        for rows in (1, 9):
            rest_s = costs.rest_s(PassShape(1, rows, 50), "greedy")
            assert rest_s == pytest.approx(3e-4 + 1e-3 * rows, rel=0.15)

    def test_more_rows_never_make_the_rest_shorter(self) -> None:
        costs = StepCosts(TABLE)
        for step in range(100):
            rows = 1 + 8 * (step % 2)
            costs.observe(PassShape(1, rows, 50), "greedy", 4e-3, 3e-3 / rows)
        rests = [costs.rest_s(PassShape(1, rows, 50), "greedy") for rows in (1, 9, 500)]
        assert 0 < rests[0] <= rests[1] <= rests[2]

    def test_what_one_size_takes_tells_of_all_others(self) -> None:
        costs = StepCosts(TABLE)
        for _ in range(100):
            costs.observe(PassShape(1, 1, 0), "greedy", 3 * 4e-3, 3e-4)
        assert costs.target_s(PassShape(1, 16, 0)) == pytest.approx(3 * 10e-3, rel=0.02)

    def test_regimes_are_told_apart(self) -> None:
        costs, shape = StepCosts(TABLE), PassShape(1, 5, 50)
        for _ in range(50):
            costs.observe(shape, "greedy", 5e-3, 0.3e-3)
            costs.observe(shape, "seeded", 5e-3, 8e-3)
        assert costs.rest_s(shape, "greedy") == pytest.approx(0.3e-3, rel=0.05)
        assert costs.rest_s(shape, "seeded") == pytest.approx(8e-3, rel=0.05)

    def test_times_of_zero_do_no_harm(self) -> None:
        costs = StepCosts(TABLE)
        for _ in range(50):
            costs.observe(PassShape(1, 3, 0), "greedy", 0.0, 0.0)
        assert all(0 <= s < math.inf for s in costs.curve(1, 0, 20, "greedy"))
        run(costs, TABLE.seconds, 60, rest=usual_rest)
        assert costs.target_s(PassShape(1, 5, 100)) == pytest.approx(5.5e-3, rel=0.2)


class TestDrafting:
    def test_unseen_drafters_get_the_benefit_of_the_doubt(self) -> None:
        costs = DraftCosts(5e-3)
        assert [costs.predict(1, levels) for levels in (0, 1, 4)] == [0.0, 5e-4, 2e-3]

    @pytest.mark.parametrize(("fixed", "per_level"), [(1e-3, 4e-4), (0.0, 2e-3), (3e-4, 1e-4)])
    def test_fixed_costs_and_levels_are_told_apart(self, fixed: float, per_level: float) -> None:
        costs, rng = DraftCosts(5e-3), random.Random(0)
        for _ in range(200):
            levels = rng.randint(1, 6)
            costs.observe(1, levels, [], noisy(rng, fixed + per_level * levels))
        for levels in range(1, 7):
            expected = fixed + per_level * levels
            assert costs.predict(1, levels) == pytest.approx(expected, rel=0.15)

    def test_the_first_call_is_believed_at_once_and_outvoted_by_the_second(self) -> None:
        costs = DraftCosts(5e-3)
        costs.observe(1, 2, [], 30e-3)  # a first call that made its buffers
        assert costs.predict(1, 2) > 15e-3
        costs.observe(1, 2, [], 1e-3)
        assert costs.predict(1, 2) < 3e-3

    def test_batches_are_told_apart(self) -> None:
        costs = DraftCosts(5e-3)
        for _ in range(60):
            costs.observe(1, 3, [], 1e-3)
            costs.observe(8, 3, [], 6e-3)
        assert costs.predict(1, 3) == pytest.approx(1e-3, rel=0.1)
        assert costs.predict(8, 3) == pytest.approx(6e-3, rel=0.1)
        # Sizes not seen are taken for the nearest that was.
        assert costs.predict(2, 3) == costs.predict(1, 3)
        assert costs.predict(30, 3) == costs.predict(8, 3)

    def test_a_slow_phase_is_followed(self) -> None:
        costs = DraftCosts(5e-3)
        for seconds, steps in ((1e-3, 100), (2e-3, 20)):
            for _ in range(steps):
                costs.observe(1, 3, [], seconds)
        assert costs.predict(1, 3) == pytest.approx(2e-3, rel=0.1)
