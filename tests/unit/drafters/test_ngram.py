"""Prompt lookup: its index against a search by hand, and the limits of its options."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outpace.drafters.ngram import MAX_LOOKUP, NgramIndex, NgramOptions
from outpace.errors import OptionError


def search(tokens: list[int], min_n: int, max_n: int, earliest: bool) -> int | None:
    for n in range(min(max_n, len(tokens) - 1), min_n - 1, -1):
        ends = [e for e in range(n, len(tokens)) if tokens[e - n : e] == tokens[-n:]]
        if ends:
            return ends[0] if earliest else ends[-1]
    return None


@given(
    st.lists(st.integers(0, 2), max_size=40),
    st.integers(1, 4),
    st.integers(0, MAX_LOOKUP - 4),
    st.booleans(),
)
def test_the_index_finds_what_a_search_finds(
    tokens: list[int], min_n: int, more: int, earliest: bool
) -> None:
    index = NgramIndex(min_n, min_n + more, earliest=earliest)
    for length in range(len(tokens) + 1):
        text = tokens[:length]
        assert index.find(text) == search(text, min_n, min_n + more, earliest)


def test_the_longest_lookup_has_a_limit() -> None:
    assert NgramOptions(prompt_lookup_max=MAX_LOOKUP).prompt_lookup_max == MAX_LOOKUP
    for value in (MAX_LOOKUP + 1, 10**9):
        with pytest.raises(OptionError, match=f"at most {MAX_LOOKUP}, got {value}"):
            NgramOptions(prompt_lookup_max=value)


def test_the_shortest_lookup_is_not_longer_than_the_longest() -> None:
    with pytest.raises(OptionError, match=r"prompt_lookup_min \(4\) must not exceed"):
        NgramOptions(prompt_lookup_min=4)
