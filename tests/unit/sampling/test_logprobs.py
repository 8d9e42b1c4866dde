"""Reported log-probabilities: values, ranks, and independence of other rows."""

from __future__ import annotations

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from outpace.sampling import raw_logprobs


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
