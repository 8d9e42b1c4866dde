"""The public step over callables: its law, its contract with both functions, its errors."""

from __future__ import annotations

import doctest
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

import outpace
from outpace import speculative
from outpace.errors import OptionError
from outpace.speculative import SpeculativeStep, speculative_step

P = np.array([[0.1, 0.6, 0.3], [0.5, 0.2, 0.3], [0.3, 0.3, 0.4]])
Q = np.array([[0.2, 0.5, 0.3], [0.4, 0.4, 0.2], [0.1, 0.6, 0.3]])


def target(ids: list[int]) -> np.ndarray:
    return P[ids]


def drafter(ids: list[int]) -> np.ndarray:
    return Q[ids]


def argmax_drafter(ids: list[int]) -> int:
    return int(Q[ids[-1]].argmax())


def test_the_example_in_the_docstring_runs() -> None:
    result = doctest.testmod(speculative)
    assert result.attempted > 0
    assert result.failed == 0


def test_it_is_public() -> None:
    assert outpace.speculative_step is speculative_step


def pair_p_value(step: Callable[[np.random.Generator], SpeculativeStep]) -> float:
    """Chi-square p-value of the first two tokens after token 0, completed by the target."""
    rng = np.random.default_rng(11)
    counts = np.zeros((3, 3))
    for _ in range(8_000):
        output = step(rng).token_ids
        second = output[1] if len(output) > 1 else rng.choice(3, p=P[output[0]])
        counts[output[0], second] += 1
    expected = P[0][:, None] * P * 8_000
    return chisquare(counts.ravel(), expected.ravel()).pvalue


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("draft_fn", [drafter, argmax_drafter])
@pytest.mark.parametrize("rule", ["token", "block"])
def test_the_law_is_the_targets(rule: Any, draft_fn: Callable[[list[int]], Any]) -> None:
    assert (
        pair_p_value(lambda rng: speculative_step(target, draft_fn, [0], 2, rng=rng, rule=rule))
        > 1e-4
    )


@pytest.mark.usefixtures("unchecked_shapes")
def test_a_false_claim_is_caught() -> None:
    """Negative control: an argmax draft passed off as drawn from the soft q."""

    def step(rng: np.random.Generator) -> SpeculativeStep:
        honest = speculative.draw
        try:
            speculative.draw = lambda row, coin: int(row.argmax())  # type: ignore[assignment]
            return speculative_step(target, drafter, [0], 2, rng=rng)
        finally:
            speculative.draw = honest

    assert pair_p_value(step) < 1e-8


def test_k_0_samples_one_token_and_never_drafts() -> None:
    def never(ids: list[int]) -> int:
        raise AssertionError("drafted with k = 0")

    step = speculative_step(target, never, [0], 0)
    assert len(step.token_ids) == 1
    assert (step.num_accepted, step.draft_token_ids) == (0, ())


@pytest.mark.parametrize("rule", ["token", "block"])
@pytest.mark.parametrize("k", [1, 2, 5])
def test_a_perfect_drafter_is_always_accepted(k: int, rule: Any) -> None:
    for seed in range(50):
        step = speculative_step(
            target, target, [0, 1], k, rng=np.random.default_rng(seed), rule=rule
        )
        assert step.num_accepted == k
        assert len(step.token_ids) == k + 1
        assert step.token_ids[:k] == step.draft_token_ids


def test_an_impossible_draft_yields_one_token() -> None:
    p = np.array([[1.0, 0.0], [1.0, 0.0]])
    step = speculative_step(lambda ids: p[ids], lambda ids: 1, [0], 3)
    assert step == SpeculativeStep((0,), 0, (1, 1, 1))


def test_the_target_is_called_once_with_the_draft() -> None:
    calls = []

    def counting(ids: list[int]) -> np.ndarray:
        calls.append(list(ids))
        return P[ids]

    step = speculative_step(counting, argmax_drafter, (2, 0), 3)
    assert calls == [[2, 0, *step.draft_token_ids]]


def test_the_drafter_sees_its_own_tokens() -> None:
    calls: list[list[int]] = []

    def counting(ids: list[int]) -> int:
        calls.append(list(ids))
        return len(calls) - 1

    speculative_step(target, counting, [2], 3)
    assert calls == [[2], [2, 0], [2, 0, 1]]


def test_the_same_rng_gives_the_same_step() -> None:
    first, second = (
        speculative_step(target, drafter, [0], 4, rng=np.random.default_rng(3)) for _ in range(2)
    )
    assert first == second
    assert len({speculative_step(target, drafter, [0], 4).token_ids for _ in range(50)}) > 1


def test_lists_tensors_and_fractions_are_welcome() -> None:
    exact = np.empty((3, 3), dtype=object)
    exact[:] = [[Fraction(value).limit_denominator(10) for value in row] for row in P]
    for fn in (
        lambda ids: P[ids].tolist(),
        lambda ids: torch.tensor(P[ids], dtype=torch.float32),
        lambda ids: exact[ids],
        lambda ids: P.astype(np.float32)[ids],
    ):
        assert speculative_step(fn, fn, [0], 3).num_accepted == 3


def test_vocabularies_of_other_width() -> None:
    """The drafter wastes mass on an id the target does not have; the law is still the target's."""
    p = np.tile([0.25, 0.75], (4, 1))
    rng = np.random.default_rng(0)
    outputs = [
        speculative_step(lambda ids: p[: len(ids)], lambda ids: [0.5, 0.0, 0.5], [0], 1, rng=rng)
        for _ in range(4000)
    ]
    counts = np.bincount([step.token_ids[0] for step in outputs], minlength=2)
    assert chisquare(counts, [1000, 3000]).pvalue > 1e-4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ids": []}, "at least one token id"),
        ({"ids": [0, -1]}, "ids must be token ids .* got -1"),
        ({"ids": [0.5]}, "ids must be token ids .* got 0.5"),
        ({"k": -1}, "k must be a whole number of at least 0, got -1"),
        ({"k": 2.0}, "k must be a whole number"),
        ({"k": True}, "k must be a whole number"),
        ({"rule": "typical"}, "rule must be 'token' or 'block', got 'typical'"),
        ({"target_fn": lambda ids: P[ids[-1]]}, r"shape \(3, V\); it returned shape \(3,\)"),
        ({"target_fn": lambda ids: P[ids][:-1]}, r"shape \(3, V\); it returned shape \(2, 3\)"),
        ({"target_fn": lambda ids: 2 * P[ids]}, "target_fn returned a row that sums to 2"),
        ({"target_fn": lambda ids: np.log(P[ids])}, "target_fn returned negative or NaN"),
        ({"target_fn": lambda ids: P[ids] * np.nan}, "target_fn returned negative or NaN"),
        ({"target_fn": lambda ids: P[None]}, r"target_fn must return .* got shape \(1, 3, 3\)"),
        ({"draft_fn": lambda ids: [0.5, 0.4]}, "draft_fn returned a row that sums to 0.9"),
        ({"draft_fn": lambda ids: [-0.5, 1.5]}, "draft_fn returned negative or NaN"),
        ({"draft_fn": lambda ids: []}, r"draft_fn must return .* got shape \(0,\)"),
        ({"draft_fn": lambda ids: -1}, "draft_fn must return token ids .* got -1"),
        ({"draft_fn": lambda ids: True}, "draft_fn must return token ids"),
    ],
)
def test_errors_say_what_was_given_and_expected(changes: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "target_fn": target,
        "draft_fn": argmax_drafter,
        "ids": [0],
        "k": 2,
        **changes,
    }
    rule = arguments.pop("rule", "block")
    with pytest.raises(OptionError, match=message):
        speculative_step(**arguments, rule=rule)
