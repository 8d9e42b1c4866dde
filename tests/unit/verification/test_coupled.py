"""Sample-and-match: the run of matches, and the law and independence of the keyed noise."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2_contingency, chisquare, kstest

from outpace.types import Verdict
from outpace.verification import coupled
from outpace.verification.coupled import choose, match

GOLDEN = json.loads((Path(__file__).parents[2] / "vectors" / "golden.json").read_text())
P4 = np.array([1 / 2, 1 / 4, 1 / 8, 1 / 8])
Q4 = np.array([1 / 8, 1 / 2, 1 / 4, 1 / 8])
P8 = np.array([0.3, 0.2, 0.15, 0.12, 0.1, 0.08, 0.04, 0.01], np.float32)
pytestmark = pytest.mark.usefixtures("unchecked_shapes")
Choose = Callable[[np.ndarray, int, int, int], int]


@pytest.mark.parametrize(
    ("draft", "chosen", "expected"),
    [
        ((), [4], Verdict((4,), 0)),
        ((4,), [4, 5], Verdict((4, 5), 1)),
        ((4,), [5, 6], Verdict((5,), 0)),
        ((1, 2, 3), [1, 9, 3, 4], Verdict((1, 9), 1)),
        ((1, 2, 3), [1, 2, 3, 4], Verdict((1, 2, 3, 4), 3)),
        ((1, 2, -1), [1, 2, 0, 4], Verdict((1, 2, 0), 2)),
    ],
)
def test_match(draft: tuple[int, ...], chosen: list[int], expected: Verdict) -> None:
    assert match(draft, chosen) == expected


# The noise itself.

PINNED_CHOICES = [1, 3, 4, 1, 4, 5, 4, 2, 0, 2, 0, 3, 0, 0, 2, 2, 0, 0, 0, 2]
PINNED_EDGES = [4, 2, 2]


def test_noise_is_splitmix64() -> None:
    """Known answers: the first outputs of SplitMix64 seeded with 1234567."""
    expected = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    uniform = coupled._uniform(np.arange(5, dtype=np.uint64), 1234567)
    assert list(uniform) == [((bits >> 12) + 0.5) / 2**52 for bits in expected]


def test_seeds_keep_their_meaning() -> None:
    """A change of these numbers changes every seeded answer ever given: say so in the log."""
    chosen = [choose(P8, seed, 0, position) for seed in (0, 42) for position in range(10)]
    assert chosen == PINNED_CHOICES
    edges = [choose(P8, seed, 3, 10**6) for seed in (-(2**63), -1, 2**64 - 1)]
    assert edges == PINNED_EDGES


def test_uniforms_are_uniform_and_strictly_inside() -> None:
    uniform = coupled._uniform(np.arange(100_000, dtype=np.uint64), coupled.noise_key(1, 2, 3))
    assert kstest(uniform, "uniform").pvalue > 1e-4
    assert 0 < uniform.min() < uniform.max() < 1


def _inverse_mix(value: int) -> int:
    """The state that SplitMix64's output function maps to `value`."""
    for shift, factor in ((31, coupled._SECOND_FACTOR), (27, coupled._FIRST_FACTOR), (30, 1)):
        undone = value
        for _ in range(64 // shift + 1):
            undone = value ^ (undone >> shift)
        value = undone * pow(factor, -1, 2**64) % 2**64
    return value


@pytest.mark.parametrize(("bits", "expected"), [(0, 2.0**-53), (2**64 - 1, 1 - 2.0**-53)])
def test_the_extreme_bits_stay_inside(bits: int, expected: float) -> None:
    key = (_inverse_mix(bits) - coupled._STEP) % 2**64
    assert coupled._mix(key + coupled._STEP) == bits
    assert coupled._uniform(np.zeros(1, np.uint64), key)[0] == expected


@pytest.mark.parametrize("part", ["seed", "choice", "position"])
def test_one_bit_of_the_key_changes_half_of_all_bits(part: str) -> None:
    """Avalanche: flipping any low bit of a key part flips about half of the 52 noise bits."""
    counts = []
    for bit in range(12):
        keys = []
        for value in (5, 5 ^ (1 << bit)):
            keys.append(coupled.noise_key(**{"seed": 1, "choice": 1, "position": 1, part: value}))
        first, second = (coupled._uniform(np.arange(256, dtype=np.uint64), key) for key in keys)
        bits = [(u * 2.0**52).astype(np.uint64) for u in (first, second)]
        counts.append(np.bitwise_count(bits[0] ^ bits[1]).mean())
    assert np.allclose(counts, 26, atol=1.0)


# The law of the choices.


def law_p_value(choose: Choose, keys: list[tuple[int, int, int]]) -> float:
    counts = np.bincount([choose(P8, *key) for key in keys], minlength=P8.size)
    return chisquare(counts, P8 / P8.sum(dtype=np.float64) * len(keys)).pvalue


KEYS = {
    "positions": [(7, 0, position) for position in range(20_000)],
    "seeds": [(seed, 0, 0) for seed in range(20_000)],
    "choices": [(7, choice, 3) for choice in range(20_000)],
    "seeds and positions together": [(i, 0, i) for i in range(20_000)],
}


@pytest.mark.parametrize("keys", KEYS.values(), ids=KEYS)
def test_choices_follow_p(keys: list[tuple[int, int, int]]) -> None:
    assert law_p_value(choose, keys) > 1e-4


def _without_the_token_id(p_row: np.ndarray, seed: int, choice: int, position: int) -> int:
    """The mistake: one uniform for all tokens, so the most probable token always wins."""
    key = coupled.noise_key(seed, choice, position)
    uniform = coupled._uniform(np.zeros(1, np.uint64), key)
    return int((-np.log1p(-uniform) / p_row).argmin())


def _with_a_weak_hash(p_row: np.ndarray, seed: int, choice: int, position: int) -> int:
    """The mistake: key parts added up instead of mixed, so neighbours share their noise."""
    uniform = coupled._uniform(np.arange(p_row.size, dtype=np.uint64), seed + choice + position)
    return int((-np.log1p(-uniform) / p_row).argmin())


def test_noise_without_the_token_id_is_caught() -> None:
    assert law_p_value(_without_the_token_id, KEYS["positions"]) < 1e-8


NEIGHBOURS = {
    "positions": [((seed, 0, 4), (seed, 0, 5)) for seed in range(10_000)],
    "choices": [((seed, 0, 4), (seed, 1, 4)) for seed in range(10_000)],
    "seeds": [((2 * i, 0, 4), (2 * i + 1, 0, 4)) for i in range(10_000)],
    "seed against position": [((i, 0, i + 1), (i + 1, 0, i)) for i in range(0, 20_000, 2)],
}


def independence_p_value(choose: Choose, pairs: list[tuple[tuple, tuple]]) -> float:
    table = np.zeros((P8.size, P8.size))
    for first, second in pairs:
        table[choose(P8, *first), choose(P8, *second)] += 1
    return chi2_contingency(table[:7, :7]).pvalue


@pytest.mark.parametrize("pairs", NEIGHBOURS.values(), ids=NEIGHBOURS)
def test_neighbouring_choices_are_independent(pairs: list[tuple[tuple, tuple]]) -> None:
    assert independence_p_value(choose, pairs) > 1e-4


def test_a_weak_hash_is_caught() -> None:
    assert independence_p_value(_with_a_weak_hash, NEIGHBOURS["seed against position"]) < 1e-8


def test_noise_of_different_tokens_is_independent() -> None:
    """With two tokens kept out of eight, which one wins says nothing about two others."""
    one, other = np.zeros(8), np.zeros(8)
    one[[0, 1]], other[[2, 3]] = 0.5, 0.5
    table = np.zeros((2, 2))
    for position in range(10_000):
        table[choose(one, 3, 0, position), choose(other, 3, 0, position) - 2] += 1
    assert chi2_contingency(table).pvalue > 1e-4
    assert chisquare(table.sum(axis=1)).pvalue > 1e-4


def test_shared_noise_matches_as_often_as_predicted() -> None:
    """P(same choice) = sum_i 1 / sum_j max(p_j/p_i, q_j/q_i): 13/22 here, 15/64 if independent."""
    golden = GOLDEN["shared-noise (Gumbel) coupling P4,Q4: match prob"]
    predicted = sum(1 / np.maximum(P4 / P4[i], Q4 / Q4[i]).sum() for i in range(4))
    assert predicted == pytest.approx(float(Fraction(golden["exact"])), abs=1e-15)
    num = 15_000
    same = sum(choose(P4, 1, 0, t) == choose(Q4, 1, 0, t) for t in range(num))
    apart = sum(choose(P4, 1, 0, t) == choose(Q4, 1, 1, t) for t in range(num))
    for count, law in ((same, golden["exact"]), (apart, golden["independent"])):
        rate = float(Fraction(law))
        assert chisquare([count, num - count], [num * rate, num * (1 - rate)]).pvalue > 1e-4


# The choice is the exact argmin.


def brute_force(p_row: np.ndarray, seed: int, choice: int, position: int) -> int:
    key = coupled.noise_key(seed, choice, position)
    uniform = coupled._uniform(np.arange(p_row.size, dtype=np.uint64), key)
    with np.errstate(divide="ignore"):
        return int((-np.log1p(-uniform) / p_row.astype(np.float64)).argmin())


@pytest.mark.parametrize("concentration", [0.01, 0.1, 1.0, 100.0])
def test_choose_is_the_argmin_over_all_tokens(concentration: float) -> None:
    rng = np.random.default_rng(1)
    for position in range(200):
        p_row = rng.dirichlet(np.full(500, concentration)).astype(np.float32)
        assert choose(p_row, 9, 2, position) == brute_force(p_row, 9, 2, position)


def test_filtering_other_tokens_does_not_change_the_noise() -> None:
    """A token that wins among all still wins when others are removed."""
    for position in range(200):
        winner = choose(P8, 4, 0, position)
        filtered = P8.copy()
        filtered[[t for t in range(8) if t not in (winner, 0)]] = 0
        assert choose(filtered, 4, 0, position) == winner


@given(
    st.lists(st.sampled_from([0.0, 1e-45, 1e-30, 0.25, 1.0]), min_size=1, max_size=9).filter(any),
    st.integers(-(2**63), 2**64 - 1),
    st.integers(0, 10),
    st.integers(0, 10**7),
)
def test_only_tokens_with_mass_are_chosen(
    values: list[float], seed: int, choice: int, position: int
) -> None:
    p_row = np.array(values, np.float32)
    if p_row.any():
        token = choose(p_row, seed, choice, position)
        assert p_row[token] > 0
        assert token == choose(p_row, seed, choice, position)


def test_inputs_are_not_changed() -> None:
    p_row = P8.copy()
    choose(p_row, 1, 0, 0)
    assert np.array_equal(p_row, P8)
