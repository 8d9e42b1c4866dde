"""Suffix decoding: its drafts on texts made by hand, its estimates, its store, and its limits."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outpace import SamplingParams
from outpace.drafters.base import DraftingContext
from outpace.drafters.parts import past_outputs
from outpace.drafters.parts.continuations import (
    after,
    best_chain,
    best_tree,
    contexts_of,
    probable,
)
from outpace.drafters.parts.past_outputs import Follower, OutputStore
from outpace.drafters.parts.suffix_automaton import ROOT, SuffixAutomaton
from outpace.drafters.suffix import MAX_TREE_DEPTH, SuffixDrafter, SuffixOptions
from outpace.errors import OptionError
from outpace.types import Draft, Sequence

CONTEXT: Any = DraftingContext(  # it uses nothing of the target
    target=None, max_num_seqs=4, max_model_len=1000, rng=None, runner=None
)
SHAPES = pytest.mark.parametrize("shape", ["chain", "tree"])


def drafter(**options: Any) -> SuffixDrafter:
    return SuffixDrafter(SuffixOptions(**options), CONTEXT)


def sequence(tokens: list[int], seq_id: int = 0, **fields: Any) -> Sequence:
    return Sequence(seq_id, list(tokens), len(tokens), SamplingParams(), **fields)


def draft(tokens: list[int], budget: int = 16, **options: Any) -> Draft:
    (proposed,) = drafter(**options).propose([sequence(tokens)], [budget])
    return proposed


def contexts(tokens: list[int]) -> list[Any]:
    automaton = SuffixAutomaton(24)
    for token in tokens:
        automaton.extend(token)
    return contexts_of(automaton, *automaton.longest_repeat())


SENTENCE = list(range(100, 130))


@SHAPES
def test_a_long_match_is_copied(shape: str) -> None:
    proposed = draft([*SENTENCE, 1, *SENTENCE[:12]], shape=shape)
    assert proposed.token_ids[:8] == tuple(SENTENCE[12:20])
    assert proposed.is_chain
    assert proposed.is_deterministic
    assert proposed.origin == "suffix"


@SHAPES
@pytest.mark.parametrize("tokens", [[], [5], [1, 2, 3, 4], [*SENTENCE, 1]])
def test_nothing_is_drafted_without_a_match(shape: str, tokens: list[int]) -> None:
    assert len(draft(tokens, shape=shape, suffix_decoding_max_spec_offset=4.0)) == 0


@SHAPES
def test_what_repeats_with_a_short_period_goes_on(shape: str) -> None:
    proposed = draft([7, 8, 9] * 4, shape=shape)
    assert len(proposed) == 16
    assert proposed.token_ids == tuple([7, 8, 9] * 6)[:16]
    assert draft([7] * 40, shape=shape).token_ids == (7,) * 16


def test_the_longer_the_match_the_longer_the_draft() -> None:
    lengths = [len(draft([*SENTENCE, 1, *SENTENCE[:n]])) for n in (1, 2, 4, 8, 12)]
    assert lengths == sorted(lengths)
    assert lengths[0] < lengths[-1]


def test_the_more_often_it_followed_the_longer_the_draft() -> None:
    phrase = list(range(1, 20))
    lengths = []
    for times in (1, 2, 4, 8):
        text = [token for i in range(times) for token in (*phrase, 50 + i)]
        lengths.append(len(draft([*text, 1, 2])))
    assert lengths == sorted(lengths)
    assert lengths[0] < lengths[-1]


def test_the_more_frequent_continuation_comes_first() -> None:
    text = [1, 2, 10, 50, 1, 2, 11, 51, 1, 2, 10, 52, 1, 2, 12, 53, 1, 2, 10, 54, 1, 2]
    tree = draft(text, shape="tree", suffix_decoding_min_token_prob=0.05)
    first, *others = [tree.token_ids[node] for node in tree.children()[0]]
    assert first == 10
    assert set(others) == {11, 12}
    chain = draft(text, shape="chain", suffix_decoding_min_token_prob=0.05)
    assert chain.token_ids[0] == 10
    assert not tree.is_chain
    assert tree.first_path().token_ids[0] == 10


def test_of_equally_frequent_continuations_the_newer_comes_first() -> None:
    text = [1, 2, 10, 50, 1, 2, 11, 51, 1, 2]
    assert draft(text, suffix_decoding_min_token_prob=0.1).token_ids[0] == 11


def test_a_long_context_outweighs_a_frequent_short_one() -> None:
    often = [token for i in range(6) for token in (4, 9, 60 + i)]
    text = [*often, 1, 2, 3, 4, 5, 70, 1, 2, 3, 4]
    assert draft(text).token_ids[0] == 5
    assert probable(contexts(text), 0.0)[1][1] == 9


def test_longest_draft() -> None:
    options = SuffixOptions(
        suffix_decoding_max_spec_factor=0.1, suffix_decoding_max_spec_offset=1.0
    )
    assert [options.longest_draft(n) for n in (0, 1, 9, 10, 30)] == [0, 1, 1, 2, 4]
    text = [*SENTENCE, 1, *SENTENCE[:12]]
    for factor, offset, length in ((0.25, 0.0, 3), (0.0, 2.0, 2), (0.0, 0.0, 0), (0.5, 1.0, 7)):
        proposed = draft(
            text,
            suffix_decoding_max_spec_factor=factor,
            suffix_decoding_max_spec_offset=offset,
            suffix_decoding_min_token_prob=0.0,
        )
        assert len(proposed) == length


TEXTS = st.lists(st.integers(0, 3), min_size=1, max_size=40)


@given(TEXTS, st.floats(0, 0.5))
def test_probabilities_are_some(tokens: list[int], floor: float) -> None:
    found = probable(contexts(tokens), floor)
    assert all(prob >= floor for prob, _ in found)
    assert sum(prob for prob, _ in found) < 1 + 1e-9
    assert found == sorted(found, key=lambda item: -item[0])
    assert {token for _, token in found} <= set(tokens)
    everything = {token: prob for prob, token in probable(contexts(tokens), 0.0)}
    assert all(prob == pytest.approx(everything[token], abs=floor) for prob, token in found)


@given(TEXTS, st.integers(0, 8), st.integers(0, 4))
def test_no_tree_of_as_many_nodes_expects_more(
    tokens: list[int], num_nodes: int, depth: int
) -> None:
    """The nodes of the tree are the most probable of all paths, which are enumerated here."""
    start = contexts(tokens)
    paths: dict[tuple[int, ...], float] = {}
    frontier = [((), 1.0, start)]
    for _ in range(depth):
        grown = []
        for path, path_prob, at in frontier:
            for prob, token in probable(at, 0.0):
                paths[*path, token] = path_prob * prob
                grown.append(((*path, token), path_prob * prob, after(at, token)))
        frontier = grown
    chosen, parents = best_tree(start, num_nodes, depth, 0.0)
    tree = Draft(chosen, parents=parents)
    drafted = [tree.tokens_to(node) for node in range(len(tree))]
    assert len(set(drafted)) == len(drafted) == min(num_nodes, len(paths))
    best = sorted(paths.values(), reverse=True)[:num_nodes]
    assert [paths[path] for path in drafted] == pytest.approx(best)
    chain, _ = best_chain(start, depth, 0.0)
    assert tree.first_path().token_ids == chain[: len(tree.first_path())]


@SHAPES
def test_budgets_and_path_limits_are_kept(shape: str) -> None:
    rng = random.Random(5)
    method = drafter(shape=shape, suffix_decoding_min_token_prob=0.0)
    for seq_id in range(60):
        tokens = [rng.randint(0, 2) for _ in range(rng.randint(1, 40))]
        room, budget = rng.randint(0, 6), rng.randint(0, 8)
        seq = sequence(tokens, seq_id, max_len=len(tokens) + room)
        (proposed,) = method.propose([seq], [budget])
        assert len(proposed) <= budget
        assert max(proposed.depths(), default=0) <= max(0, room - 1)
        assert seq.tokens == tokens


def test_least_probability() -> None:
    text = [*SENTENCE, 1, *SENTENCE[:6]]
    lengths = [len(draft(text, suffix_decoding_min_token_prob=p)) for p in (0.0, 0.3, 0.6, 1.0)]
    assert lengths[0] == 16 > lengths[1] > lengths[2] > lengths[3] == 0


@SHAPES
def test_it_grows_by_tokens_it_did_not_propose(shape: str) -> None:
    """A drafter that saw the text grow proposes what a new one does that sees all of it."""
    rng = random.Random(3)
    grown = drafter(shape=shape)
    seq = sequence([1, 2, 3])
    for _ in range(40):
        grown.propose([seq], [rng.choice([0, 4])])
        seq.tokens.extend(rng.randint(0, 3) for _ in range(rng.randint(1, 4)))
        (proposed,) = grown.propose([seq], [8])
        assert proposed == draft(seq.tokens, 8, shape=shape)


def test_sequences_do_not_see_each_other() -> None:
    method = drafter()
    seqs = [sequence([*SENTENCE, 1, *SENTENCE[:5]], 0), sequence([3, *SENTENCE[:5]], 1)]
    first, second = method.propose(seqs, [8, 8])
    assert len(first) > 0 == len(second)


def answer(
    method: SuffixDrafter, seq: Sequence, wanted: list[int], k: int = 8
) -> tuple[float, int]:
    """Let `method` draft a known answer; the share of draft tokens that were accepted, and how
    many passes that took."""
    drafted = accepted = passes = 0
    while seq.num_output < len(wanted):
        (proposed,) = method.propose([seq], [k])
        left = wanted[seq.num_output :]
        num_right, node = 0, -1
        children = proposed.children()
        while num_right < len(left):
            right = [c for c in children[node + 1] if proposed.token_ids[c] == left[num_right]]
            if not right:
                break
            (node,) = right
            num_right += 1
        drafted, accepted = drafted + len(proposed), accepted + num_right
        seq.tokens.extend(left[: num_right + 1])
        passes += 1
    method.release(seq)
    method.check_integrity()
    return accepted / drafted if drafted else 0.0, passes


def prompts_and_answers(count: int, length: int = 60) -> list[tuple[list[int], list[int]]]:
    rng = random.Random(11)
    words = [rng.sample(range(1000), 3) for _ in range(60)]
    return [
        (
            rng.sample(range(1000), 10),
            [token for word in rng.choices(words, k=length // 3) for token in word],
        )
        for _ in range(count)
    ]


@SHAPES
def test_repeated_prompts_raise_acceptance(shape: str) -> None:
    cases = prompts_and_answers(6)
    rates: dict[int, list[float]] = {}
    passes: dict[int, list[int]] = {}
    for store_tokens in (0, 10_000):
        method = drafter(shape=shape, store_tokens=store_tokens)
        rates[store_tokens], passes[store_tokens] = [], []
        for _ in range(4):
            results = [answer(method, sequence(p, i), a) for i, (p, a) in enumerate(cases)]
            rates[store_tokens].append(sum(rate for rate, _ in results) / len(cases))
            passes[store_tokens].append(sum(number for _, number in results))
    without, stored = rates[0], rates[10_000]
    assert without == [without[0]] * 4
    assert without[0] < 0.8
    assert stored[0] < 0.8 < stored[-1]
    assert passes[0] == [passes[0][0]] * 4
    assert passes[10_000] == sorted(passes[10_000], reverse=True)
    assert passes[10_000][-1] < passes[0][0] / 2


def test_salts_are_apart() -> None:
    ((prompt, wanted),) = prompts_and_answers(1)
    method = drafter(store_tokens=1000)
    answer(method, sequence(prompt, 0, cache_salt="a"), wanted)
    beginning = [*prompt, *wanted[:8]]
    seqs = [sequence(beginning, i, cache_salt=salt) for i, salt in enumerate(["a", "b", ""], 1)]
    same, other, none = method.propose(seqs, [8] * 3)
    assert len(same) >= 4
    assert same.token_ids == tuple(wanted[8 : 8 + len(same)])
    assert other == none == draft(beginning, 8)
    assert other != same


def test_prompts_are_not_remembered() -> None:
    method = drafter(store_tokens=1000)
    answer(method, sequence(SENTENCE, 0), [1, 2, 3])
    (proposed,) = method.propose([sequence(SENTENCE[:9], 1)], [8])
    assert len(proposed) == 0


def test_an_output_is_remembered_though_nobody_asked_for_a_draft() -> None:
    method = drafter(store_tokens=1000)
    seq = sequence([1, 2, 3])
    assert method.adopt(seq, None, 2) == 2
    seq.tokens += [4, 5, 6, 7]
    method.release(seq)
    (proposed,) = method.propose([sequence([9, 4, 5], 1)], [8])
    assert proposed.token_ids[:1] == (6,)


def test_an_output_is_remembered_once() -> None:
    method = drafter(store_tokens=1000)
    seq = sequence([1, 2, 3])
    method.propose([seq], [0])
    seq.tokens += [4, 5, 6]
    for _ in range(3):
        method.release(seq)
    assert method._store is not None
    assert method._store.num_tokens == 3


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 7, 100])
def test_the_store_is_bounded(max_tokens: int) -> None:
    rng = random.Random(1)
    store, peak = OutputStore(max_tokens, max_context=8), 0
    for _ in range(200):
        tokens = [rng.randint(0, 5) for _ in range(rng.randint(0, 2 * max_tokens))]
        salt = rng.choice("abc")
        store.add(salt, tokens)
        store.check_integrity()
        peak = max(peak, store.num_tokens)
        if tokens:  # the end of what was said last is always remembered
            assert any(tokens[-1] in automaton.next[ROOT] for automaton in store.automata(salt))
    assert max_tokens // 2 <= peak <= max_tokens


def test_salts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(past_outputs, "MAX_SALTS", 3)
    store = OutputStore(1000, max_context=8)
    for number in range(20):
        store.add(str(number), [1, 2, 3])
        store.check_integrity()
    assert not store.automata("0")
    assert store.automata("19")
    assert store.num_tokens <= 2 * 3 * 3


OUTPUTS = st.lists(st.lists(st.integers(0, 2), max_size=8), max_size=6)


@given(OUTPUTS, st.lists(st.integers(0, 2), max_size=20), st.integers(1, 4))
def test_a_followed_text_is_matched_as_if_it_came_at_once(
    outputs: list[list[int]], text: list[int], step: int
) -> None:
    """Also while the store grows and forgets."""
    store = OutputStore(12, max_context=4)
    follower = Follower(store, "a")
    for number, end in enumerate(range(step, len(text) + 1, step)):
        if number < len(outputs):
            store.add("a", outputs[number])
        found = follower.follow(text[:end], step)
        wanted = Follower(store, "a").follow(text[:end], end)
        assert [[c[1:] for c in contexts] for contexts in found] == [
            [c[1:] for c in contexts] for contexts in wanted
        ]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"shape": "bush"}, "shape must be 'chain' or 'tree', got 'bush'"),
        ({"suffix_decoding_max_tree_depth": 0}, "at least 1, got 0"),
        ({"suffix_decoding_max_tree_depth": MAX_TREE_DEPTH + 1}, f"at most {MAX_TREE_DEPTH}"),
        ({"suffix_decoding_max_spec_factor": -1.0}, "a number from 0 to 1e\\+06, got -1.0"),
        ({"suffix_decoding_max_spec_factor": float("inf")}, "a number from 0 to 1e\\+06"),
        ({"suffix_decoding_max_spec_factor": 10**400}, "a number from 0 to 1e\\+06"),
        ({"suffix_decoding_max_spec_factor": 1e308}, "a number from 0 to 1e\\+06"),
        ({"suffix_decoding_max_spec_offset": float("nan")}, "a number from 0 to 1e\\+06"),
        ({"suffix_decoding_min_token_prob": 1.1}, "a number from 0 to 1, got 1.1"),
        ({"suffix_decoding_min_token_prob": True}, "a number from 0 to 1, got True"),
        ({"store_tokens": -1}, "store_tokens must be a whole number of at least 0, got -1"),
    ],
)
def test_options_are_checked(values: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        SuffixOptions(**values)


def test_integrity_is_checked() -> None:
    method = drafter(store_tokens=10)
    seq = sequence([1, 2])
    method.propose([seq], [4])
    with pytest.raises(AssertionError, match="automata left"):
        method.check_integrity()
    method.release(seq)
    method.check_integrity()
    assert method._store is not None
    method._store.max_tokens = 0
    method._store.add("", [1])
    with pytest.raises(AssertionError, match="1 tokens remembered, 0 allowed"):
        method.check_integrity()
