"""Recursive rejection and traversal: golden numbers, chains, edges, and which rows are made."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from effort import examples

from outpace.measure.audit.exact_law import random_model, row
from outpace.measure.audit.exact_tree import (
    LIST,
    WITH,
    WITHOUT,
    Decide,
    Plan,
    branches,
    drafts,
    random_plan,
)
from outpace.types import Draft, Verdict
from outpace.verification.chain import block_decision, token_decision
from outpace.verification.tree import (
    recursive_decision,
    recursive_verify,
    traversal_decision,
    traversal_verify,
)

VECTORS = Path(__file__).parents[2] / "vectors"
CASES = json.loads((VECTORS / "verify_vectors.json").read_text())["cases"]
GOLDEN = json.loads((VECTORS / "golden.json").read_text())
SEVERAL = GOLDEN["multi_candidate P=[1/2,1/4,1/8,1/8] Q=[1/8,1/2,1/4,1/8] accept prob"]
P4 = row("1/2", "1/4", "1/8", "1/8")
Q4 = row("1/8", "1/2", "1/4", "1/8")
RULES = {"recursive": recursive_decision, "traversal": traversal_decision}
ON_CHAINS = [(token_decision, recursive_decision), (block_decision, traversal_decision)]

pytestmark = pytest.mark.usefixtures("unchecked_shapes")
both_rules = pytest.mark.parametrize("decide", RULES.values(), ids=RULES)
on_chains = pytest.mark.parametrize(("chain", "tree"), ON_CHAINS, ids=RULES)


def as_rows(table: list[list[str]], dtype: type) -> np.ndarray:
    exact = np.stack([row(*values) for values in table])
    return exact if dtype is object else exact.astype(dtype)


# Chains: the same decisions as the chain's rules, coin for coin.


def assert_same(chain, tree, p: np.ndarray, draft: Draft, coins) -> None:
    expected = chain(p, draft, coins)
    shaped = replace(draft, parents=tuple(range(-1, len(draft) - 1)))
    for written in (draft, shaped):
        decision = tree(p, written, coins)
        assert decision.nodes == tuple(range(expected.num_accepted))
        laws = [weights / weights.sum() for weights in (decision.weights, expected.weights)]
        if p.dtype == object:
            assert list(laws[0]) == list(laws[1])
        else:
            np.testing.assert_allclose(*laws, rtol=1e-5)


@pytest.mark.parametrize("dtype", [object, np.float64, np.float32])
@on_chains
def test_a_chain_of_the_vectors(chain, tree, dtype: type) -> None:
    for case in CASES:
        draft = Draft(tuple(case["draft"]), tuple(as_rows(case["q"], dtype)))
        assert_same(chain, tree, as_rows(case["p"], dtype), draft, case["coins"])


@on_chains
def test_a_random_chain(chain, tree) -> None:
    """Also where coins are 0 or equal to a threshold, and one-hot tokens stand among drawn ones."""
    rng = np.random.default_rng(0)
    for seed in range(examples(40)):
        model = random_model(seed)
        for _, draft in model.drafts():
            p = model.p_rows(draft)
            coins = [Fraction(int(n), 12) for n in rng.integers(0, 12, len(draft))]
            assert_same(chain, tree, p, draft, coins)


@on_chains
def test_a_random_chain_in_float32(chain, tree) -> None:
    rng = np.random.default_rng(1)
    for _ in range(examples(100)):
        k, vocab = int(rng.integers(1, 6)), int(rng.integers(2, 40))
        p = rng.dirichlet(np.full(vocab, 0.3), size=k + 1).astype(np.float32)
        q = [row.astype(np.float32) for row in rng.dirichlet(np.full(vocab, 0.3), size=k)]
        tokens = tuple(int(rng.choice(vocab, p=row / row.sum(dtype=float))) for row in q)
        claims = tuple(None if rng.random() < 0.3 else row for row in q)
        assert_same(chain, tree, p, Draft(tokens, claims), rng.random(k))


@pytest.mark.parametrize(
    ("chain", "tree"), [(token_decision, traversal_decision), (block_decision, recursive_decision)]
)
def test_the_comparison_of_chains_can_fail(chain, tree) -> None:
    with pytest.raises(AssertionError):
        test_a_random_chain_in_float32(chain, tree)


# Golden numbers: several candidates at one position.


def acceptance(decide: Decide, kind: str, count: int) -> Fraction:
    """The probability that one of `count` siblings is accepted, with P4 and Q4."""
    model = random_model(0, vocab=4, k=1)
    model.p = dict.fromkeys(model.p, P4)
    model.q = dict.fromkeys(model.q, Q4)
    return sum(
        mass * share * decision.num_accepted
        for mass, draft in drafts(model, Plan(((-1, kind),) * count))
        for share, decision in branches(decide, model.p_rows(draft), draft)
    )


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@both_rules
def test_acceptance_of_several_candidates(decide: Decide, count: int) -> None:
    golden = SEVERAL[str(count)]
    assert acceptance(decide, WITH, count) == Fraction(golden["iid"])
    assert acceptance(decide, WITHOUT, count) == Fraction(golden["without_replacement"])


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@both_rules
def test_acceptance_of_a_deterministic_list(decide: Decide, count: int) -> None:
    listed = Draft((1, 2, 0, 3)[:count], parents=(-1,) * count)
    p = np.stack([P4] * (count + 1))
    accepted = sum(m * d.num_accepted for m, d in branches(decide, p, listed))
    assert accepted == Fraction(SEVERAL[str(count)]["deterministic_topk"])


# Decisions on one tree, by hand.

#     root: 1 (node 0), 2 (node 1);  below node 1: 0 (node 2), 3 (node 3)
TREE = Draft((1, 2, 0, 3), parents=(-1, -1, 1, 1))
P_TREE = np.stack([P4, row(0, 0, 0, 1), row("1/4", "1/4", 0, "1/2"), P4, row(1, 0, 0, 0)])


@pytest.mark.parametrize("verify", [recursive_verify, traversal_verify])
def test_verdicts_by_hand(verify) -> None:
    """Thresholds: 1/4 at node 0; (1/8) / (3/4) = 1/6 at node 1; 1/4 at node 2; 2/3 at node 3."""
    below, above = Fraction(1, 100), Fraction(99, 100)

    def verdict(*coins: Fraction, final_coin: Fraction = below) -> Verdict:
        return verify(P_TREE, TREE, coins, final_coin)

    assert verdict(above, above, above, above) == Verdict((0,), 0, nodes=())
    assert verdict(above, above, above, above, final_coin=above) == Verdict((3,), 0, nodes=())
    assert verdict(below, above, above, above) == Verdict((1, 3), 1, nodes=(0,))
    if verify is recursive_verify:
        assert verdict(above, Fraction(1, 6), below, above) == Verdict((0,), 0, nodes=())
        assert verdict(above, below, above, Fraction(66, 100)) == Verdict(
            (2, 3, 0), 2, nodes=(1, 3)
        )
        assert verdict(above, below, above, Fraction(2, 3)) == Verdict((2, 1), 1, nodes=(1,))
        assert verdict(above, below, below, above) == Verdict((2, 0, 0), 2, nodes=(1, 2))


@both_rules
def test_a_coin_of_zero_never_accepts_an_impossible_token(decide: Decide) -> None:
    p = np.stack([row(0, "1/2", "1/2")] * 3)
    q = (row("1/2", "1/4", "1/4"), row(0, "1/2", "1/2"))
    for draft in (Draft((0, 0), parents=(-1, -1)), Draft((0, 0), q, parents=(-1, -1))):
        assert decide(p, draft, [0, 0]).nodes == ()
    outside = Draft((7, -1), (q[0], None), parents=(-1, -1))
    assert decide(p, outside, [0, 0]).nodes == ()


@both_rules
def test_a_residual_without_mass_falls_back(decide: Decide) -> None:
    """By rounding, or a false q, everything may be subtracted before the last sibling."""
    q_row = np.array([0.5, 0.5, 0.0], np.float32)
    p = np.stack([q_row] * 4)
    draft = Draft((2, 2, 0), (q_row, q_row, None), parents=(-1, -1, -1))
    decision = decide(p, draft, np.array([0.9, 0.9, 0.9]))
    assert decision.nodes == ()
    assert decision.weights.max() > 0
    assert decision.weights[2] == 0


@both_rules
def test_malformed_draft_rows_never_give_ids_outside_the_vocabulary(decide: Decide) -> None:
    p = np.full((3, 4), 0.25, np.float32)
    nan = np.full(4, np.nan, np.float32)
    for q in ((nan, nan), (nan, None), (np.zeros(4, np.float32), nan)):
        decision = decide(p, Draft((0, 1), q, parents=(-1, -1)), np.array([0.5, 0.9]))
        assert decision.weights.max() > 0
        assert np.isfinite(decision.weights).all()


@both_rules
def test_the_callers_rows_are_not_written_to(decide: Decide) -> None:
    rng = np.random.default_rng(3)
    for seed in range(20):
        model = random_model(seed)
        for _, draft in drafts(model, random_plan(seed, (LIST, WITHOUT), model.k)):
            p = model.p_rows(draft).astype(np.float32)
            q = tuple(None if row is None else row.astype(np.float32) for row in draft.q)
            before = [p.copy(), *(row if row is None else row.copy() for row in q)]
            decide(p, replace(draft, q=q), rng.random(len(draft)))
            for now, then in zip([p, *q], before, strict=True):
                np.testing.assert_array_equal(now, then)


def test_the_list_rule_keeps_its_precision_in_float32() -> None:
    """Thresholds after siblings that held almost all of the mass are those of exact arithmetic."""
    p_row = np.array([0.9999, 9e-5, 8e-6, 2e-6], np.float32)
    exact = np.array([Fraction(float(value)) for value in p_row], dtype=object)
    draft = Draft((0, 1, 2), parents=(-1, -1, -1))
    threshold = exact[2] / (exact[2] + exact[3])
    for coin, accepted in ((0.999, (2,)), (1.001, ())):
        coins = np.array([1, 1, float(threshold) * coin])
        assert recursive_decision(np.stack([p_row] * 4), draft, coins).nodes == accepted


# Which rows are made.


class Asked:
    """Rows that note which of them were asked for."""

    def __init__(self, rows: np.ndarray) -> None:
        self.rows, self.positions = rows, []

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, position: int) -> np.ndarray:
        self.positions.append(position)
        return self.rows[position]


def test_recursive_rejection_asks_only_for_the_rows_it_reaches() -> None:
    for coins, asked in (
        ([0.99] * 4, [0]),
        ([0.99, 0.01, 0.99, 0.01], [0, 2, 4]),
        ([0.01, 0.01, 0.01, 0.01], [0, 1]),
    ):
        rows = Asked(P_TREE.astype(np.float64))
        recursive_decision(rows, TREE, np.array(coins))
        assert rows.positions == asked


def test_traversal_asks_for_each_row_once_and_for_none_below_an_impossible_token() -> None:
    draft = replace(TREE, q=(None, P4.astype(float), None, None))
    rows = Asked(P_TREE.astype(np.float64))
    traversal_decision(rows, draft, np.array([0.99] * 4))
    assert rows.positions == [0, 1, 2, 3, 4]
    impossible = P_TREE.astype(np.float64)
    impossible[0, 2] = 0
    rows = Asked(impossible)
    traversal_decision(rows, draft, np.array([0.99] * 4))
    assert rows.positions == [0, 1]
