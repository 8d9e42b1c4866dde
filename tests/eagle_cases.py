"""A simulated target that decides at random, for the tests of drafters that live on its features.

It keeps to the order of the engine's step and to what `Scores` promises, and leaves out the model.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence as List
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch
from fake_head import FakeHead, FakeRows, head_config
from tiny import new_runner, tiny_model

from outpace.drafters.base import DraftingContext
from outpace.drafters.eagle3 import Eagle3Drafter
from outpace.drafters.parts.eagle_drafter import EagleOptions
from outpace.drafters.parts.eagle_tree import CandidateTree
from outpace.models.attention import Segment
from outpace.params import SamplingParams
from outpace.types import Draft, Scores, Sequence, Verdict

VOCAB = 16
MODEL = tiny_model(vocab_size=VOCAB)
GREEDY = SamplingParams(temperature=0)
LAYERS, LAYER_SIZE = (1, 2), 3


def new_head(**changes: Any) -> FakeHead:
    config = head_config(vocab_size=VOCAB, draft_vocab_size=12, feature_layers=LAYERS, **changes)
    return FakeHead(config)


def new_drafter(
    head: FakeHead, *, num_rows: int = 4, max_len: int = 200, **options: Any
) -> Eagle3Drafter:
    context = DraftingContext(
        target=MODEL,
        max_num_seqs=num_rows,
        max_model_len=max_len,
        rng=np.random.default_rng(0),
        runner=new_runner(MODEL),
    )
    return Eagle3Drafter(EagleOptions(model=head, **options), context)


@cache
def _state(key: int) -> np.ndarray:
    rng = np.random.default_rng(key)
    return rng.standard_normal(len(LAYERS) * LAYER_SIZE).astype(np.float32)


def feature(tokens: List[int]) -> np.ndarray:
    """What the target computes at the last of these tokens, which depends on them all."""
    return _state(zlib.crc32(bytes(tokens)))


def features(tokens: List[int], start: int = 0) -> np.ndarray:
    """The features of all tokens from `start` on."""
    return np.stack([feature(tokens[: i + 1]) for i in range(start, len(tokens))])


def first_column(drafter: Eagle3Drafter, seq: Sequence) -> int:
    """The token that the sequence's first column belongs to."""
    return drafter._rows._columns[seq.seq_id].first


def check_columns(drafter: Eagle3Drafter, head: FakeHead, seq: Sequence) -> None:
    """Raise AssertionError unless the sequence's row holds exactly its true columns."""
    rows, row = drafter._rows.cache, drafter._rows._columns[seq.seq_id].row
    assert isinstance(rows, FakeRows)
    first = first_column(drafter, seq)
    count = len(seq.tokens) - 1 - first
    assert rows.length(row) == count
    assert rows.positions[row, :count].tolist() == list(range(count))
    assert rows.tokens[row, :count].tolist() == seq.tokens[first + 1 :]
    wrong = np.flatnonzero(
        (rows.x[row, :count] != head.fuse(features(seq.tokens[:-1], first))).any(axis=1)
    )
    assert not wrong.size, f"columns {wrong.tolist()} start from something else"


class FreshHead:
    """A head that saw nothing of a text before it was fed at once, from its token `first` on."""

    def __init__(self, head: FakeHead, tokens: List[int], first: int = 0) -> None:
        self._head = head
        self._cache = head.new_cache(num_rows=1, capacity=256)
        self._start = len(tokens) - 1 - first
        x, segment = head.fuse(features(tokens[:-1], first)), Segment(0, 0, self._start)
        self._root = head.forward(self._cache, tokens[first + 1 :], x, [segment], [self._start - 1])

    def logits(self, path: List[int]) -> np.ndarray:
        """After these draft tokens, fed one by one, [Vd]."""
        logits, outputs = self._root
        for i, token in enumerate(path):
            segment = Segment(0, self._start + i, 1)
            logits, outputs = self._head.forward(self._cache, [token], outputs[-1:], [segment], [0])
        return logits[0]


def check_chain(head: FakeHead, seq: Sequence, draft: Draft, *, first: int = 0) -> None:
    """Raise AssertionError unless a greedy chain is what a fresh head says."""
    fresh = FreshHead(head, seq.tokens, first)
    for i, token in enumerate(draft.token_ids):
        logits = fresh.logits(draft.token_ids[:i])
        assert token == head.draft_token_ids[logits.argmax()]


def check_tree(
    head: FakeHead,
    seq: Sequence,
    draft: Draft,
    *,
    top_k: int,
    max_nodes: int,
    max_depth: int,
    first: int = 0,
) -> None:
    """Raise AssertionError unless a tree is what a fresh head, asked path by path, says."""
    fresh = FreshHead(head, seq.tokens, first)
    tree = CandidateTree(top_k=top_k, max_nodes=max_nodes, max_depth=max_depth)
    while frontier := tree.frontier():
        for node in frontier:
            row = fresh.logits([tree.token_ids[n] for n in tree.closure([node])])
            best = np.argsort(-row, kind="stable")[:top_k]
            peak = row.max()
            log_probs = row[best] - (peak + np.log(np.exp(row - peak).sum()))
            tree.add(node, head.draft_token_ids[best].tolist(), log_probs.tolist())
    nodes = tree.best()
    assert list(draft.token_ids) == [tree.token_ids[node] for node in nodes]
    assert draft.parents == tree.parents_within(nodes)


@dataclass
class SimulatedTarget:
    """cached: of each sequence how many tokens the target's cache holds."""

    drafter: Eagle3Drafter
    rng: np.random.Generator
    dtype: torch.dtype = torch.float32
    cached: dict[int, int] = field(default_factory=dict)

    def admit(self, seq: Sequence, source: Sequence | None = None, length: int = 0) -> None:
        usable = self.drafter.adopt(seq, source, length)
        assert 0 <= usable <= length
        self.cached[seq.seq_id] = usable

    def release(self, seq: Sequence) -> None:
        self.drafter.release(seq)
        self.cached.pop(seq.seq_id, None)

    def is_decoding(self, seq: Sequence) -> bool:
        return self.cached[seq.seq_id] == len(seq.tokens) - 1

    def step(
        self,
        seqs: List[Sequence],
        drafts: List[Draft],
        paths: List[List[int]],
        own: List[List[int]],
        *,
        chunk: int = 1000,
    ) -> None:
        """Feed every sequence; where its text is fed then, accept the nodes of `paths[i]` and let
        `own[i]` (one token, or none after a stop) follow."""
        feeds, mid_prompt = [], []
        for seq, draft in zip(seqs, drafts, strict=True):
            pending = seq.tokens[self.cached[seq.seq_id] :]
            mid_prompt.append(len(pending) > chunk)
            feeds.append(pending[:chunk] if mid_prompt[-1] else [*pending, *draft.token_ids])
        # Passes order sequences by their cache rows, not as they are given.
        hidden = np.empty((sum(map(len, feeds)), len(LAYERS) * LAYER_SIZE), np.float32)
        fed, rows = [slice(0, 0)] * len(seqs), [slice(0, 0)] * len(seqs)
        at = row = 0
        for i in self.rng.permutation(len(seqs)).tolist():
            fed[i] = slice(at, at + len(feeds[i]))
            hidden[fed[i]] = self._states(seqs[i], drafts[i], feeds[i])
            at = fed[i].stop
            if not mid_prompt[i]:
                rows[i] = slice(row, row + 1 + len(drafts[i]))
                row = rows[i].stop
        starts = [self.cached[seq.seq_id] for seq in seqs]
        verdicts = []
        for i, seq in enumerate(seqs):
            self.cached[seq.seq_id] += len(feeds[i])
            if mid_prompt[i]:
                verdicts.append(Verdict())
                continue
            accepted = [drafts[i].token_ids[node] for node in paths[i]]
            verdict = Verdict((*accepted, *own[i]), len(accepted), nodes=tuple(paths[i]))
            seq.tokens.extend(verdict.token_ids)
            self.cached[seq.seq_id] = len(seq.tokens) - 1
            verdicts.append(verdict)
        split = torch.from_numpy(hidden).to(self.dtype).split(LAYER_SIZE, dim=1)
        states = dict(zip(LAYERS, (part.contiguous() for part in split), strict=True))
        values = np.empty((row, VOCAB), np.float32)
        self.drafter.observe(seqs, Scores(values, rows, fed, states, starts=starts), verdicts)
        # What is valid during the call only is overwritten by the next pass.
        for state in states.values():
            state.fill_(float("nan"))

    def _states(self, seq: Sequence, draft: Draft, feed: List[int]) -> np.ndarray:
        start = self.cached[seq.seq_id]
        num_text = min(len(seq.tokens) - start, len(feed))
        states = list(features(seq.tokens[: start + num_text], start))
        for node in range(len(feed) - num_text):
            states.append(feature([*seq.tokens, *draft.tokens_to(node)]))
        return np.stack(states)
