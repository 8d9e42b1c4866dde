"""Distributions against a slow reference and at their edges."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outpace.errors import ModelError, OptionError
from outpace.params import SamplingParams
from outpace.sampling.filters import distribution

INF = math.inf


def one_row(values: list[float], dtype: type = np.float64, **asked: float) -> list[float]:
    """The distribution of one row of logits."""
    params = SamplingParams(**asked)  # type: ignore[arg-type]
    return list(distribution(np.array(values, dtype), params).tolist())


def reference(values: list[float], params: SamplingParams) -> list[float]:
    """The stated semantics, one token at a time: temperature, min_p, top_k, top_p, typical_p."""

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
    entropy = -math.fsum(p[token] * math.log(p[token]) for token in p)
    mass, typical = 0.0, []
    for token in sorted(p, key=lambda token: (abs(-math.log(p[token]) - entropy), token)):
        if mass >= params.typical_p:
            break
        typical.append(token)
        mass += p[token]
    p = softmax({token: logits[token] for token in typical})
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
typicals = st.sampled_from([1.0, 0.2113, 0.5571, 0.9317])


@given(logit_rows, parameters)
def test_distributions_follow_their_definition(values: list[float], params: SamplingParams) -> None:
    expected = reference(values, params)
    row = distribution(np.array(values), params)
    assert row.tolist() == pytest.approx(expected, abs=1e-12)
    assert [value > 0 for value in row.tolist()] == [value > 0 for value in expected]


# Distinct: at a tie of typicality rounding decides.
distinct_rows = st.lists(st.integers(-40, 40), min_size=1, max_size=12, unique=True).map(
    lambda row: [0.1371 * n for n in row]
)


@given(distinct_rows, parameters, typicals)
def test_typical_tokens_follow_their_definition(
    values: list[float], params: SamplingParams, typical_p: float
) -> None:
    params = replace(params, typical_p=typical_p)
    row = distribution(np.array(values), params)
    assert row.tolist() == pytest.approx(reference(values, params), abs=1e-12)


@given(logit_rows, parameters)
def test_float32_agrees_with_float64(values: list[float], params: SamplingParams) -> None:
    single = distribution(np.array(values, np.float32), params)
    assert single.dtype == np.float32
    double = distribution(np.array(values), params)
    assert single.tolist() == pytest.approx(double.tolist(), abs=2e-6)


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
    for logits in np.random.default_rng(0).normal(size=(20, 300)).astype(np.float32):
        narrow = distribution(logits, SamplingParams(temperature=temperature, **asked))
        assert (narrow == distribution(logits, SamplingParams(temperature=0))).all()


def test_greedy_takes_the_first_of_equal_logits() -> None:
    assert one_row([1.0, 3.0, 3.0, 3.0], temperature=0.0) == [0, 1, 0, 0]


def test_typical_p_may_leave_out_the_most_probable_token() -> None:
    """Its definition: with one token at 0.4 and twelve at 0.05 the surprisal of the twelve is
    nearer the entropy."""
    logits = [math.log(weight) for weight in (8, *[1] * 12)]
    assert one_row(logits, typical_p=0.5)[0] == 0
    assert one_row(logits, typical_p=0.9)[0] > 0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("temperature", [1e-6, 1e-40, 5e-324])
def test_tiny_temperatures_do_not_overflow(dtype: type, temperature: float) -> None:
    assert one_row([-1e4, 3e4, 2e4], dtype, temperature=temperature) == [0, 1, 0]
    assert one_row([5.0, 5.0, -INF], dtype, temperature=temperature) == [0.5, 0.5, 0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_temperatures_beyond_the_dtype_are_its_greatest(dtype: type) -> None:
    with np.errstate(all="raise"):
        assert one_row([5.0, 1.0, -INF], dtype, temperature=1e39)[2] == 0
        assert one_row([5.0, 1.0, -INF], dtype, temperature=1e308)[:2] == pytest.approx([0.5, 0.5])


FILTERS = [{}, {"top_k": 3}, {"top_p": 0.999}, {"min_p": 0.001}, {"typical_p": 0.99}]


@pytest.mark.parametrize("asked", [*FILTERS, {"temperature": 0.0}])
def test_forbidden_tokens_get_no_mass(asked: dict[str, float]) -> None:
    row = one_row([-INF, 1.0, -INF, 0.0], **asked)
    assert row[0] == row[2] == 0
    assert sum(row) == pytest.approx(1)


@pytest.mark.parametrize("asked", [*FILTERS, {"temperature": 0.0}])
def test_rows_without_a_distribution_say_why(asked: dict[str, float]) -> None:
    for bad in (math.nan, INF):
        with pytest.raises(ModelError, match="NaN or infinite"):
            one_row([0.0, bad], **asked)
    with pytest.raises(OptionError, match="no token is left"):
        one_row([-INF, -INF], **asked)


def test_logits_are_not_changed() -> None:
    logits = np.random.default_rng(0).normal(size=30)
    before = logits.copy()
    distribution(
        logits, SamplingParams(temperature=0.5, top_k=3, top_p=0.9, min_p=0.1, typical_p=0.9)
    )
    assert (logits == before).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("vocab", [513, 4099])
def test_large_vocabularies_with_ties_follow_the_definition(vocab: int, dtype: type) -> None:
    """Where the search is by blocks and by a line, on rows full of ties."""
    rng = np.random.default_rng(vocab)
    for params in (
        SamplingParams(top_k=40),
        SamplingParams(top_p=0.8123),
        SamplingParams(temperature=1.3, top_k=400, top_p=0.7717, min_p=0.0013),
    ):
        logits = (4 * rng.normal(size=vocab)).round(1).astype(dtype)
        row = distribution(logits, params)
        expected = reference([float(value) for value in logits], params)
        assert row.tolist() == pytest.approx(expected, abs=3e-6)
        if dtype is np.float64:
            assert [value > 0 for value in row.tolist()] == [value > 0 for value in expected]
