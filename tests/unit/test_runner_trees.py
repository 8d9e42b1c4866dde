"""Trees in a runner: one pass over all nodes, one path kept, and the cache of a chain after it."""

from __future__ import annotations

import random
from collections.abc import Sequence as List

import pytest
import torch
from tiny import fresh_logits, new_runner, new_sequence, tiny_model

from outpace.runner import Runner, longest_path
from outpace.types import Draft, Sequence

MODEL = tiny_model(seed=3, max_len=128)
VOCAB = MODEL.config.vocab_size
TEXT = [5, 9, 4, 7, 30, 31, 8]
# Sums of a few hundred terms of order one in float64; only their order differs between passes.
CLOSE = {"rtol": 1e-9, "atol": 1e-9}


def opened(runner: Runner, tokens: List[int], seq_id: int = 0) -> Sequence:
    seq = new_sequence(list(tokens), seq_id)
    runner.open(seq)
    return seq


def random_tree(size: int, rng: random.Random) -> Draft:
    tokens = tuple(rng.randrange(2, 6) for _ in range(size))
    return Draft(tokens, parents=tuple(rng.randrange(-1, node) for node in range(size)))


def assert_cache_is_that_of_a_chain(runner: Runner, seq: Sequence) -> None:
    """The cache holds a beginning of the tokens, with the keys and values of feeding just that."""
    length = runner.num_cached(seq)
    row = runner._placements[seq.seq_id].row
    assert list(runner.cache.token_ids(row)) == seq.tokens[:length]
    fresh = new_runner(MODEL)
    copy = opened(fresh, [*seq.tokens[:length], 2])
    fresh.extend([copy], max_feed=[length])
    for ours, theirs in ((runner.cache.k, fresh.cache.k), (runner.cache.v, fresh.cache.v)):
        torch.testing.assert_close(ours[:, row, :length], theirs[:, 0, :length], **CLOSE)


@pytest.mark.parametrize("seed", range(12))
def test_each_node_is_scored_after_its_own_path(seed: int) -> None:
    rng = random.Random(seed)
    runner = new_runner(MODEL, num_rows=3)
    seqs = [opened(runner, TEXT[: 3 + i], i) for i in range(3)]
    drafts = [random_tree(rng.randrange(1, 9), rng), Draft((3, 4)), random_tree(5, rng)]
    scores = runner.extend(seqs, drafts)
    for seq, draft, rows in zip(seqs, drafts, scores.rows, strict=True):
        logits = scores.logits[rows]
        assert len(logits) == len(draft) + 1
        torch.testing.assert_close(logits[0], fresh_logits(MODEL, seq.tokens), **CLOSE)
        for node in range(len(draft)):
            text = [*seq.tokens, *draft.tokens_to(node)]
            torch.testing.assert_close(logits[node + 1], fresh_logits(MODEL, text), **CLOSE)


@pytest.mark.parametrize("seed", range(20))
def test_the_path_that_was_committed_is_kept(seed: int) -> None:
    """Over several steps, with trees, chains and no draft, whatever part of them is accepted."""
    rng = random.Random(seed)
    runner = new_runner(MODEL)
    seq = opened(runner, TEXT)
    for _ in range(6):
        draft = rng.choice([random_tree(rng.randrange(1, 8), rng), Draft((4, 5)), Draft()])
        runner.extend([seq], [draft])
        node = rng.randrange(-1, len(draft))
        accepted = draft.tokens_to(node) if node >= 0 else ()
        seq.tokens += [*accepted, rng.randrange(6, VOCAB)]
        runner.commit([seq])
        assert runner.num_cached(seq) == len(seq.tokens) - 1
        assert_cache_is_that_of_a_chain(runner, seq)


def test_equal_siblings_do_not_hide_each_others_children() -> None:
    nodes, parents = [4, 4, 7, 4, 9], [-1, -1, 0, 1, 3]
    assert longest_path(nodes, parents, [4, 4, 9, 1]) == [1, 3, 4]
    assert longest_path(nodes, parents, [4, 7]) == [0, 2]
    assert longest_path(nodes, parents, [4]) == [0]
    assert longest_path(nodes, parents, [5, 4]) == []
    assert longest_path(nodes, parents, []) == []


def test_a_row_closed_in_the_middle_of_a_tree_is_not_mistaken_for_a_text() -> None:
    runner = new_runner(MODEL)
    seq = opened(runner, TEXT)
    runner.extend([seq], [Draft((20, 21, 22), parents=(-1, -1, 0))])
    runner.release(seq)
    again = new_sequence([*TEXT, 20, 21, 22, 23], 1)
    assert runner.open(again) == len(TEXT)
    scores = runner.extend([again])
    torch.testing.assert_close(scores.logits[-1], fresh_logits(MODEL, again.tokens), **CLOSE)


def test_a_failed_pass_leaves_no_tree_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = new_runner(MODEL)
    seq = opened(runner, TEXT)
    runner.extend([seq])
    seq.tokens.append(6)
    runner.commit([seq])

    def fail(*args: object, **kwargs: object) -> None:
        raise RuntimeError("no pass today")

    with monkeypatch.context() as patch:
        patch.setattr(MODEL.decoder, "forward", fail)
        with pytest.raises(RuntimeError):
            runner.extend([seq], [Draft((20, 21, 22), parents=(-1, -1, 0))])
    runner.commit([seq])
    scores = runner.extend([seq], [Draft((20, 21), parents=(-1, -1))])
    torch.testing.assert_close(scores.logits[2], fresh_logits(MODEL, [*seq.tokens, 21]), **CLOSE)


def test_a_tree_that_is_a_chain_is_fed_as_one() -> None:
    runner = new_runner(MODEL)
    seq = opened(runner, TEXT)
    runner.extend([seq], [Draft((20, 21), parents=(-1, 0))])
    assert runner._placements[seq.seq_id].tree is None
