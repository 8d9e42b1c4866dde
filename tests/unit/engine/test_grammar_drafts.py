"""What becomes of drafts where a request has a grammar: forced, cut, or left as they were drawn."""

from __future__ import annotations

from collections.abc import Sequence as List

import numpy as np
import pytest
from laws import SMALL_VOCAB
from scripted import scripted
from tiny import END_ID
from toy_grammar import TOY, A, B, C, D, compiled

from outpace.engine.drafting import GuardedDrafter
from outpace.engine.request import Request
from outpace.params import SamplingParams
from outpace.types import Draft, Sequence

EVEN = np.full(SMALL_VOCAB, 1 / SMALL_VOCAB)
WRONG = 7


def request(
    output: List[int] = (A,), limit: int = 6, max_new: int = 50, seq_id: int = 0
) -> Request:
    tokens = [3, 4, 5, *output]
    seq = Sequence(seq_id, tokens, 3, SamplingParams(), grammar=TOY.start())
    return Request(seq, None, max_new, limit)  # type: ignore[arg-type]


def proposed(draft: Draft, of: Request, *, takes_trees: bool = True) -> Draft:
    drafter = scripted(lambda seq, budget: draft)(None, None)  # type: ignore[arg-type]
    guarded = GuardedDrafter(drafter, takes_trees=takes_trees)
    (found,) = guarded.propose([of], [of.draft_budget])
    assert of.stats.num_drafter_errors == 0
    return found


@pytest.mark.parametrize(
    ("drafted", "kept"),
    [
        ((B, C, B), 3),
        ((B, WRONG, B), 1),
        ((WRONG, B), 0),
        ((B, D, END_ID, B), 3),
        ((B, END_ID), 1),
        ((B, 10**9, B), 1),
        ((B, -1), 1),
        ((D, D), 1),
    ],
)
def test_chains_that_were_not_drawn_are_cut(drafted: tuple[int, ...], kept: int) -> None:
    found = proposed(Draft(drafted, None, "own", claims=(0.5,) * len(drafted)), request())
    assert found.token_ids == drafted[:kept]
    assert len(found.claims or ()) == kept


def test_what_was_drawn_is_never_dropped() -> None:
    drawn = Draft((B, WRONG, C), (EVEN, EVEN, EVEN), "own")
    assert proposed(drawn, request()) is not None
    assert proposed(drawn, request()).token_ids == (B, WRONG, C)
    mixed = Draft((B, WRONG, C), (None, EVEN, None), "own")
    assert proposed(mixed, request()).token_ids == (B, WRONG, C)


def test_trees_are_left_as_they_are() -> None:
    tree = Draft((B, WRONG, C), None, "own", (-1, -1, 0))
    assert proposed(tree, request()).token_ids == (B, WRONG, C)
    # Where the target takes none, the path that is left is a chain like any other.
    tree = Draft((B, WRONG, C), None, "own", (-1, 0, 0))
    assert proposed(tree, request(), takes_trees=False).token_ids == (B,)


def test_what_must_come_fits_the_budget_and_the_room() -> None:
    never = Draft((WRONG,), None, "own")
    grammar = compiled(choice=["eeeeeo"])

    def forced(**asked: int) -> Draft:
        one = request(output=(), **asked)
        one.seq.grammar = grammar.start()
        return proposed(never, one)

    assert forced(limit=9).token_ids == (A,) * 5 + (D,)
    assert forced(limit=9).origin == "grammar"
    assert forced(limit=3).token_ids == (A,) * 3
    assert forced(max_new=3).token_ids == (A,) * 2
    assert forced(max_new=1).token_ids == ()
    assert forced(limit=0).token_ids == ()


def test_only_those_with_a_choice_are_asked_about() -> None:
    asked: list[int] = []

    def propose(seq: Sequence, budget: int) -> Draft:
        asked.append(seq.seq_id)
        return Draft((B,), None, "own")

    guarded = GuardedDrafter(scripted(propose)(None, None), takes_trees=True)  # type: ignore[arg-type]
    requests = [request(seq_id=0), request(output=(), seq_id=1), request(seq_id=2)]
    drafts = guarded.propose(requests, [2, 2, 0])
    assert [draft.origin for draft in drafts] == ["own", "grammar", ""]
    assert asked == [0]


def test_a_drafter_that_failed_is_not_asked_again() -> None:
    calls: list[int] = []

    def propose(seq: Sequence, budget: int) -> Draft:
        calls.append(seq.seq_id)
        raise RuntimeError("propose")

    guarded = GuardedDrafter(scripted(propose)(None, None), takes_trees=True)  # type: ignore[arg-type]
    one = request()
    assert guarded.propose([one], [one.draft_budget]) == [Draft()]
    num_calls = len(calls)
    assert one.drafter_failed
    assert guarded.propose([one], [one.draft_budget]) == [Draft()]
    assert len(calls) == num_calls
    one.seq.grammar = compiled(choice=["eo"]).start()
    del one.seq.tokens[3:]
    assert guarded.propose([one], [one.draft_budget])[0].token_ids == (A, D)


def test_a_drafter_that_changes_the_text_does_not_mislead_the_grammar() -> None:
    """It is put back, and the grammar must not believe what it was asked meanwhile."""

    def propose(seq: Sequence, budget: int) -> Draft:
        assert seq.grammar is not None
        seq.tokens.append(D)
        seq.grammar.forbid(np.zeros(SMALL_VOCAB), seq.tokens, 3, [])
        seq.grammar.forbid(np.zeros(SMALL_VOCAB), seq.tokens, 3, [])
        return Draft()

    one = request()
    guarded = GuardedDrafter(scripted(propose)(None, None), takes_trees=True)  # type: ignore[arg-type]
    guarded.propose([one], [4])
    one.seq.tokens.append(B)
    logits = np.zeros(SMALL_VOCAB)
    assert one.seq.grammar is not None
    one.seq.grammar.forbid(logits, one.seq.tokens, 3, [])
    assert set(np.flatnonzero(logits == 0)) == {B, C, D}
