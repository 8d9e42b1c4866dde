"""Reported log-probabilities: values, ranks, and independence of other rows."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outpace.sampling import raw_logprobs


def test_raw_logprobs_report_the_chosen_token_first() -> None:
    logits = np.array([[1.0, 2.0, 2.0, 0.0]])
    values = (logits[0] - 2.0 - np.log(np.exp(logits[0] - 2.0).sum())).tolist()
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
    (entries,) = raw_logprobs(np.array([values], np.float32), [chosen], num_top)
    assert entries[0][0] == chosen
    assert [token for token, _, _ in entries[1:]] == [
        token for token in order[:num_top] if token != chosen
    ]
    assert all(order[rank - 1] == token for token, _, rank in entries)
    assert sum(math.exp(value) for _, value, _ in entries) <= 1 + 1e-6


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_values_are_those_of_log_softmax(kind: type) -> None:
    logits = (30 * np.random.default_rng(2).normal(size=(4, 700))).astype(kind)
    logits[:, 5] = -np.inf
    expected = torch.log_softmax(torch.from_numpy(logits).double(), -1).numpy()
    for token in (3, 5, 699):
        reports = raw_logprobs(logits, [token] * 4, 1)
        for row, ((_, value, _), *_) in enumerate(reports):
            assert value == pytest.approx(expected[row, token], rel=1e-6, abs=1e-6)


def test_raw_logprobs_rows_do_not_depend_on_their_neighbours() -> None:
    logits = np.random.default_rng(1).normal(size=(9, 1000)).astype(np.float32)
    chosen = list(range(9))
    together = raw_logprobs(logits, chosen, 5)
    for row in range(9):
        assert raw_logprobs(logits[row : row + 1], chosen[row : row + 1], 5) == [together[row]]
