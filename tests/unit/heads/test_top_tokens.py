"""The search for the highest logits against a plain sort."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outpace.heads import top_tokens as module
from outpace.heads.top_tokens import top_tokens


def by_sorting(logits: np.ndarray, k: int) -> list[list[int]]:
    return [sorted(range(row.size), key=lambda i: (-row[i], i))[:k] for row in logits]


@given(
    st.integers(1, 3),
    st.integers(1, 90),
    st.integers(1, 8),
    st.sampled_from([1, 2, 3, 8]),
    st.sampled_from([np.float32, np.float64]),
    st.integers(0, 2**32 - 1),
)
def test_equals_a_sort_with_ties_to_the_smaller_id(
    num_rows: int, vocab: int, k: int, block: int, dtype: type, seed: int
) -> None:
    # Few values, so that many are equal; small blocks, so that few logits make many of them.
    values = np.array([-np.inf, -1.5, 0.0, 1.0, 2.0, 2.5], dtype)
    logits = np.random.default_rng(seed).choice(values, (num_rows, vocab))
    with patch.object(module, "BLOCK", block):
        assert top_tokens(logits, k).tolist() == by_sorting(logits, k)


@pytest.mark.parametrize("vocab", [511, 512, 49_152, 50_257])
def test_equals_a_sort_at_real_widths(vocab: int) -> None:
    rng = np.random.default_rng(vocab)
    logits = rng.standard_normal((3, vocab)).astype(np.float32)
    logits[1, :-2] = -np.inf  # all but two padded away
    logits[2] = np.round(logits[2])  # thousands of equals
    expected = np.argsort(-logits, axis=1, kind="stable")[:, :8]
    assert (top_tokens(logits, 8) == expected).all()


def test_rows_of_a_larger_array_and_no_rows() -> None:
    logits = np.arange(4 * 600, dtype=np.float32).reshape(4, 600)
    assert top_tokens(logits[1:3], 2).tolist() == [[599, 598], [599, 598]]
    assert top_tokens(logits[:0], 2).shape == (0, 2)
