"""Merged trees: the lookup's chain beside the head's, equal beginnings shared, cut to what pays."""

from __future__ import annotations

from collections.abc import Sequence as List

import pytest

from outpace.control.goodput import Plan, Ways
from outpace.control.rivals import Ranked, Rivals
from outpace.drafters.parts.carrying_out import MERGED, Made, fit_trees
from outpace.drafters.parts.merged import MergedTree
from outpace.types import NO_DRAFT, Draft

LEVELS = [Ranked([7, 8, 9], [0.6, 0.2, 0.1]), Ranked([4, 5, 6], [0.7, 0.1, 0.1])]


def offer(*token_ids: int, claim: float = 0.5) -> Draft:
    return Draft(token_ids, origin="suffix", claims=(claim,) * len(token_ids))


def ladder(draft: Draft) -> list[float]:
    return [0.5 ** (n + 1) for n in range(len(draft))]


def tree_of(draft: Draft, levels: List[Ranked], rivals: Rivals | None = None) -> MergedTree:
    if rivals is None:
        rivals = Rivals()
        rivals.open(0, "greedy")
    return MergedTree(0, rivals, draft, ladder(draft), levels)


def paths(tree: MergedTree) -> set[tuple[int, ...]]:
    """The tokens from the root to every node."""
    whole = tree.draft(range(len(tree.worths)), "both")
    return {whole.tokens_to(node) for node in range(len(whole))}


def test_a_lookup_that_says_something_else_is_a_branch_of_its_own() -> None:
    tree = tree_of(offer(1, 2, 3), LEVELS)
    head = {(7,), (8,), (9,), (7, 4), (7, 5), (7, 6)}
    assert paths(tree) == head | {(1,), (1, 2), (1, 2, 3)}


def test_what_both_say_is_one_path_that_the_lookup_goes_on_with() -> None:
    tree = tree_of(offer(7, 4, 3, 2), LEVELS)
    head = {(7,), (8,), (9,), (7, 4), (7, 5), (7, 6)}
    assert paths(tree) == head | {(7, 4, 3), (7, 4, 3, 2)}


def test_a_lookup_that_says_a_runner_up_goes_on_behind_it() -> None:
    tree = tree_of(offer(7, 5, 3), LEVELS)
    assert (7, 5, 3) in paths(tree)
    assert len(tree.worths) == 7


@pytest.mark.parametrize("draft", [Draft(), offer(7), offer(1), offer(7, 1, 1, 1)])
def test_no_node_is_worth_more_than_its_parent_nor_stands_twice(draft: Draft) -> None:
    tree = tree_of(draft, LEVELS)
    whole = tree.draft(range(len(tree.worths)), "both")
    assert len(paths(tree)) == len(whole)
    for node, worth in enumerate(tree.worths):
        parent = whole.parent(node)
        assert worth <= (1.0 if parent < 0 else tree.worths[parent])


def test_a_silent_head_leaves_the_lookups_chain() -> None:
    draft = offer(1, 2, 3)
    tree = tree_of(draft, [])
    assert tree.num_levels == 0
    assert tree.worths == pytest.approx(ladder(draft))
    assert tree.draft([0, 1, 2], "both").is_chain


def test_what_is_cut_out_keeps_its_parents() -> None:
    tree = tree_of(offer(1, 2), LEVELS)
    whole = tree.draft(range(len(tree.worths)), "both")
    nodes = [n for n in range(len(whole)) if whole.tokens_to(n) in {(7,), (7, 4), (1,), (1, 2)}]
    part = tree.draft(nodes, "both")
    assert part.is_deterministic
    assert {part.tokens_to(node) for node in range(4)} == {(7,), (7, 4), (1,), (1, 2)}


def test_candidates_that_were_not_fed_are_learned_of_too() -> None:
    rivals = Rivals()
    rivals.open(0, "greedy")
    for _ in range(100):
        tree_of(offer(1, 2), LEVELS, rivals).observe((9, 3))
    tree = tree_of(offer(1, 2), LEVELS, rivals)
    whole = tree.draft(range(len(tree.worths)), "both")
    worths = {whole.tokens_to(node): worth for node, worth in enumerate(tree.worths)}
    # Claims are interpolated, so that neighbours share what the one at 0.1 showed.
    assert worths[9,] > 0.2
    assert worths[7,] < 0.4 < LEVELS[0].chances[0]


def test_nothing_is_learned_behind_a_token_that_is_in_no_path() -> None:
    rivals, untouched = Rivals(), Rivals()
    for each in (rivals, untouched):
        each.open(0, "greedy")
        each.open(1, "greedy")
    tree_of(offer(1, 2), LEVELS, rivals).observe((50, 4, 4))
    tree_of(offer(1, 2), LEVELS, untouched).observe((50,))
    after = tree_of(offer(1, 2), LEVELS, rivals).worths
    assert after == tree_of(offer(1, 2), LEVELS, untouched).worths


def fitted(curve: List[float], budget: int = 16) -> tuple[Made, Plan]:
    tree = tree_of(offer(1, 2, 3), LEVELS)
    made = [Made(MERGED, NO_DRAFT, offer(1, 2, 3), tree)]
    decided = Plan([("trained", 2)], 1.9, 5.0)
    ways = [Ways([0.5, 0.25, 0.125], [0.6, 0.3])]
    (only,), found = fit_trees(
        made, decided, [budget], ways, lambda n: [*curve[: n + 1]], 1.0, {MERGED: "a+b"}
    )
    return only, found


def test_free_rows_keep_the_whole_tree_and_dear_ones_nothing() -> None:
    free, _ = fitted([1.0] * 40)
    assert len(free.draft) == 9
    assert free.draft.origin == "a+b"
    dear, _ = fitted([1.0 + n for n in range(40)])
    assert len(dear.draft) == 0


def test_budgets_count_nodes() -> None:
    made, _ = fitted([1.0] * 40, budget=3)
    assert len(made.draft) == 3


def test_what_is_expected_follows_what_is_kept() -> None:
    """0.15 a row: the likeliest nodes alone. The drafting, 5 - 1.3 seconds, stays as planned."""
    curve = [1.0 + 0.15 * n for n in range(40)]
    made, found = fitted(curve)
    assert made.tree is not None
    kept = sorted(made.tree.worths, reverse=True)[: len(made.draft)]
    assert 0 < len(kept) < 9
    assert min(kept) > 0.15
    assert found.num_tokens == pytest.approx(1 + sum(kept))
    assert found.seconds == pytest.approx(5.0 + curve[len(kept)] - curve[2])
