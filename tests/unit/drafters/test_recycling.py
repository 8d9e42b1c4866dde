"""Token Recycling: what its table learns from which rows, and the trees that are read from it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from table_model import context, observed, sequence, step

from outpace.drafters.recycling import (
    MAX_NODES,
    MAX_SALTS,
    SLOTS_PER_TOKEN,
    AdjacencyTable,
    RecyclingDrafter,
    RecyclingOptions,
)
from outpace.errors import OptionError
from outpace.types import Draft, Sequence

VOCAB = 600


def following(token: int) -> list[int]:
    """Eight candidates, all different, none of which leads back soon."""
    return [(token * 8 + 7 * rank + 1) % VOCAB for rank in range(8)]


def drafter(*, takes_trees: bool = True, **options: object) -> RecyclingDrafter:
    return RecyclingDrafter(RecyclingOptions(**options), context(takes_trees=takes_trees))


def rows_of(drafting: RecyclingDrafter, seq: Sequence) -> dict[int, list[int]]:
    table = drafting._memories[seq.seq_id].table
    return {token: list(row) for token in range(VOCAB) if (row := table.candidates(token))}


def test_every_fed_token_is_learned_accepted_or_not() -> None:
    drafting, seq = drafter(), sequence([5, 9])
    drafting.propose([seq], [0])
    right, wrong = following(9)[0], 77
    draft = Draft((wrong, right, 78), parents=(-1, -1, 0))
    drafting._memories[0].draft = draft
    observed(drafting, [seq], [draft], following, VOCAB)
    assert seq.tokens[2:] == [right, following(right)[0]]
    learned = {token: following(token) for token in (9, wrong, right, 78)}
    assert rows_of(drafting, seq) == {5: [9], **learned}


def test_a_step_without_a_draft_learns_the_newest_token() -> None:
    drafting, seq = drafter(), sequence([5])
    drafting.propose([seq], [0])
    observed(drafting, [seq], [Draft()], following, VOCAB)
    assert rows_of(drafting, seq) == {5: following(5)}


def test_nothing_is_learned_of_a_sequence_that_nobody_asks_about() -> None:
    """It costs plain requests nothing, and leaves no trace of them in a shared table."""
    drafting, seq = drafter(shared_table=True), sequence([5, 9, 5])
    observed(drafting, [seq], [Draft()], following, VOCAB)
    drafting.check_integrity()
    (draft,) = drafting.propose([sequence([9])], [4])
    assert not draft.token_ids


def test_a_tree_larger_than_any_step_is_not_made() -> None:
    assert len(drafter(num_speculative_tokens=10**9)._slots) <= SLOTS_PER_TOKEN * MAX_NODES


def test_nothing_is_learned_from_a_draft_that_was_changed_on_its_way() -> None:
    drafting, seq = drafter(), sequence([5, 9, 5])
    (draft,) = drafting.propose([seq], [4])
    assert len(draft) > 1
    observed(drafting, [seq], [draft.shortened(1)], following, VOCAB)
    assert rows_of(drafting, seq) == {5: [9], 9: [5]}
    # Nor is it taken for what a later step fed.
    observed(drafting, [seq], [draft], following, VOCAB)
    assert rows_of(drafting, seq) == {5: [9], 9: [5]}


def test_the_prompt_is_where_a_request_starts() -> None:
    drafting, seq = drafter(), sequence([1, 2, 1, 3, 1, 2, 1])
    (draft,) = drafting.propose([seq], [8])
    assert rows_of(drafting, seq) == {1: [2, 3], 2: [1], 3: [1]}
    assert draft.tokens_to(0) == (2,)
    assert (3,) in {draft.tokens_to(node) for node in range(len(draft))}


def test_a_row_of_text_keeps_its_latest_followers() -> None:
    table = AdjacencyTable(num_candidates=3)
    table.learn_text([0, 1, 0, 2, 0, 3, 0, 1, 0, 4])
    assert list(table.candidates(0)) == [4, 1, 3]


@pytest.mark.parametrize("budget", [0, 1, 2, 7, 15, 40])
def test_trees_are_read_from_the_table(budget: int) -> None:
    drafting, seq = drafter(num_speculative_tokens=40), sequence([5])
    for _ in range(6):
        step(drafting, [seq], [40], following, VOCAB)
    rows = rows_of(drafting, seq)
    (draft,) = drafting.propose([seq], [budget])
    assert len(draft) <= budget
    assert draft.q is None
    for node, token in enumerate(draft.token_ids):
        above = seq.tokens[-1] if draft.parent(node) < 0 else draft.token_ids[draft.parent(node)]
        assert token in rows[above]
    for siblings in draft.children():
        ranks = [following_rank(seq, draft, node, rows) for node in siblings]
        assert ranks == list(range(len(ranks)))


def following_rank(seq: Sequence, draft: Draft, node: int, rows: dict[int, list[int]]) -> int:
    parent = draft.parent(node)
    return rows[seq.tokens[-1] if parent < 0 else draft.token_ids[parent]].index(
        draft.token_ids[node]
    )


def test_a_text_that_returns_is_drafted_right() -> None:
    """After one round over a cycle of tokens every draft is accepted to its depth."""

    def around(token: int) -> list[int]:
        return [(token + 1) % 10, 20, 21, 22, 23, 24, 25, 26]

    for shape in ("chain", "tree"):
        drafting, seq = drafter(shape=shape, num_speculative_tokens=5), sequence([0])
        for _ in range(40):
            before = len(seq.tokens)
            (draft,) = step(drafting, [seq], [5], around, 30)
        assert len(seq.tokens) - before == 1 + max(draft.depths())
        assert (max(draft.depths()) == 5) == draft.is_chain == (shape == "chain")


def test_nodes_without_a_row_leave_their_room_to_others() -> None:
    drafting, seq = drafter(), sequence([5])
    drafting.propose([seq], [0])
    observed(drafting, [seq], [Draft()], lambda token: [5, 1, 2, 3, 4, 6, 7, 8], VOCAB)
    (draft,) = drafting.propose([seq], [6])
    # Only 5 has a row: all else hangs below a 5, and still six nodes were found.
    assert len(draft) == 6
    assert all(p < 0 or draft.token_ids[p] == 5 for p in map(draft.parent, range(6)))


def test_drafts_end_before_the_answer_must() -> None:
    drafting, seq = drafter(shape="chain"), sequence([1, 2, 1, 2, 1], room=3)
    (draft,) = drafting.propose([seq], [6])
    assert draft.token_ids == (2, 1)


def test_targets_without_trees_get_chains_and_are_learned_from() -> None:
    drafting, seq = drafter(takes_trees=False), sequence([1, 2, 1, 3, 1])
    (draft,) = step(drafting, [seq], [4], following, VOCAB)
    assert draft.is_chain
    assert len(draft) == 4
    assert rows_of(drafting, seq)[1] == following(1)


def test_requests_share_nothing_unless_asked() -> None:
    drafting, first, second = drafter(), sequence([1, 2], 0), sequence([1], 1)
    step(drafting, [first, second], [4, 4], following, VOCAB)
    assert 2 not in rows_of(drafting, second)
    drafting.release(first)
    assert drafting.propose([sequence([2], 2)], [4]) == [Draft(origin="recycling", parents=())]


def test_a_shared_table_stays_within_its_salt() -> None:
    drafting = drafter(shared_table=True)
    one, other = sequence([1, 2], 0, salt="one"), sequence([3], 1, salt="other")
    step(drafting, [one, other], [4, 4], following, VOCAB)
    drafting.release(one)
    drafting.release(other)
    drafting.check_integrity()
    same, elsewhere = sequence([2], 2, salt="one"), sequence([2], 3, salt="other")
    assert len(drafting.propose([same], [4])[0]) == 4
    assert len(drafting.propose([elsewhere], [4])[0]) == 0


def test_shared_tables_are_bounded() -> None:
    drafting = drafter(shared_table=True)
    for number in range(MAX_SALTS + 3):
        seq = sequence([1, 2], number, salt=str(number))
        step(drafting, [seq], [1], following, VOCAB)
        drafting.release(seq)
    drafting.check_integrity()
    oldest, newest = sequence([2], 98, salt="0"), sequence([2], 99, salt=str(number))
    assert len(drafting.propose([oldest], [4])[0]) == 0
    assert len(drafting.propose([newest], [4])[0]) == 4


def test_the_stalest_row_goes_first() -> None:
    table = AdjacencyTable(num_candidates=2, max_rows=3)
    table.learn_rows([1, 2, 3], [[10], [20], [30]])
    table.learn_rows([3], [[31]])
    assert len(table) == 3
    table.learn_rows([1], [[11]])
    table.learn_rows([4], [[40]])
    assert [list(table.candidates(t)) for t in (1, 2, 3, 4)] == [[11], [], [31], [40]]


def test_nothing_is_left_after_release() -> None:
    drafting, seqs = drafter(), [sequence([1, 2, 3], i) for i in range(3)]
    step(drafting, seqs, [4, 0, 2], following, VOCAB)
    for seq in seqs[:2]:
        drafting.release(seq)
    with pytest.raises(AssertionError, match=r"sequences \[2\]"):
        drafting.check_integrity()
    drafting.release(seqs[2])
    drafting.release(sequence([1], 7))
    drafting.check_integrity()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("shape", "star", "shape must be 'chain' or 'tree', got 'star'"),
        ("num_candidates", 0, "num_candidates must be a whole number of at least 1"),
        ("num_candidates", 9, "num_candidates must be at most 8, got 9"),
        ("shared_table", "yes", "shared_table must be true or false, got 'yes'"),
    ],
)
def test_options_that_cannot_be_honoured(name: str, value: object, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        replace(RecyclingOptions(), **{name: value})
