"""Plans against every plan there is, and the long-run rate against every fixed length."""

from __future__ import annotations

import random
from collections.abc import Callable
from collections.abc import Sequence as List
from itertools import accumulate, combinations, product

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from outpace.control.acceptance import Acceptance
from outpace.control.goodput import Plan, Rate, Ways, best_nodes, plan
from outpace.control.probing import Probing

STEPS = st.floats(0.0, 0.5)


@st.composite
def ladders(draw: st.DrawFn, most: int) -> list[float]:
    conditional = draw(st.lists(st.floats(0.05, 1.0), max_size=most))
    return list(accumulate(conditional, lambda a, b: a * b))


@st.composite
def problems(
    draw: st.DrawFn, num_seqs: int, slopes: str = "any", ways: str = "both"
) -> tuple[list[Ways], list[float], list[float], float]:
    options = []
    for _ in range(num_seqs):
        has = draw(st.sampled_from(["lookup", "trained"])) if ways == "either" else ways
        lookup = draw(ladders(4)) if has != "trained" else []
        options.append(Ways(lookup, draw(ladders(3)) if has != "lookup" else []))
    num_rows = draw(st.integers(0, 7 * num_seqs))
    if slopes == "straight":
        num_rows, rises = 7 * num_seqs, [draw(STEPS)] * (7 * num_seqs)
    else:
        rises = [draw(STEPS) for _ in range(num_rows)]
        rises = sorted(rises) if slopes == "convex" else rises
    curve = list(accumulate(rises, initial=1.0))
    trained_s = list(accumulate(draw(st.lists(STEPS, max_size=3)), initial=0.0))
    return options, curve, trained_s, draw(st.floats(0.3, 3.0))


def value(found: Plan, rate: float) -> float:
    return found.num_tokens - rate * found.seconds


def every_plan(options: list[Ways], curve: list[float], trained_s: list[float]) -> list[Plan]:
    choices = [
        [("none", 0)]
        + [("lookup", n + 1) for n in range(len(ways.lookup))]
        + [("trained", n + 1) for n in range(min(len(ways.trained), len(trained_s) - 1))]
        for ways in options
    ]
    return [
        accounted(list(chosen), options, curve, trained_s)
        for chosen in product(*choices)
        if sum(length for _, length in chosen) < len(curve)
    ]


def accounted(
    choices: list[tuple[str, int]],
    options: list[Ways],
    curve: list[float],
    trained_s: list[float],
) -> Plan:
    """A plan with these choices and what they are to be expected to bring and take."""
    tokens = float(len(options))
    for (source, length), ways in zip(choices, options, strict=True):
        if source != "none":
            tokens += sum((ways.lookup if source == "lookup" else ways.trained)[:length])
    levels = max((length for source, length in choices if source == "trained"), default=0)
    seconds = curve[sum(length for _, length in choices)] + trained_s[levels]
    return Plan(choices, tokens, seconds)


@settings(max_examples=examples(40))
@given(st.integers(1, 4).flatmap(problems))
def test_a_plan_is_what_it_says_and_never_worse_than_plain(
    problem: tuple[list[Ways], list[float], list[float], float],
) -> None:
    options, curve, trained_s, rate = problem
    found = plan(options, curve, trained_s, rate)
    recount = accounted(found.choices, options, curve, trained_s)
    assert found.num_tokens == pytest.approx(recount.num_tokens)
    assert found.seconds == pytest.approx(recount.seconds)
    for (source, length), ways in zip(found.choices, options, strict=True):
        most = {"none": 0, "lookup": len(ways.lookup), "trained": len(ways.trained)}[source]
        assert length <= most
        assert (length > 0) == (source != "none")
    assert value(found, rate) >= len(options) - rate * curve[0] - 1e-9


@settings(max_examples=examples(40))
@given(problems(1))
def test_one_request_is_planned_as_well_as_can_be(
    problem: tuple[list[Ways], list[float], list[float], float],
) -> None:
    *given_, rate = problem
    best = max(value(other, rate) for other in every_plan(*given_))
    assert value(plan(*given_, rate), rate) == pytest.approx(best)


@pytest.mark.parametrize("ways", ["lookup", "trained", "either"])
@settings(max_examples=examples(15))
@given(data=st.data())
def test_where_each_request_has_one_drafter_the_lengths_are_as_good_as_can_be(
    ways: str, data: st.DataObject
) -> None:
    """Whatever the shape of the curve: only which drafter a request uses is a heuristic."""
    *given_, rate = data.draw(st.integers(2, 3).flatmap(lambda n: problems(n, ways=ways)))
    best = max(value(other, rate) for other in every_plan(*given_))
    assert value(plan(*given_, rate), rate) == pytest.approx(best)


def test_requests_that_pay_only_together_are_drafted_for_together() -> None:
    """The first row is dear and the second free: neither draft pays for it alone."""
    options, curve = [Ways([0.9], []), Ways([], [0.3])], [1.0, 2.0, 2.0, 2.1]
    found = plan(options, curve, [0.0, 0.1], 1.0)
    assert found.choices == [("lookup", 1), ("trained", 1)]


@settings(max_examples=examples(20))
@given(st.integers(2, 3).flatmap(lambda n: problems(n, slopes="straight")))
def test_with_a_straight_curve_any_batch_is_planned_as_well_as_can_be(
    problem: tuple[list[Ways], list[float], list[float], float],
) -> None:
    *given_, rate = problem
    best = max(value(other, rate) for other in every_plan(*given_))
    assert value(plan(*given_, rate), rate) == pytest.approx(best)


def random_problem(
    rng: random.Random, num_seqs: int
) -> tuple[list[Ways], list[float], list[float], float]:
    """With a convex curve, as costs are where rows fill up the machine."""

    def ladder(length: int) -> list[float]:
        return list(accumulate((rng.uniform(0.2, 1) for _ in range(length)), lambda a, b: a * b))

    options = [Ways(ladder(rng.randint(0, 4)), ladder(rng.randint(0, 3))) for _ in range(num_seqs)]
    rises = sorted(rng.uniform(0, 0.5) for _ in range(rng.choice([3, 7 * num_seqs])))
    trained_s = list(accumulate((rng.uniform(0, 0.3) for _ in range(3)), initial=0.0))
    return options, list(accumulate(rises, initial=1.0)), trained_s, rng.uniform(0.5, 2.5)


@pytest.mark.parametrize("num_seqs", [2, 3])
def test_with_a_convex_curve_hardly_anything_is_lost(num_seqs: int) -> None:
    """Choosing between two drafters at a price can miss the best plan; it does so rarely."""
    rng = random.Random(num_seqs)
    losses = []
    for _ in range(200):
        *given_, rate = random_problem(rng, num_seqs)
        best = max(value(other, rate) for other in every_plan(*given_))
        losses.append(best - value(plan(*given_, rate), rate))
    assert sum(loss > 1e-9 for loss in losses) <= 6
    assert sum(losses) / len(losses) < 0.002
    assert max(losses) < 0.2


def test_a_cap_on_rows_goes_to_the_best_tokens_of_the_batch() -> None:
    options = [Ways([0.9, 0.8, 0.7], []), Ways([0.5, 0.2], []), Ways([0.85], [])]
    assert plan(options, [1.0, 1.0, 1.0, 1.0], [0.0], 1.0).choices == [
        ("lookup", 2),
        ("none", 0),
        ("lookup", 1),
    ]


def test_levels_of_the_trained_drafter_are_paid_once_for_all() -> None:
    curve, trained_s = [1.0] * 9, [0.0, 0.8, 1.6]
    one = Ways([], [0.6, 0.5])
    assert plan([one], curve, trained_s, 1.0).choices == [("none", 0)]
    assert plan([one] * 2, curve, trained_s, 1.0).choices == [("trained", 2)] * 2
    # Who gains more from the lookup drafter keeps to it.
    both = [one, one, Ways([0.9, 0.9], [0.6, 0.5])]
    assert plan(both, curve, trained_s, 1.0).choices[2] == ("lookup", 2)


@pytest.mark.parametrize("num_seqs", [1, 2])
def test_of_equal_plans_the_one_with_fewer_rows(num_seqs: int) -> None:
    """Each token of the drafts brings what its row costs: none is worth drafting."""
    options = [Ways([0.5, 0.5], [0.5, 0.5])] * num_seqs
    curve = [1.0 + 0.5 * n for n in range(5)]
    for rate, expected in ((1.0, ("none", 0)), (0.75, ("lookup", 2))):
        assert plan(options, curve, [0.0, 0.0, 0.0], rate).choices[0] == expected


def test_equal_tokens_are_dealt_out_from_the_first_request_on() -> None:
    options = [Ways([0.5, 0.5], [])] * 3
    assert plan(options, [1.0] * 4, [0.0], 1.0).choices == [
        ("lookup", 2),
        ("lookup", 1),
        ("none", 0),
    ]


@pytest.mark.parametrize("num_seqs", [1, 3])
def test_with_nothing_to_choose_it_is_plain(num_seqs: int) -> None:
    plain = Plan([("none", 0)] * num_seqs, num_seqs, 2.0)
    assert plan([Ways([], [])] * num_seqs, [2.0, 2.0], [0.0, 0.1], 1.0) == plain
    assert plan([Ways([0.9], [0.9])] * num_seqs, [2.0], [0.0, 0.1], 1.0) == plain
    assert plan([Ways([], [0.9])] * num_seqs, [2.0, 2.0], [0.0], 1.0) == plain


@st.composite
def forests(draw: st.DrawFn) -> tuple[list[list[float]], list[list[int]], list[int], list[float]]:
    """Worths and parents of two small trees, most nodes of each, and a curve for some of them."""
    worths, parents = [], []
    for _ in range(2):
        size = draw(st.integers(0, 4))
        own = [draw(st.integers(-1, node - 1)) for node in range(size)]
        values: list[float] = []
        for parent in own:
            share = draw(st.sampled_from([1.0, 0.7, 0.4, 0.1]))
            values.append(share * (values[parent] if parent >= 0 else 1.0))
        worths.append(values)
        parents.append(own)
    limits = [draw(st.integers(0, 4)) for _ in range(2)]
    rises = draw(st.lists(STEPS, max_size=8))
    return worths, parents, limits, list(accumulate(rises, initial=1.0))


@given(forests())
@settings(max_examples=examples(100))
def test_the_nodes_kept_are_the_best_there_are_and_have_their_parents(
    case: tuple[list[list[float]], list[list[int]], list[int], list[float]],
) -> None:
    worths, parents, limits, curve = case
    kept = best_nodes(worths, limits, curve, 1.0)

    def is_closed(nodes: tuple[int, ...], tree: int) -> bool:
        return all(parents[tree][node] in (-1, *nodes) for node in nodes)

    def worth(chosen: List[List[int]]) -> float:
        gained = sum(worths[tree][node] for tree, own in enumerate(chosen) for node in own)
        return gained - curve[sum(map(len, chosen))]

    choices = [
        [
            nodes
            for size in range(limits[tree] + 1)
            for nodes in combinations(range(len(worths[tree])), size)
            if is_closed(nodes, tree)
        ]
        for tree in range(2)
    ]
    assert all(tuple(nodes) in choices[tree] for tree, nodes in enumerate(kept))
    fitting = [each for each in product(*choices) if sum(map(len, each)) < len(curve)]
    assert worth(kept) == pytest.approx(max(map(worth, fitting)))


def test_of_nodes_that_bring_what_they_cost_none_is_kept() -> None:
    assert best_nodes([[0.5, 0.5], [0.5]], [2, 1], [1.0, 1.5, 2.0, 2.5], 1.0) == [[], []]


def test_the_rate_is_that_of_plain_decoding_at_first_and_at_least() -> None:
    rate = Rate()
    assert rate.per_second(4, 0.02) == 200.0
    for _ in range(100):
        rate.observe(1, 0.03, 1, 0.02)  # speculation that lost
    assert rate.speedup == 1.0


def test_the_rate_holds_for_other_batches_and_contexts() -> None:
    rate = Rate()
    for _ in range(200):
        rate.observe(3, 0.02, 1, 0.01)
    assert rate.speedup == pytest.approx(1.5)
    assert rate.per_second(8, 0.04) == pytest.approx(1.5 * 8 / 0.04)
    for _ in range(300):  # five times its memory: the old rate is forgotten
        rate.observe(16, 0.02, 8, 0.02)
    assert rate.speedup == pytest.approx(2.0, rel=0.01)


COSTS = [1 + 0.2 * n for n in range(13)]
KINDS, SHARES = (0.97, 0.6), (1, 2)
Policy = Callable[[list[float], Rate], int]


def long_run(policy: Policy, num_steps: int = 4000) -> float:
    """Tokens per second where easy steps and hard ones come at random, and are known as such."""
    rng, rate = random.Random(0), Rate()
    tokens, seconds = 0, 0.0
    for _ in range(num_steps):
        acceptance = rng.choices(KINDS, SHARES)[0]
        draws = [rng.random() for _ in COSTS]
        length = policy([acceptance**n for n in range(1, len(COSTS))], rate)
        accepted = 0
        while accepted < length and draws[accepted] < acceptance:
            accepted += 1
        tokens += accepted + 1
        seconds += COSTS[length]
        rate.observe(accepted + 1, COSTS[length], 1, COSTS[0])
    return tokens / seconds


def by_rate(ladder: list[float], rate: Rate) -> int:
    return plan([Ways(ladder, [])], COSTS, [0.0], rate.per_second(1, COSTS[0])).choices[0][1]


def by_plain_rate(ladder: list[float], rate: Rate) -> int:
    return plan([Ways(ladder, [])], COSTS, [0.0], 1 / COSTS[0]).choices[0][1]


def by_own_ratio(ladder: list[float], rate: Rate) -> int:
    tokens = list(accumulate(ladder, initial=1.0))
    return max(range(len(COSTS)), key=lambda n: tokens[n] / COSTS[n])


def test_the_long_run_rate_is_better_than_any_fixed_length_and_than_each_steps_own() -> None:
    ours = long_run(by_rate)
    fixed = [long_run(lambda ladder, rate, n=n: n) for n in range(len(COSTS))]
    assert max(fixed[1:]) > fixed[0]  # speculation pays
    assert ours > 1.3 * max(fixed)
    assert ours > 1.01 * long_run(by_own_ratio)
    assert ours > 1.03 * long_run(by_plain_rate)


TEXT_COSTS = [1 + 0.03 * n for n in range(9)]
TEXT_TRAINED = [0.12 * n for n in range(9)]


def through_text(phases: list[tuple[int, float]], length: int | None) -> float:
    """Tokens per second through a text whose stretches of (tokens, acceptance) alternate, with a
    fixed length or, with None, planned from what was learned on the way."""
    rng, seq_id, num_tokens = random.Random(0), 0, 8_000
    text: list[bool] = []
    while len(text) < num_tokens + len(TEXT_COSTS):
        text += [rng.random() < p for n, p in phases for _ in range(n)]
    acceptance, probing, rate = Acceptance(), Probing(), Rate()
    acceptance.open(seq_id, "greedy")
    done, seconds = 0, 0.0
    while done < num_tokens:
        drafted = length
        if drafted is None:
            drafted = planned(acceptance, probing, rate)
        accepted = 0
        while accepted < drafted and text[done + accepted]:
            accepted += 1
        took = TEXT_COSTS[drafted] + TEXT_TRAINED[drafted]
        if drafted:
            acceptance.observe(seq_id, drafted, accepted, False)
            probing.observe(seq_id, accepted + 1 > took)
        else:
            probing.tick(seq_id)
        rate.observe(accepted + 1, took, 1, TEXT_COSTS[0])
        done += accepted + 1
        seconds += took
    return done / seconds


def planned(acceptance: Acceptance, probing: Probing, rate: Rate) -> int:
    if probing.is_due(0):
        acceptance.fade(0, 0.5)
    ways = Ways([], acceptance.ladder(0, len(TEXT_COSTS) - 1))
    found = plan([ways], TEXT_COSTS, TEXT_TRAINED, rate.per_second(1, TEXT_COSTS[0]))
    return found.choices[0][1] or (2 if probing.is_due(0) else 0)


@pytest.mark.parametrize(
    ("phases", "least"),
    [
        ([(1000, 0.05)], 0.99),
        ([(1000, 0.9)], 0.99),
        ([(1000, 0.6)], 0.98),
        ([(300, 0.85), (300, 0.2)], 1.02),
        ([(1000, 0.9), (1000, 0.05)], 1.05),
        ([(60, 0.9), (60, 0.3)], 0.95),
    ],
    ids=["hard", "easy", "between", "changes", "changes slowly", "changes soon"],
)
def test_learning_on_the_way_keeps_up_with_the_best_fixed_length(
    phases: list[tuple[int, float]], least: float
) -> None:
    """It is better where it has time to notice, and a little worse where the text has changed by
    the time it does."""
    best = max(through_text(phases, length) for length in (0, 1, 2, 3, 4, 6, 8))
    assert through_text(phases, None) > least * best
