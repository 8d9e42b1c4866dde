"""Which columns an EAGLE head has of each sequence, and the features of those still to come."""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from outpace.cache import common_prefix_len
from outpace.drafters.parts.features import CapturedFeatures, FeatureQueue, committed_rows
from outpace.models.attention import Segment, padded_capacity
from outpace.types import Scores, Sequence, Verdict

if TYPE_CHECKING:
    from jaxtyping import Float32

    from outpace.heads.base import EagleRunner

MAX_FEED = 512
"""Most columns of one sequence fed per pass of the head while it catches up."""


@dataclass(slots=True)
class _Columns:
    """A sequence's row in the head's cache.

    pending: features of the tokens after those whose columns the row holds; the newest one dropped
    is that of the row's last column, if that was fed for this sequence. num_known: how many tokens,
    from the first on, have their feature in a column or pending.
    """

    row: int
    num_known: int
    pending: FeatureQueue = field(default_factory=FeatureQueue)


@dataclass(frozen=True, slots=True)
class Feed:
    """The next columns of one sequence: from slot `start` of `row` on, `token_ids` with the
    target's `features`."""

    seq: Sequence
    row: int
    start: int
    token_ids: list[int]
    features: Float32[np.ndarray, "n F"]


class EagleRows:
    """The head's cache, kept in step with the text.

    A row holds columns made of committed tokens and true target features only, the longest run of
    them from the first token on: what is drafted is written behind its end and never counted in.
    So nothing has to be undone after a rejection, a stop or a step slept through; columns come when
    `pass_over` or a draft feeds the features that came in since. A column's id in the cache is its
    token, i + 1 for column i; the first token is in the row's salt, since every column depends on
    it: equal ids under equal salts are equal columns.

    Features stay pending while nobody asks for drafts, 4 F bytes a token, F = features of all
    captured layers (6.9 kB for three layers of 576); the cache takes `EagleRunner.kv_bytes` for
    `num_rows` rows of `capacity` slots. They stay so past the end of a text, as long as its row is
    not needed: only a text that begins with this one is worth a pass of the head.
    """

    def __init__(self, head: EagleRunner, *, num_rows: int, num_slots: int) -> None:
        """num_slots: of each row, columns and drafted ones together."""
        self.head = head
        self.cache = head.new_cache(num_rows=num_rows, capacity=padded_capacity(num_slots))
        self.max_columns = min(self.cache.capacity, head.config.max_position_embeddings)
        self._layers = list(head.config.feature_layers)
        self._columns: dict[int, _Columns] = {}
        self._ended: dict[int, Sequence] = {}  # with a row and pending features, oldest first

    def adopt(self, seq: Sequence, source: Sequence | None, length: int) -> int:
        """Give `seq` a row; see `Drafter.adopt`."""
        if source is None and length:
            source = self._ended_like(seq, length)
        self._free_a_row(source, seq)
        known = self._fork(source, seq) if source is not None else None
        if known is None:
            row, known = self.cache.open(seq.tokens[1:], _salt(seq))
            self._columns[seq.seq_id] = _Columns(row, known)
        # A text too long for the head is never drafted for: no feature of it is worth a pass.
        return min(length, known) if self._fits(seq) else length

    def _ended_like(self, seq: Sequence, length: int) -> Sequence | None:
        """An ended text that has the first `length` tokens in common, if there is one."""
        ended = (other for other in self._ended.values() if _salt(other) == _salt(seq))
        return next((s for s in ended if common_prefix_len(s.tokens, seq.tokens) >= length), None)

    def _free_a_row(self, source: Sequence | None, seq: Sequence) -> None:
        """Close rows of ended texts until one is free; that of `source`, which `seq` begins with,
        last, and with columns for what they share."""
        while self._ended and not self.cache.num_free_rows:
            oldest = next((s for s in self._ended.values() if s is not source), source)
            assert oldest is not None
            if oldest is source:
                self._feed_shared(oldest, common_prefix_len(oldest.tokens, seq.tokens) - 1)
            self._close(oldest)

    def _feed_shared(self, source: Sequence, num_columns: int) -> None:
        """Let the row of `source` hold so many columns, as far as their features are pending."""
        shared = self._columns[source.seq_id]
        while (missing := num_columns - self.cache.length(shared.row)) > 0 and shared.pending:
            self.pass_over([source], [min(missing, len(shared.pending), MAX_FEED)])

    def _fork(self, source: Sequence, seq: Sequence) -> int | None:
        """Give `seq` a copy of what `source` has of their common beginning; returns how many
        features of it are fed or pending then. None: nothing can be copied."""
        shared = self._columns.get(source.seq_id)
        if shared is None or _salt(source) != _salt(seq):
            return None
        # Feature i is of tokens 0 .. i, column i of tokens 0 .. i + 1. The last column is fed for
        # each sequence, for the sake of its output.
        num_features = min(common_prefix_len(source.tokens, seq.tokens), len(seq.tokens) - 1)
        num_columns = max(num_features - 1, 0)
        self._feed_shared(source, num_columns)
        behind = self.cache.length(shared.row) - num_columns
        num_columns = min(num_columns, self.cache.length(shared.row))
        row = self.cache.fork(shared.row, num_columns)
        columns = self._columns[seq.seq_id] = _Columns(row, num_columns)
        if behind <= 0:
            shared.pending.share(num_features - num_columns, columns.pending)
        elif behind == 1:
            shared.pending.share_dropped(columns.pending)
        columns.num_known += len(columns.pending)
        return columns.num_known

    def observe(self, seqs: List[Sequence], scores: Scores, verdicts: List[Verdict]) -> None:
        """Keep the features of the tokens that are text now, the newest one's excepted."""
        captured: CapturedFeatures | None = None
        for i, (seq, verdict) in enumerate(zip(seqs, verdicts, strict=True)):
            columns = self._columns.get(seq.seq_id)
            if columns is None:
                continue
            start, known = scores.starts[i], columns.num_known
            end = min(len(seq.tokens) - 1, self.max_columns)
            # A gap before `start`: this text is too long, or was turned away (`adopt`).
            if not start <= known < end:
                continue
            rows = committed_rows(scores.fed[i], scores.rows[i], verdict)
            if captured is None:
                captured = CapturedFeatures(scores.hidden, self._layers)
            part = captured.keep(rows, known - start, end - start)
            columns.pending.add(part)
            columns.num_known += part.shape[1]

    def is_ready(self, seq: Sequence) -> bool:
        """Whether every column that the next draft needs is there or can be fed."""
        columns = self._columns.get(seq.seq_id)
        if columns is None or columns.num_known != len(seq.tokens) - 1:
            return False
        return len(columns.pending) > 0 or columns.pending.can_put_back

    def catch_up(self, seqs: List[Sequence]) -> None:
        """Feed all but the newest MAX_FEED columns of sequences that are ready."""
        while behind := [s for s in seqs if len(self._columns[s.seq_id].pending) > MAX_FEED]:
            self.pass_over(behind, [MAX_FEED] * len(behind))

    def pass_over(self, seqs: List[Sequence], counts: List[int]) -> None:
        """Feed the next `counts[i]` columns of each sequence, without logits."""
        feeds = self.feeds(seqs, counts)
        segments = [Segment(feed.row, feed.start, len(feed.token_ids)) for feed in feeds]
        token_ids = [token for feed in feeds for token in feed.token_ids]
        self.head.forward(self.cache, token_ids, self.head.fuse(joined(feeds)), segments, [])
        self.claim(feeds)

    def feeds(self, seqs: List[Sequence], counts: List[int] | None = None) -> list[Feed]:
        """The next `counts[i]` columns of each sequence, in the order of their rows; None: all,
        at least one, the last column once more where there is no other. `claim` what was fed."""
        order: List[int] = range(len(seqs))
        if len(seqs) > 1:
            order = sorted(order, key=lambda i: self._columns[seqs[i].seq_id].row)
        feeds = []
        for i in order:
            columns = self._columns[seqs[i].seq_id]
            if counts is None and not len(columns.pending):
                self._take_back(columns)
            size = len(columns.pending) if counts is None else counts[i]
            start = self.cache.length(columns.row)
            tokens = seqs[i].tokens[start + 1 : start + 1 + size]
            feeds.append(Feed(seqs[i], columns.row, start, tokens, columns.pending.first(size)))
        return feeds

    def claim(self, feeds: List[Feed]) -> None:
        """Count in what was fed: after the pass, so that one that raises leaves all as it was."""
        for feed in feeds:
            self._columns[feed.seq.seq_id].pending.drop(len(feed.token_ids))
            self.cache.append(feed.row, feed.token_ids)

    def release(self, seq: Sequence) -> None:
        """Give the row back, or keep it with features that are pending until it is needed: a text
        that starts with this one takes them over, and what the head lacks the target would have to
        feed again."""
        columns = self._columns.get(seq.seq_id)
        if columns is None:
            return
        if columns.pending:
            self._ended[seq.seq_id] = seq
        else:
            self._close(seq)

    def _close(self, seq: Sequence) -> None:
        self._ended.pop(seq.seq_id, None)
        self.cache.close(self._columns.pop(seq.seq_id).row)

    def check_integrity(self) -> None:
        """Raise AssertionError if rows have leaked."""
        self.cache.check_integrity([columns.row for columns in self._columns.values()])
        running = self._columns.keys() - self._ended.keys()
        assert not running, f"columns left of sequences {sorted(running)}"

    def _take_back(self, columns: _Columns) -> None:
        """Make the last column one to be fed again."""
        columns.pending.put_back()
        self.cache.rollback(columns.row, self.cache.length(columns.row) - 1)

    def _fits(self, seq: Sequence) -> bool:
        return len(seq.tokens) - 1 <= self.max_columns


def joined(feeds: List[Feed]) -> Float32[np.ndarray, "n F"]:
    """The features of all of them, one after the other."""
    if len(feeds) == 1:
        return feeds[0].features
    return np.concatenate([feed.features for feed in feeds])


def _salt(seq: Sequence) -> str:
    return f"{seq.tokens[0]} {seq.cache_salt}"
