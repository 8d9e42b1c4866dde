"""Acceptance probabilities: by hand, by enumeration, and against how often drafts are accepted."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from laws import PROMPT, SMALL, SMALL_DRAFT, SMALL_VOCAB
from scripted import sampled, scripted, siblings

from outpace import LLM, SamplingParams
from outpace.engine import setup
from outpace.measure.acceptance import Acceptances, acceptance_probability, overlap
from outpace.types import Draft
from outpace.verification.tree import recursive_decision


@pytest.fixture(scope="module", autouse=True)
def _unchecked(unchecked_shapes_in_module: None) -> None:
    """Whole engines run here."""


P = np.array([0.5, 0.2, 0.2, 0.1])
Q = np.array([0.1, 0.4, 0.3, 0.2])
MOST_SIGMAS = 4.0
Seeded = Callable[[int], None]


@pytest.fixture
def seeded(monkeypatch: pytest.MonkeyPatch) -> Seeded:
    """Engines made from now on draw from this seed."""

    def choose(seed: int) -> None:
        make = np.random.Generator
        monkeypatch.setattr(
            setup.np.random, "default_rng", lambda *given: make(np.random.PCG64(*given or (seed,)))
        )

    return choose


def test_overlap_by_hand() -> None:
    """0.1 + 0.2 + 0.2 + 0.1; a total variation of (0.4 + 0.2 + 0.1 + 0.1) / 2 = 0.4."""
    assert overlap(P, 1, Q) == pytest.approx(0.6)
    assert overlap(P, 0, None) == 0.5
    assert overlap(P, 7, None) == 0.0
    assert overlap(P, 1, np.append(Q * 0.5, 0.5)) == pytest.approx(0.5)
    assert overlap(P, 0, Q[:2] / 0.5) == pytest.approx(0.2 + 0.2)


def test_deterministic_siblings_add_up() -> None:
    draft = Draft((0, 2, 0), parents=(-1, -1, -1))
    assert acceptance_probability(P, draft, [0, 1, 2]) == pytest.approx(0.7)
    assert acceptance_probability(P, draft, []) == 0.0


def test_siblings_as_recursive_rejection_takes_them() -> None:
    """Three children drawn without replacement: the mean over their draws of what is computed is
    the probability, summed over all draws and coins, that one is accepted."""
    computed = exact = 0.0
    for tokens in permutations(range(4), 3):
        laws, chance, rest = [], 1.0, Q.copy()
        for token in tokens:
            law = rest / rest.sum()
            laws.append(law)
            chance *= law[token]
            rest[token] = 0
        draft = Draft(tokens, tuple(laws), parents=(-1, -1, -1))
        computed += chance * acceptance_probability(P, draft, [0, 1, 2])
        exact += chance * _accepted(draft)
    assert computed == pytest.approx(exact, abs=1e-12)
    assert exact < 1 - 1e-3


def _accepted(draft: Draft) -> float:
    """How likely the rule accepts a child, from the least coin at which each one is rejected."""
    rejected = 1.0
    coins = [0.0, 0.0, 0.0]
    for node in range(3):
        low, high = 0.0, 1.0
        for _ in range(44):  # bisection: the rule is a threshold for each coin
            coins[node] = (low + high) / 2
            rows = np.stack([P] * 4)
            nodes = recursive_decision(rows, draft, coins).nodes
            low, high = (coins[node], high) if nodes == (node,) else (low, coins[node])
        rejected *= 1 - low
        coins[node] = math.nextafter(1.0, 0.0)
    return 1 - rejected


DRAFTERS: dict[str, dict[str, Any]] = {
    "one sampled token": {"method": "draft_model", "model": SMALL_DRAFT, "K": 1},
    "copied tokens": {"method": "ngram", "K": 3},
    "a tree of likely tokens": {"method": "recycling", "K": 6},
}


def counted(config: dict[str, Any], params: SamplingParams) -> Acceptances:
    config = dict(config)
    config["num_speculative_tokens"] = config.pop("K")
    found = Acceptances()
    with LLM(SMALL, speculative_config=config, instruments=found.instruments()) as llm:
        llm.generate([{"prompt_token_ids": PROMPT}] * 60, params)
    return found


def sigmas(found: Acceptances) -> float:
    """How far what was counted is from what was computed. The variance of a sum of throws of
    different coins is no larger than that of as many throws of their mean."""
    assert found.alpha is not None
    assert found.accepted_share is not None
    num_reached = sum(position.num_reached for position in found.positions)
    sigma = math.sqrt(found.alpha * (1 - found.alpha) / num_reached)
    return abs(found.accepted_share - found.alpha) / sigma


@pytest.mark.parametrize("name", DRAFTERS)
def test_the_mean_is_how_often_drafts_are_accepted(name: str, seeded: Seeded) -> None:
    seeded(1)
    found = counted(DRAFTERS[name], SamplingParams(max_tokens=24, ignore_eos=True))
    assert sum(position.num_reached for position in found.positions) > 700
    assert sigmas(found) < MOST_SIGMAS


def test_a_false_claim_of_q_shows(seeded: Seeded) -> None:
    """The control: tokens that were not drawn from their q are accepted at another rate."""
    seeded(1)
    q = 2.0 ** np.arange(SMALL_VOCAB)
    q /= q.sum()
    params = SamplingParams(max_tokens=24, ignore_eos=True)
    honest = {"method": scripted(sampled(q)), "K": 1}
    lying = {"method": scripted(sampled(q, claim=q[::-1].copy())), "K": 1}
    assert sigmas(counted(honest, params)) < MOST_SIGMAS
    assert sigmas(counted(lying, params)) > MOST_SIGMAS


def test_greedy_is_counted_exactly() -> None:
    found = counted(DRAFTERS["copied tokens"], SamplingParams(temperature=0, max_tokens=24))
    assert found.alpha == found.accepted_share
    assert [position.sum_probability for position in found.positions] == [
        position.num_accepted for position in found.positions
    ]


def test_sums_can_be_added() -> None:
    one, two = Acceptances(), Acceptances()
    one.count(0, 0.5, is_accepted=True)
    two.count(0, 0.25, is_accepted=False)
    two.count(1, 1.0, is_accepted=True)
    one.add(two)
    first, second = one.positions
    assert (first.num_reached, first.num_accepted, first.alpha) == (2, 1, 0.375)
    assert (second.num_reached, second.alpha, second.accepted_share) == (1, 1.0, 1.0)
    assert one.alpha == pytest.approx(1.75 / 3)
    one.clear()
    assert (one.alpha, one.accepted_share) == (None, None)


def test_counting_changes_nothing(seeded: Seeded) -> None:
    q = np.full(SMALL_VOCAB, 1 / SMALL_VOCAB)

    def answers(**options: Any) -> list[list[int]]:
        seeded(5)
        config = {"method": scripted(siblings(q)), "num_speculative_tokens": 5}
        with LLM(SMALL, speculative_config=config, **options) as llm:
            params = replace(SamplingParams(max_tokens=30), ignore_eos=True)
            outputs = llm.generate([{"prompt_token_ids": PROMPT}] * 3, params)
        return [output.outputs[0].token_ids for output in outputs]

    assert answers(instruments=Acceptances().instruments()) == answers()
