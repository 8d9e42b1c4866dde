"""Both chain rules and sample-and-match keep the target's joint law: proved in rationals.

What runs is the shipped code on `Fraction` rows. Every check has negative controls: known wrong
rules must fail it on many of the same models.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest
from exact_means import expected_accepted

from outpace.measure.audit.exact_law import (
    BLOCK,
    TOKEN,
    Rule,
    Tokens,
    completed,
    decisions,
    emission_law,
    is_lossless,
    random_model,
    row,
    rule_emission,
)
from outpace.measure.audit.exact_rules import (
    WRONG_RULES,
    argmax_drafts,
    chain_emission,
    dropping_drafts,
    match_emission,
)
from outpace.types import Draft
from outpace.verification.chain import Decision, token_decision, token_thresholds

pytestmark = pytest.mark.usefixtures("unchecked_shapes")
NUM_MODELS = 100
NUM_CONTROL_MODELS = 40


token_emission = chain_emission(TOKEN)
block_emission = chain_emission(BLOCK)


@pytest.mark.parametrize("seed", range(NUM_MODELS))
def test_joint_law_is_the_targets(seed: int) -> None:
    model = random_model(seed)
    target = model.target_law()
    assert sum(target.values()) == 1
    for emit in (token_emission, block_emission, match_emission):
        assert completed(emission_law(model, emit), model) == target, emit


def test_the_models_cover_the_hard_cases() -> None:
    models = [random_model(seed) for seed in range(NUM_MODELS)]
    drafts = [(model, draft) for model in models for _, draft in model.drafts()]
    assert {model.k for model in models} == {1, 2, 3}
    assert any(0 in p_row for model in models for p_row in model.p.values())
    kinds = [{q_row is None for q_row in draft.q or ()} for _, draft in drafts]
    assert {True} in kinds
    assert {False} in kinds
    assert {True, False} in kinds
    assert any(max(draft.token_ids) >= model.vocab for model, draft in drafts)
    widths = {q_row.size - model.vocab for model in models for q_row in model.q.values()}
    assert widths == {-1, 0, 1}


def test_block_accepts_at_least_as_many_tokens_in_expectation() -> None:
    strictly_better = 0
    for seed in range(NUM_MODELS):
        model = random_model(seed)
        token, block = expected_accepted(model, TOKEN), expected_accepted(model, BLOCK)
        assert block >= token
        if model.k == 1:
            assert block == token
        strictly_better += block > token
    assert strictly_better > 20


def test_block_equals_token_for_deterministic_drafts() -> None:
    for seed in range(30):
        model = random_model(seed)
        model.deterministic = dict.fromkeys(model.q, 0)
        assert emission_law(model, token_emission) == emission_law(model, block_emission)


# Negative controls: each is a mistake in circulation, and each must fail the check above.


def _accepts_at_equality(p: np.ndarray, draft: Draft, coins: list) -> Decision:
    thresholds = token_thresholds(p, draft)
    shifted = [
        Fraction(0) if coin <= threshold else Fraction(1)
        for coin, threshold in zip(coins, thresholds, strict=True)
    ]
    return token_decision(p, draft, shifted)


def _stops_at_first_failure(p: np.ndarray, draft: Draft, coins: list) -> Decision:
    """Block verification's thresholds applied like token verification's."""
    thresholds = BLOCK.thresholds(p, draft)
    num_accepted = 0
    while num_accepted < len(draft) and coins[num_accepted] < thresholds[num_accepted]:
        num_accepted += 1
    kept = [Fraction(1)] * len(draft)
    if num_accepted:
        kept[num_accepted - 1] = Fraction(coins[num_accepted - 1])
    return BLOCK.decide(p, draft, kept)


WRONG = {
    **WRONG_RULES,
    "block thresholds, stopping at the first failure": Rule(
        BLOCK.thresholds, _stops_at_first_failure
    ),
}


def _num_biased(emit, drafts=None) -> int:
    models = [random_model(seed) for seed in range(NUM_CONTROL_MODELS)]
    return sum(
        not is_lossless(model, emit, None if drafts is None else drafts(model)) for model in models
    )


@pytest.mark.parametrize("name", WRONG)
def test_wrong_rules_are_caught(name: str) -> None:
    assert _num_biased(lambda p, draft: rule_emission(WRONG[name], p, draft)) > 5


def test_all_accepted_by_counting_is_caught() -> None:
    """A rejection at the last position also yields k tokens; here it earns a bonus token."""

    def emit(p: np.ndarray, draft: Draft) -> Iterator[tuple[Fraction, Tokens]]:
        for share, tokens in token_emission(p, draft):
            if len(tokens) != len(draft):
                yield share, tokens
                continue
            for bonus, p_bonus in enumerate(p[len(draft)]):
                if p_bonus > 0:
                    yield share * p_bonus, (*tokens, bonus)

    assert _num_biased(emit) > 5


@pytest.mark.parametrize("emit", [token_emission, block_emission])
@pytest.mark.parametrize("drafts", [argmax_drafts, dropping_drafts])
def test_false_claims_about_q_are_caught(emit, drafts) -> None:
    assert _num_biased(emit, drafts) > 5


@pytest.mark.parametrize("emit", [token_emission, block_emission])
def testargmax_drafts_judged_one_hot_are_lossless(emit) -> None:
    """The cure of the control above: the same drafts with q = None."""
    for seed in range(NUM_CONTROL_MODELS):
        model = random_model(seed)
        drafts = [(mass, Draft(draft.token_ids)) for mass, draft in argmax_drafts(model)]
        assert is_lossless(model, emit, drafts)


def test_match_is_lossless_for_any_drafts() -> None:
    """Sample-and-match reads no q, so even dropped draws and argmax drafts do it no harm."""
    for seed in range(NUM_CONTROL_MODELS):
        model = random_model(seed)
        assert is_lossless(model, match_emission, argmax_drafts(model))
        assert is_lossless(model, match_emission, dropping_drafts(model))


def test_probing_the_coins_can_fail() -> None:
    """The enumeration notices a rule that decides otherwise exactly at its threshold."""
    p = np.stack([row("1/3", "2/3"), row("1/2", "1/2")])
    draft = Draft((0,), (row("2/3", "1/3"),))
    assert len(list(decisions(TOKEN, p, draft))) == 2
    with pytest.raises(AssertionError):
        list(decisions(Rule(token_thresholds, _accepts_at_equality), p, draft))
