"""Recursive rejection and traversal keep the target's joint law: proved in rationals.

What runs is the shipped code on `Fraction` rows, over everything a drafter can draw. Every check
has negative controls: known mistakes of rules and of drafters must fail it on many of the same
models.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from effort import examples
from exact_means import expected_path_len, tree_law

from outpace.measure.audit.exact_law import Model, Tokens, completed, random_model, row
from outpace.measure.audit.exact_rules import walk_emission
from outpace.measure.audit.exact_tree import (
    LIST,
    WITH,
    WITHOUT,
    Decide,
    Drafts,
    Plan,
    branches,
    drafts,
    drawn_from,
    emission,
    random_plan,
    with_node,
)
from outpace.types import Draft
from outpace.verification import tree
from outpace.verification.tree import PathDecision, recursive_decision, traversal_decision

pytestmark = pytest.mark.usefixtures("unchecked_shapes")
KINDS = {
    "deterministic": (LIST,),
    "without replacement": (WITHOUT,),
    "with replacement": (WITH,),
    "mixed": (LIST, WITHOUT, WITH),
}
RULES = {"recursive": recursive_decision, "traversal": traversal_decision}
NUM_MODELS = 40
NUM_CONTROL_MODELS = 24

both_rules = pytest.mark.parametrize("decide", RULES.values(), ids=RULES)


@cache
def case(seed: int, kinds: tuple[str, ...]) -> tuple[Model, list[tuple[Fraction, Draft]]]:
    model = random_model(seed)
    return model, list(drafts(model, random_plan(seed, kinds, model.k)))


def is_lossless(model: Model, decide: Decide, drawn: Drafts) -> bool:
    return tree_law(model, decide, drawn) == model.target_law()


@pytest.mark.parametrize("kinds", KINDS.values(), ids=KINDS)
@both_rules
def test_joint_law_is_the_targets(decide: Decide, kinds: tuple[str, ...]) -> None:
    for seed in range(examples(NUM_MODELS)):
        model, drawn = case(seed, kinds)
        assert sum(mass for mass, _ in drawn) == 1
        assert is_lossless(model, decide, drawn), seed


def test_the_trees_cover_the_hard_cases() -> None:
    drawn = [(m, d) for seed in range(NUM_MODELS) for m, d in [case(seed, KINDS["mixed"])]]
    trees = [(model, draft) for model, of_model in drawn for _, draft in of_model]
    siblings = [
        [draft.token_ids[node] for node in group]
        for _, draft in trees
        for group in draft.children()
    ]
    assert max(map(len, siblings)) == 3
    assert any(len(set(group)) < len(group) for group in siblings), "no duplicates among siblings"
    assert {max(draft.depths(), default=0) for _, draft in trees} == {0, 1, 2, 3}
    assert any(max(draft.token_ids, default=0) >= model.vocab for model, draft in trees)
    assert any(len({len(draft) for _, draft in of_model}) > 1 for _, of_model in drawn)
    # Orders of drawing: by layers, and a younger sibling after what lies below an elder one.
    assert any(draft.depths() != sorted(draft.depths()) for _, draft in trees)


@both_rules
def test_probes_are_never_accepted(decide: Decide) -> None:
    for seed in range(15):
        model, drawn = case(seed, KINDS["mixed"])
        probed = [(m, replace(draft, num_probes=min(2, len(draft)))) for m, draft in drawn]
        assert is_lossless(model, decide, probed)
        for _, draft in probed:
            for _, decision in branches(decide, model.p_rows(draft), draft):
                assert all(node < draft.num_verified for node in decision.nodes)


@both_rules
def test_a_position_where_no_token_may_come_ends_the_output(decide: Decide) -> None:
    """A row of zeros: what is accepted before it stands, and nothing is drawn there."""
    num_dead = 0
    for seed in range(examples(25)):
        model, drawn = case(seed, KINDS["mixed"])
        rng = random.Random(seed)
        model = replace(
            model,
            p={
                context: 0 * p_row if context and rng.random() < 0.3 else p_row
                for context, p_row in model.p.items()
            },
        )
        assert is_lossless(model, decide, drawn), seed
        num_dead += any(len(tokens) <= model.k for tokens in model.target_law())
    assert num_dead > 10


@both_rules
def test_drafts_cut_to_what_was_drawn_first_are_lossless(decide: Decide) -> None:
    for seed in range(25):
        model, drawn = case(seed, KINDS["mixed"])
        for cut in (
            lambda draft: draft.shortened(3),
            lambda draft: draft.no_deeper_than(1),
            lambda draft: draft.first_path(),
        ):
            assert is_lossless(model, decide, [(mass, cut(draft)) for mass, draft in drawn])


def test_sample_and_match_is_lossless_for_any_tree() -> None:
    """It reads no q, so even trees whose claims are false do it no harm."""
    for seed in range(25):
        model, drawn = case(seed, (LIST, WITH))
        for trees in (drawn, [(mass, _reselected(model, draft, _best)) for mass, draft in drawn]):
            law: dict[Tokens, Fraction] = {}
            for mass, draft in trees:
                for share, tokens in walk_emission(model.p_rows(draft), draft):
                    law[tokens] = law.get(tokens, Fraction(0)) + mass * share
            assert completed(law, model) == model.target_law()


# How much is accepted.


@pytest.mark.parametrize("kinds", [(WITHOUT,), (WITH,), (LIST, WITHOUT, WITH)])
def test_traversal_accepts_more_on_average(kinds: tuple[str, ...]) -> None:
    gains = []
    for seed in range(examples(NUM_MODELS)):
        model, drawn = drawn_case(seed, kinds)
        recursive = expected_path_len(model, recursive_decision, drawn)
        gains.append(expected_path_len(model, traversal_decision, drawn) - recursive)
    assert sum(gains) > 0
    assert sum(gain > 0 for gain in gains) > 5
    assert sum(gain < 0 for gain in gains) <= len(gains) / 20


def test_traversal_accepts_as_much_of_deterministic_trees() -> None:
    for seed in range(NUM_MODELS):
        model, drawn = case(seed, (LIST,))
        recursive = expected_path_len(model, recursive_decision, drawn)
        assert expected_path_len(model, traversal_decision, drawn) == recursive


@pytest.mark.parametrize(
    ("seed", "plan"),
    [
        (1152, Plan(((-1, WITH), (0, WITH), (0, LIST), (2, WITHOUT)), salt=632)),
        (5480, Plan(((-1, WITHOUT), (0, WITHOUT), (0, WITHOUT), (2, WITHOUT)), salt=470)),
    ],
    ids=["mixed", "drawn"],
)
def test_traversal_can_accept_less(seed: int, plan: Plan) -> None:
    """Both rules are exact there, and neither is always ahead."""
    model = random_model(seed, k=3)
    drawn = list(drafts(model, plan))
    assert all(is_lossless(model, decide, drawn) for decide in RULES.values())
    recursive = expected_path_len(model, recursive_decision, drawn)
    assert expected_path_len(model, traversal_decision, drawn) < recursive


# Negative controls: drafters. Each makes a mistake in circulation, and each must fail the check.

Select = Callable[[list[int], list[Fraction]], list[int]]


@cache
def drawn_case(seed: int, kinds: tuple[str, ...]) -> tuple[Model, list[tuple[Fraction, Draft]]]:
    """As `case`, with a shape that does not depend on what is drawn."""
    model = random_model(seed)
    plan = replace(random_plan(seed, kinds, model.k), adaptive=False)
    return model, list(drafts(model, plan))


def _reselected(model: Model, draft: Draft, select: Select) -> Draft:
    """The tree with each group of siblings passed through `select`, and the q of each node as if
    it had been drawn, without replacement, where it now stands."""
    children = draft.children()
    result = Draft((), (), parents=())
    pending = [(-1, -1)]
    while pending:
        before, now = pending.pop(0)
        q_row = model.q[draft.tokens_to(before)]
        group = children[before + 1]
        elders: set[int] = set()
        for node in select(group, [q_row[draft.token_ids[n]] for n in group]):
            token = draft.token_ids[node]
            result = with_node(result, token, drawn_from(q_row, elders), now)
            elders.add(token)
            pending.append((node, len(result) - 1))
    return result


def _as_drawn(group: list[int], scores: list[Fraction]) -> list[int]:
    return group


def _resorted(group: list[int], scores: list[Fraction]) -> list[int]:
    return [node for _, node in sorted(zip(scores, group, strict=True), key=lambda s: -s[0])]


def _pruned(group: list[int], scores: list[Fraction]) -> list[int]:
    """Without the least probable sibling."""
    worst = group[scores.index(min(scores))] if len(group) > 1 else None
    return [node for node in group if node != worst]


def _best(group: list[int], scores: list[Fraction]) -> list[int]:
    return _resorted(group, scores)[:1]


def _num_biased(decide: Decide, change: Callable[[Model, Draft], Draft]) -> int:
    count = 0
    for seed in range(NUM_CONTROL_MODELS):
        model, drawn = drawn_case(seed, (WITHOUT,))
        count += not is_lossless(model, decide, [(m, change(model, draft)) for m, draft in drawn])
    return count


@pytest.mark.parametrize("select", [_resorted, _pruned, _best])
@both_rules
def test_selection_after_the_draw_is_caught(decide: Decide, select: Select) -> None:
    assert _num_biased(decide, lambda model, draft: _reselected(model, draft, select)) > 5


@both_rules
def test_no_selection_is_not_caught(decide: Decide) -> None:
    assert _num_biased(decide, lambda model, draft: _reselected(model, draft, _as_drawn)) == 0


@pytest.mark.parametrize("select", [_resorted, _pruned, _best])
@both_rules
def test_selected_trees_judged_one_hot_are_lossless(decide: Decide, select: Select) -> None:
    """The cure of the control above: the same trees with q = None."""

    def change(model: Model, draft: Draft) -> Draft:
        return replace(_reselected(model, draft, select), q=None)

    assert _num_biased(decide, change) == 0


@both_rules
def test_siblings_claiming_the_first_ones_q_are_caught(decide: Decide) -> None:
    """Drawn without replacement, and judged as if with."""

    def change(model: Model, draft: Draft) -> Draft:
        contexts = [draft.tokens_to(draft.parent(node)) for node in range(len(draft))]
        return replace(draft, q=tuple(model.q[context] for context in contexts))

    assert _num_biased(decide, change) > 5


@both_rules
def test_a_dropped_duplicate_is_caught(decide: Decide) -> None:
    """A drawn token is dropped because a deterministic sibling is the same token."""
    num_biased = 0
    for seed in range(NUM_CONTROL_MODELS):
        model = random_model(seed)
        drawn = list(drafts(model, Plan(((-1, LIST), (-1, WITH)), salt=seed)))
        assert is_lossless(model, decide, drawn)
        dropped = [
            (mass, draft.shortened(1) if draft.token_ids[0] == draft.token_ids[1] else draft)
            for mass, draft in drawn
        ]
        num_biased += not is_lossless(model, decide, dropped)
    assert num_biased > 5


@both_rules
def test_a_node_dropped_for_what_came_after_it_is_caught(decide: Decide) -> None:
    """Which nodes exist may depend on what was drawn before them, and on nothing later."""

    def change(model: Model, draft: Draft) -> Draft:
        last = len(draft) - 1
        return draft.shortened(last) if draft.token_ids and draft.token_ids[last] == 1 else draft

    assert _num_biased(decide, change) > 5


@both_rules
def test_a_top_k_list_judged_with_soft_q_is_caught(decide: Decide) -> None:
    num_biased = 0
    for seed in range(NUM_CONTROL_MODELS):
        model = random_model(seed)
        q_row = model.q[()]
        draft, elders = Draft((), (), parents=()), set()
        for token in [int(token) for token in np.argsort(-q_row, kind="stable")[:2]]:
            claim = drawn_from(q_row, elders)
            if claim is not None:
                draft = with_node(draft, token, claim, -1)
            elders.add(token)
        num_biased += not is_lossless(model, decide, [(Fraction(1), draft)])
        honest = replace(draft, q=None)
        assert is_lossless(model, decide, [(Fraction(1), honest)])
    assert num_biased > 5


# Negative controls: rules.


def _rule_is_biased(decide: Decide) -> bool:
    cases = [drawn_case(seed, KINDS["mixed"]) for seed in range(NUM_CONTROL_MODELS)]
    return sum(not is_lossless(model, decide, drawn) for model, drawn in cases) > 5


def test_a_bonus_from_p_after_a_rejection_is_caught() -> None:
    def wrong(p: np.ndarray, draft: Draft, coins: np.ndarray) -> PathDecision:
        nodes = recursive_decision(p, draft, coins).nodes
        return PathDecision(nodes, p[nodes[-1] + 1 if nodes else 0])

    assert _rule_is_biased(wrong)


@both_rules
def test_a_residual_that_is_not_renormalised_is_caught(
    decide: Decide, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not _rule_is_biased(decide)
    scale = tree._Remaining._scale.fget
    monkeypatch.setattr(tree._Remaining, "_scale", property(lambda left: 1 if scale(left) else 0))
    assert _rule_is_biased(decide)


def test_a_path_weight_kept_after_a_rejection_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "weight_after_rejection", lambda weight, remaining_mass: weight)
    assert _rule_is_biased(traversal_decision)


def test_a_coin_for_a_whole_group_of_siblings_is_caught() -> None:
    """The second sibling judged by the coin that rejected the first."""

    def wrong(p: np.ndarray, draft: Draft, coins: np.ndarray) -> PathDecision:
        first = {node: group[0] for group in draft.children() for node in group}
        return recursive_decision(p, draft, [coins[first[node]] for node in range(len(draft))])

    p = np.stack([row("1/2", "1/2", 0)] * 3)
    draft = Draft((0, 1), parents=(-1, -1))
    with pytest.raises(AssertionError, match="decides twice"):
        list(branches(wrong, p, draft))


def test_the_branches_are_those_of_the_coins() -> None:
    p = np.stack([row("1/2", "1/4", "1/4")] * 3)
    draft = Draft((0, 1), parents=(-1, -1))
    outcomes = {d.nodes: mass for mass, d in branches(recursive_decision, p, draft)}
    assert outcomes == {(0,): Fraction(1, 2), (1,): Fraction(1, 4), (): Fraction(1, 4)}
    recovered = [(m, t) for m, t in emission(recursive_decision, p, draft) if len(t) == 1]
    assert recovered == [(Fraction(1, 4), (2,))]
