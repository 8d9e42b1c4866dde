"""Lookahead decoding: its pool, its window over many steps, and how the two share a budget."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from table_model import context, observed, sequence, step

from outpace.drafters.lookahead import LookaheadDrafter, LookaheadOptions, merged
from outpace.drafters.parts.jacobi_window import JacobiWindow, NgramPool
from outpace.errors import ModelError, OptionError
from outpace.types import Draft

VOCAB = 97


def following(token: int) -> list[int]:
    """A permutation of the vocabulary: a long cycle without repeats in between."""
    return [(token * 5 + 3) % VOCAB]


def is_true(tokens: tuple[int, ...]) -> bool:
    return all(following(a)[0] == b for a, b in pairwise(tokens))


def drafter(**options: object) -> LookaheadDrafter:
    return LookaheadDrafter(LookaheadOptions(**options), context())


def pooled(drafting: LookaheadDrafter, seq_id: int = 0) -> set[tuple[int, ...]]:
    pool = drafting._memories[seq_id].pool
    return {(token, *rest) for token in range(VOCAB) for rest in pool.guesses(token)}


def test_the_pool_keeps_the_newest_of_each_first_token() -> None:
    pool = NgramPool(max_per_token=2)
    for ngram in [(1, 2, 3), (1, 4, 5), (6, 7, 8), (1, 2, 3), (1, 9, 9)]:
        pool.add(ngram)
    assert pool.guesses(1) == [(9, 9), (2, 3)]  # (1, 2, 3) came again, so (1, 4, 5) was older
    assert pool.guesses(6) == [(7, 8)]
    assert pool.guesses(2) == []


def test_guesses_share_their_beginnings() -> None:
    assert merged([(1, 2), (1, 3), (4, 2)], 9, 9) == ([1, 2, 3, 4, 2], [-1, 0, 0, -1, 3])
    assert merged([(1, 2), (1, 3), (4, 2)], 4, 9) == ([1, 2, 3, 4], [-1, 0, 0, -1])
    assert merged([(1, 2), (1, 3), (4, 2)], 9, 1) == ([1, 4], [-1, -1])
    assert merged([(1, 2)], 0, 9) == ([], [])


def test_the_window_is_a_tree_of_columns() -> None:
    fresh = iter([10, 20, 30])
    window = JacobiWindow(3, 4, lambda: next(fresh))
    assert window.nodes() == ([10, 20, 30], [-1, 0, 1], [0, 1, 2])
    assert window.advance(1, [11, 21, 31]) == []
    assert window.advance(1, [12, 22, 32]) == []
    token_ids, parents, last = window.nodes()
    assert token_ids == [10, 20, 30, 11, 21, 31, 12, 22, 32]
    assert parents == [-1, 0, 1, 0, 1, 2, 3, 4, 5]
    assert last == [6, 7, 8]
    # One level is full now: its first tokens go, the rest moves up.
    assert window.advance(1, [13, 23, 33]) == [(10, 11, 12, 13), (20, 21, 22, 23), (30, 31, 32, 33)]
    assert window.columns == [[11, 12, 13], [21, 22, 23], [31, 32, 33]]
    assert window.depth == 5


def test_the_window_moves_as_far_as_the_newest_token() -> None:
    fresh = iter(range(100, 200))
    window = JacobiWindow(3, 2, lambda: next(fresh))
    # What stood two places ahead of the newest token is one ahead after one more token, whether
    # the window was in the pass or not.
    window.advance(1, [1, 2, 3])
    assert window.columns == [[1], [2], [3]]
    window.advance(3, [4, 5, 6])
    assert window.columns == [[6], [103], [104]]
    window.advance(1)
    assert window.columns == [[103], [104], [105]]
    window.advance(9)
    assert window.columns == [[106], [107], [108]]
    window.advance(0)
    assert window.columns == [[106], [107], [108]]


@given(
    st.integers(1, 5),
    st.integers(2, 5),
    st.lists(st.tuples(st.integers(0, 6), st.booleans()), max_size=30),
)
def test_the_window_keeps_its_shape_whatever_is_accepted(
    size: int, ngram_size: int, steps: list[tuple[int, bool]]
) -> None:
    fresh = iter(range(1000))
    window = JacobiWindow(size, ngram_size, lambda: next(fresh))
    for num_tokens, was_in_pass in steps:
        token_ids, parents, last = window.nodes()
        assert len(window.columns) == size
        assert len(token_ids) <= size * (ngram_size - 1)
        assert all(1 <= len(column) < ngram_size for column in window.columns)
        depths = Draft(tuple(token_ids), parents=tuple(parents)).depths()
        assert max(depths) == window.depth <= size + ngram_size - 2
        for place, (column, node) in enumerate(zip(window.columns, last, strict=True)):
            path = Draft(tuple(token_ids), parents=tuple(parents)).tokens_to(node)
            firsts = tuple(other[0] for other in window.columns[:place])
            assert path == (*firsts, *column)
        ngrams = window.advance(num_tokens, [-1] * size if was_in_pass else None)
        assert all(len(ngram) == ngram_size for ngram in ngrams)


@pytest.mark.parametrize("most", [1, 2, None])
@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("ngram_size", [2, 3, 5])
def test_a_converged_window_yields_true_ngrams(
    most: int | None, size: int, ngram_size: int
) -> None:
    """With a next token that depends on the newest alone, a column is true from its second token
    on, and once a first token was predicted all of it is."""
    drafting = drafter(
        window_size=size,
        ngram_size=ngram_size,
        num_speculative_tokens=size * (ngram_size - 1) + 3 * (ngram_size - 1),
        pool_from_text=False,
    )
    seq = sequence([1, 50, 3, 80])
    for _ in range(40):
        step(drafting, [seq], [99], following, VOCAB, most)
    assert is_true(tuple(seq.tokens[3:]))
    found = pooled(drafting)
    assert found
    assert all(len(ngram) == ngram_size and is_true(ngram) for ngram in found)


def test_guesses_are_accepted_and_probes_never_are() -> None:
    drafting, seq = drafter(num_speculative_tokens=20, ngram_size=3), sequence([1])
    lengths = []
    for _ in range(200):
        before = len(seq.tokens)
        (draft,) = step(drafting, [seq], [20], following, VOCAB)
        lengths.append(len(seq.tokens) - before)
        assert draft.num_probes <= 10
        assert all(len(draft.tokens_to(node)) <= 2 for node in range(draft.num_verified))
    assert lengths[0] == 1
    assert max(lengths) == 3
    assert sum(lengths) > 1.5 * len(lengths)


def test_the_text_fills_the_pool_if_asked() -> None:
    prompt = [7, 8, 9, 7, 8, 10, 7]
    (draft,) = drafter(ngram_size=3).propose([sequence(prompt)], [16])
    assert draft.token_ids[: draft.num_verified] == (8, 10, 9)
    (draft,) = drafter(ngram_size=3, pool_from_text=False).propose([sequence(prompt)], [16])
    assert draft.num_verified == 0
    assert draft.num_probes > 0


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=12),
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), max_size=8),
)
def test_the_pool_holds_every_ngram_of_a_growing_text(
    prompt: list[int], added: list[list[int]]
) -> None:
    drafting, seq = drafter(window_size=0, ngram_size=3, guess_set_size=99), sequence(prompt)
    for tokens in [*added, []]:
        drafting.propose([seq], [4])
        text = seq.tokens
        assert pooled(drafting) == set(zip(text, text[1:], text[2:], strict=False))
        seq.tokens.extend(tokens)


def test_a_chain_is_one_guess_beside_the_window() -> None:
    prompt = [7, 8, 9, 7, 8, 10, 7]
    (draft,) = drafter(ngram_size=3, shape="chain").propose([sequence(prompt)], [16])
    assert draft.token_ids[: draft.num_verified] == (8, 10)
    assert draft.num_probes > 0


def test_small_budgets_are_for_guesses() -> None:
    drafting = drafter(window_size=4, ngram_size=3, num_speculative_tokens=16)
    prompt = [7, 8, 9, 7, 8, 10, 7]
    for budget in range(12):
        (draft,) = drafting.propose([sequence(prompt)], [budget])
        assert len(draft) <= budget
        # At first each column has one token.
        assert draft.num_probes == (4 if budget > 4 else 0)
        assert draft.num_verified == min(budget - draft.num_probes, 3)


def test_the_window_stays_out_where_the_answer_ends() -> None:
    drafting = drafter(window_size=4, ngram_size=3, num_speculative_tokens=16)
    prompt = [7, 8, 9, 7, 8, 10, 7]
    for room, num_probes in [(1, 0), (2, 0), (4, 0), (5, 4)]:
        (draft,) = drafting.propose([sequence(prompt, room, room=room)], [16])
        assert draft.num_probes == num_probes
        assert max(draft.depths(), default=0) < room


def test_a_draft_that_was_changed_on_its_way_teaches_nothing() -> None:
    drafting = drafter(window_size=3, ngram_size=2, num_speculative_tokens=8, pool_from_text=False)
    seq = sequence([1, 2, 3])
    (draft,) = drafting.propose([seq], [8])
    before = pooled(drafting)
    observed(drafting, [seq], [draft.shortened(2)], following, VOCAB)
    assert pooled(drafting) == before
    # Nor is it taken for what a later step fed.
    observed(drafting, [seq], [draft], following, VOCAB)
    assert pooled(drafting) == before
    step(drafting, [seq], [8], following, VOCAB)
    assert pooled(drafting) > before


def test_equal_requests_get_equal_drafts_alone_and_together() -> None:
    drafting = drafter()
    alone, pair = sequence([1, 2, 3], 0), [sequence([1, 2, 3], i) for i in (1, 2)]
    for _ in range(10):
        (one,) = step(drafting, [alone], [16], following, VOCAB)
        assert step(drafting, pair, [16, 16], following, VOCAB) == [one, one]


def test_nothing_is_left_after_release() -> None:
    drafting, seqs = drafter(), [sequence([1, 2, 3], i) for i in range(2)]
    step(drafting, seqs, [16, 2], following, VOCAB)
    drafting.release(seqs[0])
    with pytest.raises(AssertionError, match=r"sequences \[1\]"):
        drafting.check_integrity()
    drafting.release(seqs[1])
    drafting.release(sequence([1], 7))
    drafting.check_integrity()


def test_targets_without_trees_are_refused() -> None:
    with pytest.raises(ModelError, match="table as it is run here takes no trees"):
        LookaheadDrafter(LookaheadOptions(), context(takes_trees=False))


@pytest.mark.parametrize("k", range(1, 41))
def test_the_window_fits_any_number_of_tokens(k: int) -> None:
    for ngram_size in (2, 3, 5):
        options = LookaheadOptions(num_speculative_tokens=k, ngram_size=ngram_size)
        assert options.window_rows <= k // 2


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"window_size": 5, "ngram_size": 3, "num_speculative_tokens": 10},
            "a window of 5 places and n-grams of 3 tokens take 10 rows of each pass, which leaves "
            "no room for guesses: num_speculative_tokens must be more than that, got 10",
        ),
        (
            {"window_size": 0, "pool_from_text": False},
            "without a window and without the n-grams of the text lookahead has nothing",
        ),
        ({"ngram_size": 1}, "ngram_size must be a whole number of at least 2, got 1"),
        ({"window_size": -1}, "window_size must be a whole number of at least 0, got -1"),
        ({"guess_set_size": 0}, "guess_set_size must be a whole number of at least 1, got 0"),
        ({"shape": "star"}, "shape must be 'chain' or 'tree', got 'star'"),
        ({"pool_from_text": 1}, "pool_from_text must be true or false, got 1"),
    ],
)
def test_options_that_cannot_be_honoured(values: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        replace(LookaheadOptions(), **values)
