"""EAGLE drafters: columns are the true ones whatever happened before, and drafts the head's own."""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from eagle_cases import (
    GREEDY,
    VOCAB,
    FreshHead,
    SimulatedTarget,
    check_chain,
    check_columns,
    check_tree,
    first_column,
    new_drafter,
    new_head,
)
from effort import examples
from fake_head import FakeHead, softmax

from outpace import SamplingParams
from outpace.drafters import drafter_class, make_options
from outpace.drafters.parts import eagle_rows
from outpace.errors import OptionError
from outpace.types import NO_DRAFT, Draft, Sequence
from outpace.verification.coupled import choose

SEEDED = SamplingParams(temperature=0.8, seed=5)
SAMPLED = SamplingParams(temperature=0.9)


def some_tokens(rng: np.random.Generator, count: int) -> list[int]:
    return rng.integers(0, VOCAB, count).tolist()


def sequence(
    seq_id: int, tokens: List[int], params: SamplingParams = GREEDY, **fields: Any
) -> Sequence:
    return Sequence(seq_id, list(tokens), len(tokens), params, **fields)


def random_path(rng: np.random.Generator, draft: Draft) -> list[int]:
    """The nodes of a path of the draft, as accepted ones are; often none."""
    if not len(draft) or rng.random() < 0.3:
        return []
    return draft.path(int(rng.integers(0, len(draft))))


def another_draft(rng: np.random.Generator) -> Draft:
    """What some other drafter may have proposed instead."""
    size = int(rng.integers(0, 5))
    parents = tuple(int(rng.integers(-1, node)) if node else -1 for node in range(size))
    return Draft(tuple(some_tokens(rng, size)), parents=parents if rng.random() < 0.5 else None)


class Scenario:
    """Requests that come, sleep, draft, are cut short and go, at random."""

    def __init__(self, seed: int, shape: str, context: int = 200) -> None:
        """context: most columns of the head."""
        self.rng = np.random.default_rng(seed)
        self.shape, self.context = shape, context
        self.head, self.fresh = new_head(max_len=context), new_head()
        self.drafter = new_drafter(
            self.head, shape=shape, tree_top_k=3, tree_depth=3, num_speculative_tokens=6
        )
        dtype = torch.float64 if seed % 2 else torch.float32
        self.target = SimulatedTarget(self.drafter, self.rng, dtype)
        self.running: list[Sequence] = []
        self.texts: list[list[int]] = []  # of what ran before
        self.num_drafts = self.num_skipped = self.num_seqs = 0

    def run(self, num_steps: int) -> None:
        for _ in range(num_steps):
            if len(self.running) < 4 and self.rng.random() < 0.5:
                self.admit()
            self.step()
            for seq in list(self.running):
                if self.rng.random() < 0.08 or len(seq.tokens) > 90:
                    self.end(seq)
        for seq in list(self.running):
            self.end(seq)
        self.drafter.check_integrity()

    def admit(self) -> None:
        rng = self.rng
        kind, source, salt = rng.random(), None, "ab"[int(rng.random() < 0.2)]
        tokens = some_tokens(rng, int(rng.integers(1, 30)))
        if kind < 0.3 and self.running:
            source = self.running[int(rng.integers(len(self.running)))]
            tokens, salt = source.tokens[: source.num_prompt], source.cache_salt
            if rng.random() < 0.3:
                tokens = [*tokens[: int(rng.integers(1, len(tokens) + 1))], *tokens[:2]]
        elif kind < 0.7 and self.texts:
            text = self.texts[int(rng.integers(len(self.texts)))]
            tokens = [*text[: int(rng.integers(1, len(text) + 1))], *tokens[:5]]
        seq = sequence(self.num_seqs, tokens, cache_salt=salt)
        self.num_seqs += 1
        self.target.admit(seq, source, int(rng.integers(0, len(tokens))))
        self.running.append(seq)

    def step(self) -> None:
        rng, seqs = self.rng, self.running
        seqs = [seq for seq in seqs if rng.random() < 0.9]  # the step's tokens may be used up
        if not seqs:
            return
        budgets = [int(rng.integers(1, 7)) if rng.random() < 0.6 else 0 for _ in seqs]
        asked = [i for i, budget in enumerate(budgets) if budget]
        drafts = [NO_DRAFT] * len(seqs)
        if asked:
            made = self.drafter.propose([seqs[i] for i in asked], [budgets[i] for i in asked])
            for i, draft in zip(asked, made, strict=True):
                self.check(seqs[i], budgets[i], draft)
                drafts[i] = draft if rng.random() < 0.8 else another_draft(rng)
        paths = [random_path(rng, draft) for draft in drafts]
        own = [some_tokens(rng, 1) for _ in seqs]
        stopped = [bool(path) and rng.random() < 0.1 for path in paths]
        for i, has_stopped in enumerate(stopped):
            own[i] = [] if has_stopped else own[i]
        before = [len(seq.tokens) for seq in seqs]
        self.target.step(seqs, drafts, paths, own, chunk=int(rng.integers(4, 20)))
        for seq, length, has_stopped in zip(seqs, before, stopped, strict=True):
            if has_stopped and len(seq.tokens) > length:
                self.end(seq)

    def check(self, seq: Sequence, budget: int, draft: Draft) -> None:
        if draft == NO_DRAFT:
            assert len(seq.tokens) == 1 or not self.target.is_decoding(seq)
            return
        self.num_drafts += 1
        check_columns(self.drafter, self.head, seq)
        first = first_column(self.drafter, seq)
        self.num_skipped += first > 0
        assert draft.is_deterministic
        if self.shape == "chain":
            # Every draft token but the last takes a column.
            room = self.context - (len(seq.tokens) - 1 - first) + 1
            assert len(draft) == min(budget, room)
            check_chain(self.fresh, seq, draft, first=first)
        else:
            size = {"max_nodes": budget, "max_depth": min(budget, 3)}
            check_tree(self.fresh, seq, draft, top_k=3, first=first, **size)

    def end(self, seq: Sequence) -> None:
        self.target.release(seq)
        self.running.remove(seq)
        self.texts.append(list(seq.tokens))


@pytest.mark.parametrize("shape", ["chain", "tree"])
@pytest.mark.parametrize(("most_unread", "most_refed"), [(256, 64), (6, 3)])
def test_columns_are_true_whatever_happened_before(
    shape: str, most_unread: int, most_refed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eagle_rows, "MOST_UNREAD", most_unread)
    monkeypatch.setattr(eagle_rows, "MOST_REFED", most_refed)
    num_drafts = num_skipped = 0
    for seed in range(examples(12)):
        scenario = Scenario(seed, shape)
        scenario.run(40)
        num_drafts += scenario.num_drafts
        num_skipped += scenario.num_skipped
    assert num_drafts > 20 * examples(12)
    assert (num_skipped > 5 * examples(12)) == (most_unread < 256)


def test_columns_are_true_where_rows_fill_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts of up to 90 tokens and a head that knows 24: rows begin anew in the middle of texts,
    which others are copied from and which come back."""
    monkeypatch.setattr(eagle_rows, "MOST_REFED", 8)
    num_skipped = 0
    for seed in range(examples(12)):
        scenario = Scenario(seed, "chain", context=24)
        scenario.run(40)
        num_skipped += scenario.num_skipped
    assert num_skipped > 5 * examples(12)


def test_it_knows_how_much_it_has_to_read() -> None:
    drafter, target, (seq,) = decoding(new_head(), GREEDY)
    assert drafter.num_unread(sequence(7, [1, 2])) == 0
    assert drafter.num_unread(seq) == 3
    drafter.propose([seq], [2])
    assert drafter.num_unread(seq) == 0
    for _ in range(5):
        target.step([seq], [NO_DRAFT], [[]], [[6]])
    assert drafter.num_unread(seq) == 4


def test_the_check_can_fail() -> None:
    """A drafter that keeps what it drafted, or takes the wrong node's feature, is found out."""
    rng = np.random.default_rng(0)
    for break_it in (False, True):
        head = new_head()
        drafter = new_drafter(head)
        target = SimulatedTarget(drafter, rng)
        seq = sequence(0, [1, 2, 3, 4])
        target.admit(seq)
        target.step([seq], [NO_DRAFT], [[]], [[5]])
        tree = Draft((6, 7, 8), parents=(-1, -1, 1))
        target.step([seq], [tree], [[1, 2]], [[9]])
        if break_it:
            drafter._rows._columns[0].pending._parts[-1][:, -1] += 1
        drafter.propose([seq], [3])
        if break_it:
            with pytest.raises(AssertionError, match="columns"):
                check_columns(drafter, head, seq)
        else:
            check_columns(drafter, head, seq)


def test_of_a_long_prompt_the_head_reads_the_end() -> None:
    head = new_head(max_len=4096)
    drafter = new_drafter(head, max_len=4096)
    target = SimulatedTarget(drafter, np.random.default_rng(0))
    seq = sequence(0, some_tokens(np.random.default_rng(1), 1300))
    target.admit(seq)
    target.step([seq], [NO_DRAFT], [[]], [[3]], chunk=700)
    assert drafter.propose([seq], [2]) == [NO_DRAFT]
    target.step([seq], [NO_DRAFT], [[]], [[3]], chunk=700)
    for _ in range(20):  # sleeps
        target.step([seq], [NO_DRAFT], [[]], [[4]])
    assert head.pass_sizes == []
    (draft,) = drafter.propose([seq], [2])
    assert head.pass_sizes == [276, 1]
    for _ in range(290):
        target.step([seq], [NO_DRAFT], [[]], [[4]])
    drafter.propose([seq], [2])
    assert 256 <= head.pass_sizes[2] <= 288
    assert len(draft) == 2
    check_columns(drafter, head, seq)
    assert len(drafter._rows._columns[0].pending) == 0


def test_a_copied_prompt_passes_the_head_once() -> None:
    head = new_head()
    drafter = new_drafter(head)
    target = SimulatedTarget(drafter, np.random.default_rng(0))
    prompt = some_tokens(np.random.default_rng(1), 50)
    seqs = [sequence(i, prompt) for i in range(3)]
    target.admit(seqs[0])
    target.step(seqs[:1], [NO_DRAFT], [[]], [[3]])
    for seq in seqs[1:]:
        target.admit(seq, seqs[0], 49)
        assert target.cached[seq.seq_id] == 49, "nothing is fed again"
        target.step([seq], [NO_DRAFT], [[]], [[4]])
    assert sum(head.pass_sizes) == 48
    drafts = drafter.propose(seqs, [3, 3, 3])
    for seq, draft in zip(seqs, drafts, strict=True):
        check_columns(drafter, head, seq)
        check_chain(new_head(), seq, draft)
    # Later the source's row goes on past the prompt: its last token is fed to the target again.
    late = sequence(3, prompt)
    target.step(seqs[:1], [drafts[0]], [[0]], [[5]])
    drafter.propose(seqs[:1], [1])
    target.admit(late, seqs[0], 49)
    assert target.cached[3] == 48


def test_the_next_turn_starts_where_the_last_one_ended() -> None:
    """Its row is taken over, with what was pending when it ended."""
    for slept in (False, True):
        head = new_head()
        drafter = new_drafter(head)
        target = SimulatedTarget(drafter, np.random.default_rng(0))
        first = sequence(0, [1, 2, 3, 4, 5])
        target.admit(first)
        target.step([first], [NO_DRAFT], [[]], [[6]])
        draft = NO_DRAFT if slept else drafter.propose([first], [3])[0]
        target.step([first], [draft], [[] if slept else [0, 1]], [[7]])
        num_cached = len(first.tokens) - 1
        target.release(first)
        second = sequence(1, [*first.tokens, 8, 9])
        target.admit(second, None, num_cached)
        assert target.cached[1] == num_cached
        # One that differs in its first token, or may not share, starts anew.
        drafter.release(second)
        others = (sequence(2, [3, *second.tokens[1:]]), replace(second, seq_id=3, cache_salt="me"))
        for other in others:
            assert drafter.adopt(other, None, num_cached) == 0
            drafter.release(other)


def test_the_last_column_of_a_reused_prefix_depends_on_the_next_token() -> None:
    head = new_head()
    drafter = new_drafter(head)
    target = SimulatedTarget(drafter, np.random.default_rng(0))
    first = sequence(0, [1, 2, 3, 4, 5])
    target.admit(first)
    target.step([first], [NO_DRAFT], [[]], [[6]])
    target.release(first)
    # Of [1, 2, 3] the target knows the features; column 2 pairs that of 3 with 4, not with 9, but
    # its feature is still there.
    second = sequence(1, [1, 2, 3, 9, 9, 9])
    target.admit(second, None, 3)
    assert target.cached[1] == 3
    target.step([second], [NO_DRAFT], [[]], [[6]])
    drafter.propose([second], [2])
    check_columns(drafter, head, second)


@pytest.mark.parametrize("num_rows", [1, 3])
def test_an_ended_text_costs_no_pass(num_rows: int) -> None:
    head = new_head()
    drafter = new_drafter(head, num_rows=num_rows)
    target = SimulatedTarget(drafter, np.random.default_rng(0))
    for number in range(5):
        seq = sequence(number, [10 + number, 2, 3, 4, 5])
        target.admit(seq)
        target.step([seq], [NO_DRAFT], [[]], [[6]])
        target.release(seq)
        drafter.check_integrity()
    follower = sequence(9, [*seq.tokens, 8, 9])
    target.admit(follower, None, len(seq.tokens) - 1)
    assert target.cached[9] == len(seq.tokens) - 1
    assert not head.pass_sizes
    target.step([follower], [NO_DRAFT], [[]], [[6]])
    drafter.propose([follower], [2])
    check_columns(drafter, head, follower)


def decoding(
    head: FakeHead, params: SamplingParams, *, count: int = 1, **options: Any
) -> tuple[Any, SimulatedTarget, list[Sequence]]:
    """A drafter and sequences whose prompts the target has fed."""
    drafter = new_drafter(head, **options)
    target = SimulatedTarget(drafter, np.random.default_rng(0))
    seqs = [sequence(i, [1, 2, 3, 4 + i], params) for i in range(count)]
    for seq in seqs:
        target.admit(seq)
    target.step(seqs, [NO_DRAFT] * count, [[]] * count, [[5]] * count)
    return drafter, target, seqs


@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_asked_again_it_says_the_same(shape: str) -> None:
    head = new_head()
    drafter, _, seqs = decoding(head, GREEDY, shape=shape)
    drafts = [drafter.propose(seqs, [4])[0] for _ in range(3)]
    assert len(drafts[0]) == 4
    assert drafts[0] == drafts[1] == drafts[2]
    check_columns(drafter, head, seqs[0])


@pytest.mark.parametrize("shape", ["chain", "tree"])
@pytest.mark.parametrize("params", [GREEDY, SEEDED, SAMPLED])
def test_a_pass_that_fails_leaves_everything_as_it_was(params: Any, shape: str) -> None:
    head = new_head()
    drafter, _, seqs = decoding(head, params, count=2, shape=shape)
    head.fails = 1
    with pytest.raises(RuntimeError):
        drafter.propose(seqs, [3, 3])
    drafts = drafter.propose(seqs, [3, 3])
    assert [len(draft) for draft in drafts] == [3, 3]
    for seq in seqs:
        check_columns(drafter, head, seq)
    for seq in seqs:
        drafter.release(seq)
    drafter.check_integrity()


def test_drawn_tokens_come_with_their_law() -> None:
    head = new_head()
    drafter, _, seqs = decoding(head, SAMPLED, count=3)
    seqs[1].params = GREEDY
    drafts = drafter.propose(seqs, [3, 3, 2])
    assert [len(draft) for draft in drafts] == [3, 3, 2]
    assert drafts[1].is_deterministic
    check_chain(new_head(), seqs[1], drafts[1])
    for seq, draft in ((seqs[0], drafts[0]), (seqs[2], drafts[2])):
        fresh = FreshHead(new_head(), seq.tokens)
        for i in range(len(draft)):
            row = fresh.logits(draft.token_ids[:i])
            q = draft.q_at(i)
            assert q is not None
            assert q.shape == (VOCAB,)
            assert q.dtype == np.float32
            law = np.zeros(VOCAB, np.float32)
            law[head.draft_token_ids] = softmax(row / 0.9)
            assert q == pytest.approx(law, abs=1e-6)


def test_a_temperature_next_to_0_is_greedy() -> None:
    head = new_head()
    drafter, _, seqs = decoding(head, SamplingParams(temperature=1e-30))
    (draft,) = drafter.propose(seqs, [3])
    assert draft.is_deterministic
    check_chain(new_head(), seqs[0], draft)


def test_seeded_requests_choose_with_the_targets_noise() -> None:
    """Were the head's law the target's own, every token would be the target's choice."""
    head = new_head()
    drafter, _, seqs = decoding(head, SEEDED, count=2)
    seqs[1].choice = 3
    drafts = drafter.propose(seqs, [4, 2])
    assert [len(draft) for draft in drafts] == [4, 2]
    for seq, draft in zip(seqs, drafts, strict=True):
        assert draft.is_deterministic
        fresh = FreshHead(new_head(), seq.tokens)
        for i in range(len(draft)):
            row = fresh.logits(draft.token_ids[:i])
            p = np.zeros(VOCAB, np.float32)
            p[head.draft_token_ids] = softmax(row / 0.8)
            assert draft.token_ids[i] == choose(p, 5, seq.choice, seq.num_output + i)
    check_columns(drafter, head, seqs[0])
    assert drafter.propose(seqs, [4, 2]) == drafts


def test_past_its_own_context_the_head_begins_anew() -> None:
    head = new_head(max_len=20)
    drafter = new_drafter(head)
    target = SimulatedTarget(drafter, np.random.default_rng(0))
    seq = sequence(0, some_tokens(np.random.default_rng(1), 16))
    target.admit(seq)
    lengths, beginnings = [], set()
    for _ in range(40):
        target.step([seq], [NO_DRAFT], [[]], [[3]])
        (draft,) = drafter.propose([seq], [4])
        check_columns(drafter, head, seq)
        check_chain(new_head(), seq, draft, first=first_column(drafter, seq))
        lengths.append(len(draft))
        beginnings.add(first_column(drafter, seq))
    # Of 16 tokens it reads 10. The last of four drafted tokens would take column 19, the last.
    assert lengths[:14] == [4, 4, 4, 4, 4, 4, 4, 4, 3, 2, 1, 4, 4, 4]
    assert min(lengths) == 1
    assert len(beginnings) == 3


def test_a_row_that_reaches_far_enough_is_preferred_to_a_longer_share() -> None:
    drafter = new_drafter(new_head(max_len=4096), max_len=4096)
    target = SimulatedTarget(drafter, np.random.default_rng(0))
    system = some_tokens(np.random.default_rng(1), 280)
    short, long = sequence(0, [*system, 1, 2]), sequence(1, [*system, *([3, 4] * 400)])
    for seq in (short, long):
        target.admit(seq)
        while not target.is_decoding(seq):
            target.step([seq], [NO_DRAFT], [[]], [[5]], chunk=500)
        target.release(seq)
    num_cached = len(long.tokens) - 1
    target.admit(sequence(2, [*long.tokens, 6, 7]), None, num_cached)
    assert target.cached[2] == num_cached


def test_what_the_target_knows_and_the_head_does_not_is_fed_again_in_part() -> None:
    drafter = new_drafter(new_head())
    prompt = some_tokens(np.random.default_rng(2), 150)
    assert drafter.adopt(sequence(1, prompt), None, 140) == 140 - eagle_rows.MOST_REFED
    assert drafter.adopt(sequence(2, prompt[:50]), None, 49) == 0


def test_no_draft_is_longer_than_the_answer_has_room() -> None:
    for shape in ("chain", "tree"):
        drafter, _, seqs = decoding(new_head(), GREEDY, shape=shape)
        seqs[0].max_len = len(seqs[0].tokens) + 3
        (draft,) = drafter.propose(seqs, [6])
        assert max(draft.depths()) == 2
        seqs[0].max_len = len(seqs[0].tokens) + 1
        assert drafter.propose(seqs, [6]) == [NO_DRAFT]


def test_a_tree_never_outgrows_its_row() -> None:
    head = new_head()
    drafter = new_drafter(head, max_len=255, shape="tree", num_speculative_tokens=4)
    target = SimulatedTarget(drafter, np.random.default_rng(0))
    seq = sequence(0, some_tokens(np.random.default_rng(1), 240))
    target.admit(seq)
    capacity = drafter._rows.cache.capacity
    assert capacity == 512
    for _ in range(15):
        target.step([seq], [NO_DRAFT], [[]], [[3]])
        (draft,) = drafter.propose([seq], [4])
        assert len(draft) <= 4


def test_unknown_sequences_are_nobodys_business() -> None:
    drafter, target, seqs = decoding(new_head(), GREEDY)
    stranger = sequence(7, [1, 2, 3])
    assert drafter.propose([stranger, *seqs], [3, 2])[0] == NO_DRAFT
    target.cached[7] = 0
    target.step([stranger], [NO_DRAFT], [[]], [[3]])
    assert drafter.propose([stranger], [3]) == [NO_DRAFT]
    drafter.release(stranger)


@pytest.mark.parametrize(
    "values", [{"shape": "bush"}, {"tree_top_k": 0}, {"tree_depth": 0}, {"tree_top_k": 1.5}]
)
def test_options_are_checked(values: dict[str, Any]) -> None:
    for method in ("eagle", "eagle3"):
        with pytest.raises(OptionError, match=next(iter(values))):
            make_options(drafter_class(method), values)
