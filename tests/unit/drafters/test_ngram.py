"""Prompt lookup: its index against a search by hand, its trees, and the limits of its options."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from table_model import context

from outpace import SamplingParams
from outpace.drafters.ngram import (
    MAX_CONTINUATIONS,
    MAX_LOOKUP,
    NgramDrafter,
    NgramIndex,
    NgramOptions,
    tree_of,
)
from outpace.errors import OptionError
from outpace.types import Draft, Sequence

VECTORS = json.loads(
    (Path(__file__).parents[2] / "vectors" / "ngram_vectors.json").read_text(encoding="utf-8")
)


def search(
    tokens: list[int], min_n: int, max_n: int, earliest: bool, num_ends: int = 1
) -> list[int]:
    found: list[int] = []
    for n in range(min(max_n, len(tokens) - 1), min_n - 1, -1):
        following: dict[int, int] = {}  # where each token that came next stands
        for end in range(n, len(tokens)):
            if tokens[end - n : end] == tokens[-n:] and not (earliest and tokens[end] in following):
                following[tokens[end]] = end
        ends = sorted(following.values(), reverse=not earliest)[:num_ends]
        found += [end for end in ends if end not in found]
    return found[:num_ends]


@given(
    st.lists(st.integers(0, 2), max_size=40),
    st.integers(1, 4),
    st.integers(0, MAX_LOOKUP - 4),
    st.booleans(),
    st.integers(1, 4),
)
def test_the_index_finds_what_a_search_finds(
    tokens: list[int], min_n: int, more: int, earliest: bool, num_ends: int
) -> None:
    index = NgramIndex(min_n, min_n + more, earliest=earliest, num_ends=num_ends)
    for length in range(len(tokens) + 1):
        text = tokens[:length]
        wanted = search(text, min_n, min_n + more, earliest, num_ends)
        assert index.find(text) == wanted


@pytest.mark.parametrize("vector", VECTORS, ids=[vector["name"] for vector in VECTORS])
@pytest.mark.parametrize("occurrence", ["earliest", "latest"])
def test_golden_vectors(vector: dict[str, Any], occurrence: str) -> None:
    """They end with the text; a draft goes on into its own copy, up to K tokens."""
    tokens, wanted = vector["ctx"], vector[occurrence]
    index = NgramIndex(vector["min_n"], vector["max_n"], earliest=occurrence == "earliest")
    assert [tokens[start:][: vector["K"]] for start in index.find(tokens)] == [wanted] * bool(
        wanted
    )
    proposed = draft(
        tokens,
        vector["K"],
        prompt_lookup_min=vector["min_n"],
        prompt_lookup_max=vector["max_n"],
        occurrence=occurrence,
    )
    assert list(proposed.token_ids[: len(wanted)]) == wanted
    assert len(proposed) == (vector["K"] if wanted else 0)
    assert proposed.is_chain


def draft(
    tokens: list[int],
    budget: int,
    max_len: int | None = None,
    *,
    takes_trees: bool = True,
    **options: Any,
) -> Draft:
    seq = Sequence(0, list(tokens), len(tokens), SamplingParams(), max_len=max_len)
    drafter = NgramDrafter(NgramOptions(**options), context(takes_trees=takes_trees))
    (proposed,) = drafter.propose([seq], [budget])
    return proposed


TEXT = [1, 2, 10, 11, 12, 1, 2, 20, 21, 22, 1, 2, 30, 31, 32, 1, 2]


def test_several_continuations_are_one_tree() -> None:
    proposed = draft(TEXT, 8, num_continuations=3)
    assert proposed.token_ids == (30, 31, 32, 1, 20, 21, 10, 11)
    assert proposed.parents == (-1, 0, 1, 2, -1, 4, -1, 6)
    assert proposed.is_deterministic
    assert proposed.first_path().token_ids == (30, 31, 32, 1)
    earliest = draft(TEXT, 8, num_continuations=2, occurrence="earliest")
    assert earliest.token_ids == (10, 11, 12, 1, 20, 21, 22, 1)
    assert draft(TEXT, 8).token_ids == (30, 31, 32, 1, 2, 30, 31, 32)


def test_a_single_continuation_gets_all_nodes() -> None:
    assert draft([1, 2, 3, 4, 5, 6, 1], 5, num_continuations=4).token_ids == (2, 3, 4, 5, 6)


def test_no_path_is_longer_than_the_answer_may_become() -> None:
    proposed = draft(TEXT, 8, max_len=len(TEXT) + 3, num_continuations=3)
    assert max(proposed.depths()) == 2
    assert proposed.token_ids == (30, 31, 20, 21, 10, 11)


@given(st.lists(st.lists(st.integers(0, 2), max_size=6), max_size=5), st.integers(0, 12))
def test_a_tree_holds_beginnings_once(continuations: list[list[int]], num_nodes: int) -> None:
    tokens, parents = tree_of(continuations, num_nodes)
    tree = Draft(tokens, parents=parents)
    paths = [tree.tokens_to(node) for node in range(len(tree))]
    assert len(set(paths)) == len(paths) <= num_nodes
    beginnings = {tuple(c[:n]) for c in continuations for n in range(1, len(c) + 1)}
    assert set(paths) <= beginnings
    if num_nodes and continuations and continuations[0]:
        assert len(tree.first_path()) >= min(len(continuations[0]), (num_nodes + 1) // 2)


def test_the_longest_lookup_has_a_limit() -> None:
    assert NgramOptions(prompt_lookup_max=MAX_LOOKUP).prompt_lookup_max == MAX_LOOKUP
    for value in (MAX_LOOKUP + 1, 10**9):
        with pytest.raises(OptionError, match=f"at most {MAX_LOOKUP}, got {value}"):
            NgramOptions(prompt_lookup_max=value)


def test_the_shortest_lookup_is_not_longer_than_the_longest() -> None:
    with pytest.raises(OptionError, match=r"prompt_lookup_min \(4\) must not exceed"):
        NgramOptions(prompt_lookup_min=4)


def test_continuations_have_limits() -> None:
    with pytest.raises(OptionError, match="num_continuations must be a whole number of at least 1"):
        NgramOptions(num_continuations=0)
    with pytest.raises(OptionError, match=f"num_continuations must be at most {MAX_CONTINUATIONS}"):
        NgramOptions(num_continuations=MAX_CONTINUATIONS + 1)


def test_without_trees_one_continuation_gets_all_nodes() -> None:
    tokens = [1, 2, 3, 4, 1, 5, 6, 7, 1]
    drafts = {
        takes_trees: draft(tokens, 4, takes_trees=takes_trees, num_continuations=2)
        for takes_trees in (True, False)
    }
    assert drafts[False] == Draft((5, 6, 7, 1), origin="ngram")
    assert not drafts[True].is_chain
