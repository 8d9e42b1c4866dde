"""Probabilities against a slow reference and at their edges; draws; log-probabilities."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from outpace.errors import ModelError
from outpace.sampling import draw, probabilities, raw_logprobs
from outpace.types import SamplingParams

INF = math.inf


def one_row(values: list[float], dtype: torch.dtype = torch.float64, **asked: float) -> list[float]:
    """The distribution of one row of logits."""
    params = SamplingParams(**asked)  # type: ignore[arg-type]
    return probabilities(torch.tensor([values], dtype=dtype), [params])[0].tolist()


def reference(values: list[float], params: SamplingParams) -> list[float]:
    """The stated semantics, one token at a time: temperature, min_p, top_k, top_p."""

    def softmax(logits: dict[int, float]) -> dict[int, float]:
        highest = max(logits.values())
        weights = {token: math.exp(logit - highest) for token, logit in logits.items()}
        total = math.fsum(weights.values())
        return {token: weight / total for token, weight in weights.items()}

    def ranked(p: dict[int, float]) -> list[int]:
        return sorted(p, key=lambda token: (-p[token], token))

    if params.is_greedy:
        return [float(token == values.index(max(values))) for token in range(len(values))]
    logits = {token: logit / params.temperature for token, logit in enumerate(values)}
    p = softmax(logits)
    kept = [token for token in ranked(p) if p[token] >= params.min_p * max(p.values())]
    kept = kept[: params.top_k] if params.top_k > 0 else kept
    p = softmax({token: logits[token] for token in kept})
    mass, nucleus = 0.0, []
    for token in ranked(p):
        if mass >= params.top_p:
            break
        nucleus.append(token)
        mass += p[token]
    p = softmax({token: logits[token] for token in nucleus})
    return [p.get(token, 0.0) for token in range(len(values))]


# Multiples of 1/8 with ties, and parameters off the values a sum could reach exactly.
logit_rows = st.lists(st.integers(-40, 40).map(lambda n: n / 8), min_size=1, max_size=12)
parameters = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 0.7, 1.0, 2.0]),
    top_k=st.sampled_from([-1, 0, 1, 2, 5, 100]),
    top_p=st.sampled_from([1e-6, 0.313, 0.5172, 0.8713, 0.9991, 1.0]),
    min_p=st.sampled_from([0.0, 0.0513, 0.3117]),
)


@given(logit_rows, parameters)
def test_probabilities_follow_their_definition(values: list[float], params: SamplingParams) -> None:
    expected = reference(values, params)
    row = probabilities(torch.tensor([values], dtype=torch.float64), [params])[0]
    assert row.tolist() == pytest.approx(expected, abs=1e-12)
    assert [value > 0 for value in row.tolist()] == [value > 0 for value in expected]


@given(logit_rows, parameters)
def test_float32_agrees_with_float64(values: list[float], params: SamplingParams) -> None:
    logits = torch.tensor([values], dtype=torch.float64)
    single = probabilities(logits.float(), [params])
    assert single.dtype == torch.float32
    assert single[0].tolist() == pytest.approx(
        probabilities(logits, [params])[0].tolist(), abs=2e-6
    )


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, [1 / 8, 1 / 2, 1 / 4, 1 / 8]),
        ({"temperature": 0.0}, [0, 1, 0, 0]),
        ({"top_k": 2}, [0, 2 / 3, 1 / 3, 0]),
        ({"top_k": 3}, [1 / 7, 4 / 7, 2 / 7, 0]),  # the tie goes to the smaller id
        ({"top_k": -1}, [1 / 8, 1 / 2, 1 / 4, 1 / 8]),
        ({"top_p": 0.51}, [0, 2 / 3, 1 / 3, 0]),  # the token that crosses the line stays
        ({"top_p": 0.76}, [1 / 7, 4 / 7, 2 / 7, 0]),
        ({"top_p": 1e-6}, [0, 1, 0, 0]),
        ({"min_p": 0.3}, [0, 2 / 3, 1 / 3, 0]),
        ({"min_p": 1.0}, [0, 1, 0, 0]),
        ({"temperature": 0.5}, [1 / 22, 16 / 22, 4 / 22, 1 / 22]),
        # top_p counts mass after top_k and min_p: 1/2 of 3/4 is 2/3 of what is left.
        ({"top_k": 2, "top_p": 0.6}, [0, 1, 0, 0]),
        ({"min_p": 0.3, "top_p": 0.6}, [0, 1, 0, 0]),
        ({"top_p": 0.6}, [0, 2 / 3, 1 / 3, 0]),
    ],
)
def test_examples(asked: dict[str, float], expected: list[float]) -> None:
    logits = [math.log(weight) for weight in (1, 4, 2, 1)]
    assert one_row(logits, **asked) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("asked", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}])
@pytest.mark.parametrize("temperature", [1e-6, 0.5, 3.0])
def test_the_narrowest_filters_are_greedy(asked: dict[str, float], temperature: float) -> None:
    logits = torch.randn(20, 300, generator=torch.Generator().manual_seed(0))
    narrow = probabilities(logits, [SamplingParams(temperature=temperature, **asked)] * 20)
    assert torch.equal(narrow, probabilities(logits, [SamplingParams(temperature=0)] * 20))


def test_greedy_takes_the_first_of_equal_logits() -> None:
    assert one_row([1.0, 3.0, 3.0, 3.0], temperature=0.0) == [0, 1, 0, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("temperature", [1e-6, 1e-40, 5e-324])
def test_tiny_temperatures_do_not_overflow(dtype: torch.dtype, temperature: float) -> None:
    assert one_row([-1e4, 3e4, 2e4], dtype, temperature=temperature) == [0, 1, 0]
    assert one_row([5.0, 5.0, -INF], dtype, temperature=temperature) == [0.5, 0.5, 0]


def test_forbidden_tokens_get_no_mass() -> None:
    for asked in ({}, {"top_k": 3}, {"top_p": 0.999}, {"min_p": 0.001}, {"temperature": 0.0}):
        row = one_row([-INF, 1.0, -INF, 0.0], **asked)
        assert row[0] == row[2] == 0
        assert sum(row) == pytest.approx(1)


@pytest.mark.parametrize("asked", [{}, {"temperature": 0.0}, {"top_k": 1}, {"top_p": 0.5}])
@pytest.mark.parametrize("bad", [math.nan, INF, -INF])
def test_broken_logits_are_our_bug_and_say_so(asked: dict[str, float], bad: float) -> None:
    values = [-INF, -INF] if bad == -INF else [0.0, bad]
    with pytest.raises(ModelError, match="NaN or infinite"):
        one_row(values, **asked)


def test_half_precision_logits_give_float32() -> None:
    logits = torch.randn(3, 50).bfloat16()
    p = probabilities(logits, [SamplingParams()] * 3)
    assert p.dtype == torch.float32
    assert torch.equal(p, probabilities(logits.float(), [SamplingParams()] * 3))


def test_logits_are_not_changed_and_empty_batches_work() -> None:
    logits = torch.randn(4, 30)
    before = logits.clone()
    asked = [SamplingParams(temperature=0.5, top_k=3, top_p=0.9, min_p=0.1), SamplingParams()]
    probabilities(logits, asked * 2)
    assert torch.equal(logits, before)
    assert probabilities(logits[:0], []).shape == (0, 30)


MIXED = [
    SamplingParams(temperature=0),
    SamplingParams(),
    SamplingParams(temperature=0.7, seed=3),
    SamplingParams(temperature=0.7, top_p=0.95),
    SamplingParams(top_k=40),
    SamplingParams(temperature=1.3, top_k=40, top_p=0.8, min_p=0.02),
    SamplingParams(min_p=0.1),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("vocab", [7, 513, 4099])
def test_a_row_does_not_depend_on_its_neighbours(vocab: int, dtype: torch.dtype) -> None:
    """Bit for bit: alone, among equals, among others, in another order."""
    generator = torch.Generator().manual_seed(vocab)
    num_rows = 14
    logits = 4 * torch.randn(num_rows, vocab, generator=generator, dtype=dtype)
    logits[::3] = logits[::3].round()  # rows with many ties
    asked = [MIXED[i % len(MIXED)] for i in range(num_rows)]
    together = probabilities(logits, asked)
    reverse = torch.arange(num_rows - 1, -1, -1)
    assert torch.equal(probabilities(logits[reverse], asked[::-1])[reverse], together)
    for row, params in enumerate(asked):
        alone = probabilities(logits[row : row + 1], [params])[0]
        assert torch.equal(alone, together[row])
        among_equals = probabilities(logits, [params] * num_rows)[row]
        assert torch.equal(among_equals, alone)


# Draws.


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=12).filter(any),
    st.floats(0, 1, exclude_max=True),
)
def test_draw_is_the_smallest_index_whose_cumulative_sum_exceeds(
    counts: list[int], coin: float
) -> None:
    exact = np.empty(len(counts), dtype=object)
    exact[:] = [Fraction(count, 7) for count in counts]
    target = Fraction(coin) * sum(exact)
    expected = next(y for y in range(len(counts)) if sum(exact[: y + 1]) > target)
    assert draw(exact, coin) == expected
    # Integers below 2**24 and their sums are exact in floats, so those must agree as well.
    assert draw(np.array(counts, np.float64), coin) in (expected, _rounded(counts, coin))
    assert draw(np.array(counts, np.float32), coin) in (expected, _rounded(counts, coin))


def _rounded(counts: list[int], coin: float) -> int:
    return int(np.searchsorted(np.cumsum(counts), coin * sum(counts), side="right"))


@pytest.mark.parametrize("dtype", [object, np.float64, np.float32])
def test_draw_has_the_weights_as_its_law(dtype: type) -> None:
    """Exactly: the coins that give y are an interval as long as y's share."""
    weights = np.array([0, 3, 0, 2, 1, 2, 0], dtype)
    coins = [i / 64 for i in range(64)]
    counts = np.bincount([draw(weights, coin) for coin in coins], minlength=7)
    assert list(counts) == [0, 24, 0, 16, 8, 16, 0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [3, 511, 512, 513, 5000])
def test_draw_never_returns_a_token_without_weight(size: int, dtype: type) -> None:
    rng = np.random.default_rng(size)
    coins = [0.0, 5e-324, 0.5, 1 - 2**-24, 1 - 2**-53, *rng.random(200)]
    for _ in range(20):
        weights = rng.random(size).astype(dtype)
        weights[rng.random(size) < 0.7] = 0
        weights[size // 2] = rng.choice([1e-12, 1.0])
        assert all(weights[draw(weights, coin)] > 0 for coin in coins)
    alone = np.zeros(size, dtype)
    alone[size - 1] = 1e-30
    assert {draw(alone, coin) for coin in coins} == {size - 1}


def test_draw_from_wide_rows_agrees_with_one_cumulative_sum() -> None:
    rng = np.random.default_rng(2)
    weights = rng.dirichlet(np.full(5000, 0.05)).astype(np.float32)
    sums = np.cumsum(weights, dtype=np.float64)
    for coin in rng.random(2000):
        expected = int(np.searchsorted(sums, coin * sums[-1], side="right"))
        assert draw(weights, coin) == expected


def test_draw_sums_in_float64() -> None:
    """In float32 a long tail of small weights would be lost; its share of the draws must not be."""
    weights = np.full(200_001, 1e-8, np.float32)
    weights[0] = 1.0
    tail = 200_000 * 1e-8
    assert draw(weights, 1 - 0.9 * tail / (1 + tail)) == pytest.approx(20_000, abs=50)


def test_draw_by_chance() -> None:
    rng = np.random.default_rng(4)
    p = rng.dirichlet(np.ones(8)).astype(np.float32)
    counts = np.bincount([draw(p, coin) for coin in rng.random(20_000)], minlength=8)
    shares = p / p.sum(dtype=np.float64)
    assert chisquare(counts, shares * 20_000).pvalue > 1e-4
    assert chisquare(counts, np.roll(shares, 1) * 20_000).pvalue < 1e-8


def test_draw_from_nothing_is_our_bug() -> None:
    with pytest.raises(AssertionError, match="no mass"):
        draw(np.zeros(4), 0.5)


# Log-probabilities.


def test_raw_logprobs_report_the_chosen_token_first() -> None:
    logits = torch.tensor([[1.0, 2.0, 2.0, 0.0]], dtype=torch.float64)
    values = torch.log_softmax(logits, -1)[0].tolist()
    assert raw_logprobs(logits, [3], 0) == [[(3, values[3], 4)]]
    assert raw_logprobs(logits, [3], 2) == [
        [(3, values[3], 4), (1, values[1], 1), (2, values[2], 2)]
    ]
    assert raw_logprobs(logits, [2], 2) == [[(2, values[2], 2), (1, values[1], 1)]]
    assert [token for token, _, _ in raw_logprobs(logits, [0], 99)[0]] == [0, 1, 2, 3]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=10), st.integers(0, 11), st.data())
def test_raw_logprobs_ranks(values: list[int], num_top: int, data: st.DataObject) -> None:
    vocab = len(values)
    chosen = data.draw(st.integers(0, vocab - 1))
    order = sorted(range(vocab), key=lambda token: (-values[token], token))
    (entries,) = raw_logprobs(torch.tensor([values], dtype=torch.float32), [chosen], num_top)
    assert entries[0][0] == chosen
    assert [token for token, _, _ in entries[1:]] == [
        token for token in order[:num_top] if token != chosen
    ]
    assert all(order[rank - 1] == token for token, _, rank in entries)
    assert sum(math.exp(value) for _, value, _ in entries) <= 1 + 1e-6


def test_raw_logprobs_rows_do_not_depend_on_their_neighbours() -> None:
    logits = torch.randn(9, 1000, generator=torch.Generator().manual_seed(1))
    chosen = list(range(9))
    together = raw_logprobs(logits, chosen, 5)
    for row in range(9):
        assert raw_logprobs(logits[row : row + 1], chosen[row : row + 1], 5) == [together[row]]
