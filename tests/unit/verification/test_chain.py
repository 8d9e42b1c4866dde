"""Token and block verification: vectors, golden numbers, edges, properties, and the float path."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from exact_means import expected_accepted
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from outpace.measure.audit.exact_law import (
    BLOCK,
    TOKEN,
    Model,
    completed,
    emission_law,
    row,
    rule_emission,
)
from outpace.sampling import draw
from outpace.types import Draft, Verdict
from outpace.verification.chain import (
    Decision,
    block_decision,
    block_thresholds,
    block_verify,
    path_weights,
    residual,
    token_decision,
    token_thresholds,
    token_verify,
)

VECTORS = Path(__file__).parents[2] / "vectors"
CASES = json.loads((VECTORS / "verify_vectors.json").read_text())["cases"]
GOLDEN = json.loads((VECTORS / "golden.json").read_text())
RULES = {"token": token_verify, "block": block_verify}
P4 = row("1/2", "1/4", "1/8", "1/8")
Q4 = row("1/8", "1/2", "1/4", "1/8")

both_rules = pytest.mark.parametrize("verify", [token_verify, block_verify])


def as_rows(table: list[list[str]], dtype: type) -> np.ndarray:
    exact = np.stack([row(*values) for values in table])
    return exact if dtype is object else exact.astype(dtype)


@pytest.mark.parametrize("dtype", [object, np.float64, np.float32])
@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
@pytest.mark.parametrize("rule", RULES)
def test_vectors(rule: str, case: dict, dtype: type) -> None:
    draft = Draft(tuple(case["draft"]), tuple(as_rows(case["q"], dtype)))
    verdict = RULES[rule](as_rows(case["p"], dtype), draft, case["coins"], case["final_coin"])
    expected = case[rule]
    assert verdict == Verdict(tuple(expected["out"]), expected["tau"])


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_thresholds_of_the_vectors(case: dict) -> None:
    p = as_rows(case["p"], object)
    draft = Draft(tuple(case["draft"]), tuple(as_rows(case["q"], object)))
    weights, thresholds = block_thresholds(p, draft)
    assert weights == [Fraction(value) for value in case["block"]["P"]] == path_weights(p, draft)
    assert thresholds == [Fraction(value) for value in case["block"]["h"]]


def test_there_are_forty_vectors() -> None:
    assert len(CASES) == 40


# Golden numbers.


def one_position(p: np.ndarray, q: np.ndarray) -> Model:
    after = row("1/2", "1/2", *[0] * (p.size - 2))
    contexts = [(token,) for token in range(p.size)]
    return Model(p.size, 1, p={(): p, **dict.fromkeys(contexts, after)}, q={(): q})


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5])
def test_expected_acceptance_of_the_motivating_pair(k: int) -> None:
    golden = GOLDEN["motivating_pair p=[1/3,2/3] q=[2/3,1/3]: E[accepted drafts]"][str(k)]
    context_free = [tuple(bits) for n in range(k + 1) for bits in np.ndindex(*[2] * n)]
    model = Model(
        2,
        k,
        p=dict.fromkeys(context_free, row("1/3", "2/3")),
        q=dict.fromkeys(context_free, row("2/3", "1/3")),
    )
    assert expected_accepted(model, TOKEN) == Fraction(golden["token"])
    assert expected_accepted(model, BLOCK) == Fraction(golden["block"])


def test_acceptance_of_one_position() -> None:
    model = one_position(P4, Q4)
    rejection = GOLDEN[
        "accept prob P4,Q4: sample-and-match with sampled draft / with argmax draft /"
        " rejection sampling"
    ][2]
    assert expected_accepted(model, TOKEN) == Fraction(rejection) == Fraction(5, 8)
    assert np.minimum(P4, Q4).sum() == Fraction(GOLDEN["beta=sum min(p,q)"]["P4,Q4"])
    model.deterministic[()] = int(Q4.argmax())
    assert expected_accepted(model, TOKEN) == P4[Q4.argmax()] == Fraction(1, 4)


def test_argmax_draft_judged_with_soft_q_gives_the_golden_bias() -> None:
    golden = GOLDEN["wrong: argmax draft judged with p/q (P4,Q4)"]
    argmax_draft = [(Fraction(1), Draft((int(Q4.argmax()),), (Q4,)))]
    law = emission_law(
        one_position(P4, Q4), lambda p, draft: rule_emission(TOKEN, p, draft), argmax_draft
    )
    first = [sum(mass for tokens, mass in law.items() if tokens[0] == t) for t in range(4)]
    assert first == [Fraction(value) for value in golden["law"]]
    assert sum(abs(first - P4)) / 2 == Fraction(golden["tv"])


def test_dropping_a_drawn_token_gives_the_documented_bias() -> None:
    p, q = row("1/2", "1/2", 0), row("1/2", "1/4", "1/4")
    model = one_position(p, q)
    dropping = [(Fraction(1, 4), Draft())]
    dropping += [(mass, draft) for mass, draft in model.drafts() if draft.token_ids != (2,)]
    for rule in (TOKEN, BLOCK):

        def emit(rows, draft, rule=rule):
            return rule_emission(rule, rows, draft)

        law = completed(emission_law(model, emit, dropping), model)
        first = [sum(mass for tokens, mass in law.items() if tokens[0] == t) for t in range(3)]
        assert first == [Fraction(5, 8), Fraction(3, 8), 0]


@pytest.mark.parametrize(
    ("name", "p", "q"),
    [
        ("p=[1,0] q=[0,1]", row(1, 0), row(0, 1)),
        (
            "q has a token outside p (padded vocab) p=[1/2,1/2,0] q=[0,0,1]",
            row("1/2", "1/2", 0),
            row(0, 0, 1),
        ),
    ],
)
def test_zero_support(name: str, p: np.ndarray, q: np.ndarray) -> None:
    golden = GOLDEN["zero-support cases"][name]
    assert expected_accepted(one_position(p, q), TOKEN) == Fraction(golden["accept"])
    rest = residual(p, int(q.argmax()), q)
    assert list(rest / rest.sum()) == [Fraction(value) for value in golden["residual"]]


# Edges.


@both_rules
@pytest.mark.parametrize("dtype", [object, np.float64, np.float32])
def test_a_coin_of_zero_never_accepts_an_impossible_token(
    verify: Callable[..., Verdict], dtype: type
) -> None:
    p = as_rows([["0", "1"], ["1/2", "1/2"]], dtype)
    for q in (None, as_rows([["1/2", "1/2"]], dtype)[0]):
        assert verify(p, Draft((0,), (q,)), [0.0], 0.0) == Verdict((1,), 0)


@both_rules
def test_a_token_the_draft_could_not_have_drawn_is_rejected(verify: Callable[..., Verdict]) -> None:
    p = np.array([[0.5, 0.5], [0.5, 0.5]])
    assert verify(p, Draft((0,), (np.array([0.0, 1.0]),)), [0.0], 0.5) == Verdict((0,), 0)


@both_rules
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_equal_rows_accept_everything_and_their_empty_residual_falls_back_to_p(
    verify: Callable[..., Verdict], dtype: type
) -> None:
    p = np.tile(np.array([0.1, 0.2, 0.7], dtype), (3, 1))
    draft = Draft((0, 1), (p[0], p[1]))
    assert verify(p, draft, [0.999, 0.999], 0.2) == Verdict((0, 1, 1), 2)
    # Only rounding can reject here; a coin of 1 stands in for it.
    decision = token_decision(p, draft, [1.0, 1.0])
    assert decision.num_accepted == 0
    assert np.array_equal(decision.weights, p[0])


@both_rules
@pytest.mark.parametrize("token", [2, 11, 10**9, -1])
def test_draft_ids_outside_the_vocabulary_are_rejected(
    verify: Callable[..., Verdict], token: int
) -> None:
    p = np.array([[0.25, 0.75], [0.5, 0.5]], np.float32)
    wide = np.zeros(12, np.float32)
    wide[11] = 1.0
    for q in (None, wide):
        assert verify(p, Draft((token,), (q,)), [0.0], 0.2) == Verdict((0,), 0)
        assert verify(p, Draft((token,), (q,)), [0.0], 0.3) == Verdict((1,), 0)


@both_rules
def test_rows_of_other_width_are_compared_by_token_id(verify: Callable[..., Verdict]) -> None:
    p = as_rows([["1/2", "1/4", "1/4"], ["1", "0", "0"]], object)
    narrow, wide = row("1/4", "3/4"), row("1/4", "1/2", 0, "1/4")
    assert list(residual(p[0], 1, narrow)) == [Fraction(1, 4), 0, Fraction(1, 4)]
    assert list(residual(p[0], 1, wide)) == [Fraction(1, 4), 0, Fraction(1, 4)]
    assert verify(p, Draft((1,), (narrow,)), [Fraction(1, 3)], 0.6) == Verdict((2,), 0)
    assert verify(p, Draft((1,), (wide,)), [0.49], 0.6) == Verdict((1, 0), 1)


@both_rules
@pytest.mark.parametrize("bad", [np.full(4, np.nan), np.zeros(4), np.array([0.5, np.nan, 0.5, 0])])
def test_malformed_draft_rows_never_give_ids_outside_the_vocabulary(
    verify: Callable[..., Verdict], bad: np.ndarray
) -> None:
    p = np.full((3, 4), 0.25)
    for coin in (0.0, 0.5, 0.999):
        verdict = verify(p, Draft((1, 2), (bad, bad)), [coin, coin], coin)
        assert all(0 <= token < 4 for token in verdict.token_ids)


@both_rules
def test_an_empty_draft_draws_from_p(verify: Callable[..., Verdict]) -> None:
    assert verify(np.array([[0.25, 0.75]]), Draft(), [], 0.25) == Verdict((1,), 0)


@both_rules
def test_inputs_are_not_changed(verify: Callable[..., Verdict]) -> None:
    p, q = np.array([[0.9, 0.1], [0.5, 0.5], [0.5, 0.5]]), np.array([0.1, 0.9])
    for draft in (Draft((1, 1), (q, q)), Draft((1, 1))):
        before = p.copy(), q.copy()
        verify(p, draft, [0.99, 0.99], 0.5)
        assert np.array_equal(p, before[0])
        assert np.array_equal(q, before[1])


def test_residual_with_a_path_weight() -> None:
    p = row("1/2", "1/4", "1/4")
    assert list(residual(p, 0, None)) == [0, Fraction(1, 4), Fraction(1, 4)]
    assert list(residual(p, 0, None, Fraction(1, 2))) == [0, Fraction(1, 8), Fraction(1, 8)]
    assert list(residual(p, 0, row("1/8", "1/8", "3/4"), Fraction(1, 2))) == [Fraction(1, 8), 0, 0]


# Properties.


@st.composite
def steps(draw_value: st.DrawFn) -> tuple[np.ndarray, Draft, list[float], float]:
    """Exact rows, a draft the rows allow (or not), and coins with 0 among them."""
    vocab, k = draw_value(st.integers(1, 5)), draw_value(st.integers(0, 4))
    counts = st.lists(st.integers(0, 6), min_size=vocab, max_size=vocab).filter(any)

    def one_row() -> np.ndarray:
        values = draw_value(counts)
        return row(*(Fraction(value, sum(values)) for value in values))

    p = np.stack([one_row() for _ in range(k + 1)])
    q = tuple(draw_value(st.sampled_from([None, one_row(), p[i]])) for i in range(k))
    tokens = tuple(draw_value(st.integers(0, vocab)) for _ in range(k))
    coins = st.one_of(st.just(0.0), st.floats(0, 1, exclude_max=True))
    return p, Draft(tokens, q), [draw_value(coins) for _ in range(k)], draw_value(coins)


@given(steps())
def test_every_verdict_is_possible_for_the_target(step: tuple) -> None:
    p, draft, coins, final_coin = step
    for verify in (token_verify, block_verify):
        verdict = verify(p, draft, coins, final_coin)
        n = verdict.num_accepted
        assert len(verdict.token_ids) == n + 1
        assert verdict.token_ids[:n] == draft.token_ids[:n]
        assert all(p[i][token] > 0 for i, token in enumerate(verdict.token_ids))


@given(steps())
def test_float_rows_decide_like_exact_rows(step: tuple) -> None:
    """Thresholds agree to rounding, and so do the laws of the final token."""
    p, draft, _, _ = step
    for dtype, tolerance in ((np.float32, 2e-6), (np.float64, 1e-14)):
        float_q = tuple(None if q is None else q.astype(dtype) for q in draft.q or ())
        float_draft = Draft(draft.token_ids, float_q)
        float_p = p.astype(dtype)
        assert token_thresholds(float_p, float_draft) == pytest.approx(
            [float(value) for value in token_thresholds(p, draft)], abs=tolerance
        )
        assert path_weights(float_p, float_draft) == pytest.approx(
            [float(value) for value in path_weights(p, draft)], abs=tolerance
        )


@given(steps())
def test_one_hot_rows_and_none_are_the_same_claim(step: tuple) -> None:
    """A draft without q decides exactly as one whose q is written out as one-hot rows."""
    p, draft, coins, final_coin = step
    vocab = p.shape[1]
    one_hot = []
    for token in draft.token_ids:
        dense = row(*[0] * max(vocab, token + 1))
        dense[token] = Fraction(1)
        one_hot.append(dense)
    dense_draft, bare_draft = Draft(draft.token_ids, tuple(one_hot)), Draft(draft.token_ids)
    assert block_thresholds(p, dense_draft) == block_thresholds(p, bare_draft)
    for verify in (token_verify, block_verify):
        assert verify(p, dense_draft, coins, final_coin) == verify(p, bare_draft, coins, final_coin)


def test_greedy_rows_make_every_rule_the_same() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        chosen = rng.integers(0, 3, size=4)
        p = np.eye(3)[chosen]
        tokens = tuple(int(token) for token in rng.integers(0, 3, size=3))
        q = rng.dirichlet(np.ones(3), size=3)
        coins = list(rng.random(3))
        expected = token_verify(p, Draft(tokens), coins, 0.5)
        assert block_verify(p, Draft(tokens), coins, 0.5) == expected
        assert list(expected.token_ids) == list(chosen[: expected.num_accepted + 1])
        soft = Draft(tokens, tuple(q))
        assert token_verify(p, soft, coins, 0.5).token_ids[0] == chosen[0]


# The float path as it runs: laws by simulation.

VOCAB, K, NUM_STEPS = 8, 2, 20_000
Step = Callable[[np.ndarray, Draft, np.ndarray], Decision]


def pair_law_p_value(decide: Step, sampled: bool) -> float:
    """Chi-square p-value of the first two tokens' joint law, 64 cells, against the target's."""
    rng = np.random.default_rng(5)
    p_table = rng.dirichlet(np.full(VOCAB, 0.7), size=VOCAB).astype(np.float32)
    q_table = rng.dirichlet(np.full(VOCAB, 0.7), size=VOCAB).astype(np.float32)
    counts = np.zeros((VOCAB, VOCAB))
    coins = rng.random((NUM_STEPS, 2 * K + 2))
    for step in coins:
        tokens: tuple[int, ...] = ()
        for i in range(K):
            q_row = q_table[tokens[-1] if tokens else 0]
            tokens += (draw(q_row, step[i]) if sampled else int(q_row.argmax()),)
        contexts = [0, *tokens]
        q = tuple(q_table[context] for context in contexts[:K]) if sampled else None
        decision = decide(p_table[contexts], Draft(tokens, q), step[K : 2 * K])
        output = [*tokens[: decision.num_accepted], draw(decision.weights, step[2 * K])]
        if len(output) == 1:
            output.append(draw(p_table[output[0]], step[2 * K + 1]))
        counts[output[0], output[1]] += 1
    expected = p_table[0][:, None].astype(np.float64) * p_table
    expected *= NUM_STEPS / expected.sum()
    common = expected > 5  # pool the rare cells, as the chi-square approximation asks
    observed = [*counts[common], counts[~common].sum()]
    return chisquare(observed, [*expected[common], expected[~common].sum()]).pvalue


@pytest.mark.parametrize("sampled", [True, False], ids=["sampled draft", "argmax draft"])
@pytest.mark.parametrize("decide", [token_decision, block_decision])
@pytest.mark.usefixtures("unchecked_shapes")
def test_the_float_path_has_the_targets_law(decide: Step, sampled: bool) -> None:
    assert pair_law_p_value(decide, sampled) > 1e-4


def _replacement_from_p(p: np.ndarray, draft: Draft, coins: np.ndarray) -> Decision:
    num_accepted = token_decision(p, draft, coins).num_accepted
    return Decision(num_accepted, p[num_accepted])


@pytest.mark.usefixtures("unchecked_shapes")
def test_the_simulation_catches_replacement_from_p() -> None:
    assert pair_law_p_value(_replacement_from_p, sampled=True) < 1e-8
