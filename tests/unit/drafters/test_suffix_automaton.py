"""The suffix automaton against search by hand, and how much work a token costs at most."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outpace.drafters.parts.suffix_automaton import ROOT, SuffixAutomaton

BOUNDARY = -1
TEXTS = st.lists(st.sampled_from([0, 0, 1, 1, 2, BOUNDARY]), max_size=32)


def build(tokens: list[int], max_context: int) -> tuple[SuffixAutomaton, list[list[int]]]:
    """The automaton of texts separated by BOUNDARY, and the texts, the last one open."""
    automaton = SuffixAutomaton(max_context)
    texts: list[list[int]] = [[]]
    for token in tokens:
        if token == BOUNDARY:
            automaton.end_text()
            texts.append([])
        else:
            automaton.extend(token)
            texts[-1].append(token)
    return automaton, texts


def occurrences(texts: list[list[int]], part: tuple[int, ...]) -> int:
    n = len(part)
    return sum(
        tuple(text[end - n : end]) == part for text in texts for end in range(n, len(text) + 1)
    )


def state_of(automaton: SuffixAutomaton, part: tuple[int, ...]) -> int | None:
    state = ROOT
    for token in part:
        following = automaton.next[state].get(token)
        if following is None:
            return None
        state = following
    return state


@given(TEXTS, st.integers(1, 6))
def test_it_holds_every_substring_and_counts_it(tokens: list[int], max_context: int) -> None:
    automaton, texts = build(tokens, max_context)
    parts = {
        tuple(text[a:b]) for text in texts for a in range(len(text)) for b in range(a, len(text))
    }
    for part in parts | {(*part, token) for part in parts for token in range(3)}:
        wanted = occurrences(texts, part)
        state = state_of(automaton, part)
        assert (state is not None) == (wanted > 0)
        if state is not None and 0 < len(part) <= max_context + 1:
            assert automaton.count[state] == wanted
    num_tokens = sum(map(len, texts))
    assert automaton.num_tokens == num_tokens
    assert len(automaton) <= max(2, 2 * num_tokens)


@given(TEXTS, st.integers(1, 6))
def test_the_longest_repeat_is_found(tokens: list[int], max_context: int) -> None:
    automaton, texts = build(tokens, max_context)
    text = tuple(texts[-1])
    wanted: tuple[int, ...] = ()
    for n in range(1, min(max_context, len(text)) + 1):
        if occurrences(texts, text[-n:]) > 1:
            wanted = text[-n:]
    assert automaton.longest_repeat() == (state_of(automaton, wanted), len(wanted))


@given(TEXTS, st.lists(st.integers(0, 2), max_size=12), st.integers(1, 6))
def test_another_text_is_followed(tokens: list[int], other: list[int], max_context: int) -> None:
    automaton, texts = build(tokens, max_context)
    at = (ROOT, 0)
    for end, token in enumerate(other, 1):
        at = automaton.step(*at, token)
        suffixes = [tuple(other[end - n : end]) for n in range(min(max_context, end) + 1)]
        longest = max((part for part in suffixes if occurrences(texts, part)), key=len, default=())
        assert at == (state_of(automaton, longest), len(longest))


@given(TEXTS, st.lists(st.integers(0, 2), max_size=6), TEXTS)
def test_a_match_from_before_the_text_grew_stays_true(
    tokens: list[int], other: list[int], more: list[int]
) -> None:
    automaton, _ = build(tokens, 6)
    at = (ROOT, 0)
    for token in other:
        at = automaton.step(*at, token)
    for token in more:
        if token == BOUNDARY:
            automaton.end_text()
        else:
            automaton.extend(token)
    state, length = automaton.shortened(*at)
    assert state == state_of(automaton, tuple(other[len(other) - length :]))


class Counted(list[Any]):
    """A list that counts how often its items are read or written."""

    def __init__(self, items: list[Any]) -> None:
        super().__init__(items)
        self.uses = 0

    def __getitem__(self, index: Any) -> Any:
        self.uses += 1
        return super().__getitem__(index)

    def __setitem__(self, index: Any, value: Any) -> None:
        self.uses += 1
        super().__setitem__(index, value)


def fibonacci(length: int) -> list[int]:
    """The text with the most repeats that no text of one token has."""
    a, b = [0], [0, 1]
    while len(b) < length:
        a, b = b, b + a
    return b[:length]


LENGTH = 4000
HARD = {
    "one token": [7] * LENGTH,
    "one token, then another": [7] * (LENGTH - 1) + [8],
    "two tokens in turn": [7, 8] * (LENGTH // 2),
    "a long period": list(range(50)) * (LENGTH // 50),
    "fibonacci": fibonacci(LENGTH),
    "nothing repeats": list(range(LENGTH)),
    "one token, others between": [x for i in range(LENGTH // 2) for x in (7, 10 + i)],
}


@pytest.mark.parametrize("name", HARD)
def test_work_grows_with_the_text_and_not_faster(name: str) -> None:
    max_context = 8
    automaton = SuffixAutomaton(max_context)
    counted = []
    for attribute in ("next", "link", "length", "count"):
        items = Counted(getattr(automaton, attribute))
        setattr(automaton, attribute, items)
        counted.append(items)
    for token in HARD[name]:
        automaton.extend(token)
    assert sum(items.uses for items in counted) < LENGTH * (24 + 5 * max_context)
    # A copy of a large dictionary is one use; together they are bounded, too.
    assert sum(map(len, automaton.next)) < 3 * LENGTH


def test_the_work_test_has_teeth() -> None:
    """Without the bound on counted suffixes the first text would cost its length squared."""
    automaton = SuffixAutomaton(LENGTH)
    automaton.count = Counted(automaton.count)
    for token in HARD["one token"][:1000]:
        automaton.extend(token)
    assert automaton.count.uses > 1000 * 100
