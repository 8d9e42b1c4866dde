"""Which columns an EAGLE head has of each sequence, and the features of those still to come."""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

import numpy as np

from outpace.cache import common_prefix_len
from outpace.drafters.parts.features import (
    MOST_WASTE,
    CapturedFeatures,
    FeatureQueue,
    committed_rows,
)
from outpace.models.attention import Segment, padded_capacity
from outpace.types import Scores, Sequence, Verdict

if TYPE_CHECKING:
    from jaxtyping import Float32

    from outpace.heads.base import EagleRunner

MOST_UNREAD = 256
"""Most tokens before the newest, and up to an eighth more, that the head reads when it is asked for
the first time, or again after so many: of longer texts it knows the end alone. What lies further
back helps it little, and reading it takes as long as many plain steps."""
MOST_WAITING = MOST_WASTE * (MOST_UNREAD + MOST_UNREAD // 8)
"""As how many features of one sequence those that wait may take memory, being parts of arrays."""
MOST_REFED = 64
"""Most tokens in the target's cache that are fed again because the head does not know them."""


@dataclass(slots=True)
class _Columns:
    """A sequence's row in the head's cache.

    first: the token whose feature the row's first column starts from. pending: features of the
    tokens after those whose columns the row holds; the newest one dropped is that of the row's last
    column, if that was fed for this sequence. num_known: the token after the last whose feature is
    in a column or pending.
    """

    row: int
    first: int
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

    A row holds columns made of committed tokens and true target features only, of consecutive
    tokens up to the end of the text: what is drafted is written behind its end and never counted
    in. So nothing has to be undone after a rejection, a stop or a step slept through; columns come
    when `pass_over` or a draft feeds the features that came in since. Positions count from the
    row's first column. It is the first token's, unless the head has skipped some: when more than
    `MOST_UNREAD` tokens were pending, when the row was full, or because the target had them cached
    and the head did not.

    Features stay pending while nobody asks for drafts, 4 F bytes a token, F = features of all
    captured layers (6.9 kB for three layers of 576); the cache takes `EagleRunner.kv_bytes` for
    `num_rows` rows of `capacity` slots. When a text has ended its row stays as it is until it is
    needed: a text that begins with it takes the row over.
    """

    def __init__(self, head: EagleRunner, *, num_rows: int, num_slots: int) -> None:
        """num_slots: of each row, columns and drafted ones together."""
        self.head = head
        self.cache = head.new_cache(num_rows=num_rows, capacity=padded_capacity(num_slots))
        self.max_columns = min(self.cache.capacity, head.config.max_position_embeddings)
        self._layers = list(head.config.feature_layers)
        self._columns: dict[int, _Columns] = {}
        self._ended: dict[int, Sequence] = {}  # oldest first
        self._most_unread = max(min(MOST_UNREAD, self.max_columns // 2), 1)
        self._salts = count()

    def adopt(self, seq: Sequence, source: Sequence | None, length: int) -> int:
        """Give `seq` a row; see `Drafter.adopt`."""
        least_known = max(length - MOST_REFED, 0)
        columns = self._inherited(seq, source, least_known)
        if columns is None:
            columns = _Columns(self._open_row(), first=least_known, num_known=least_known)
        self._columns[seq.seq_id] = columns
        return min(length, columns.num_known)

    def _inherited(
        self, seq: Sequence, source: Sequence | None, least_known: int
    ) -> _Columns | None:
        """What a row has of `seq`: a copy of that of `source`, or else the row itself of the ended
        text with most in common. None where that is nothing, or does not reach `least_known`."""
        sources = list(self._ended.values())
        if source is not None and source.seq_id in self._columns:
            sources = [source]
        most, best = 0, None
        for each in sources:
            num_features = self._num_shared(each, seq)
            reaches = self._columns[each.seq_id].first + num_features >= least_known
            if num_features > most and reaches:
                most, best = num_features, each
        if best is None:
            return None
        return self._take_over(best, most) if best.seq_id in self._ended else self._copy(best, most)

    def _take_over(self, source: Sequence, num_features: int) -> _Columns:
        """The row of an ended text, cut to the first `num_features` that it has."""
        del self._ended[source.seq_id]
        shared = self._columns.pop(source.seq_id)
        num_columns, pending = self._parted(shared, num_features)
        self.cache.rollback(shared.row, num_columns)
        return _Columns(
            shared.row, shared.first, shared.first + num_columns + len(pending), pending
        )

    def _copy(self, source: Sequence, num_features: int) -> _Columns:
        """A copy of the first `num_features` that the row of a running text has."""
        shared = self._columns[source.seq_id]
        self._feed_shared(source, num_features - 1)
        num_columns, pending = self._parted(shared, num_features)
        self._free_a_row()
        row = self.cache.fork(shared.row, num_columns)
        return _Columns(row, shared.first, shared.first + num_columns + len(pending), pending)

    def _parted(self, shared: _Columns, num_features: int) -> tuple[int, FeatureQueue]:
        """The first `num_features` of a row: how many are to be columns, and the others, to be
        pending; one less if that of the last is gone."""
        # The last column is fed for each sequence, for the sake of its output.
        surplus = self.cache.length(shared.row) - (num_features - 1)
        num_columns = num_features - 1 + min(surplus, 0)
        pending = FeatureQueue()
        if surplus <= 0:
            shared.pending.share(num_features - num_columns, pending)
        elif surplus == 1:
            shared.pending.share_dropped(pending)
        return num_columns, pending

    def _num_shared(self, source: Sequence, seq: Sequence) -> int:
        """How many of the features that the row of `source` has, from its first on, are features of
        `seq`."""
        if source.cache_salt != seq.cache_salt:
            return 0
        columns = self._columns[source.seq_id]
        # Feature i is of tokens 0 .. i; the target has yet to compute that of the last token.
        common = min(common_prefix_len(source.tokens, seq.tokens), len(seq.tokens) - 1)
        return max(min(common, columns.num_known) - columns.first, 0)

    def _feed_shared(self, source: Sequence, num_columns: int) -> None:
        """Let the row of `source` hold so many columns, as far as their features are pending."""
        shared = self._columns[source.seq_id]
        missing = min(num_columns - self.cache.length(shared.row), len(shared.pending))
        if missing > 0:
            self.pass_over([source], [missing])

    def _open_row(self) -> int:
        """An empty row. Nobody else's has its salt, so that nothing is found in closed ones by
        chance: equal ids under equal salts are equal columns, because only copies share a salt, and
        their texts agree up to the first column's token at least."""
        self._free_a_row()
        return self.cache.open((), str(next(self._salts)))[0]

    def _free_a_row(self) -> None:
        """Give up the row of the text that ended first, if no other is free."""
        if not self.cache.num_free_rows:
            oldest = next(iter(self._ended))
            del self._ended[oldest]
            self.cache.close(self._columns.pop(oldest).row)

    def observe(self, seqs: List[Sequence], scores: Scores, verdicts: List[Verdict]) -> None:
        """Keep the features of the tokens that are text now, the newest one's excepted."""
        captured: CapturedFeatures | None = None
        for i, (seq, verdict) in enumerate(zip(seqs, verdicts, strict=True)):
            columns = self._columns.get(seq.seq_id)
            if columns is None:
                continue
            start, known = scores.starts[i], columns.num_known
            end = len(seq.tokens) - 1
            # Nothing new, or, once something was missed, nothing that follows what is known.
            if not start <= known < end:
                continue
            rows = committed_rows(scores.fed[i], scores.rows[i], verdict)
            if captured is None:
                captured = CapturedFeatures(scores.hidden, self._layers)
            part = captured.keep(rows, known - start, end - start)
            columns.pending.add(part)
            columns.num_known += part.shape[1]
            self._bound(columns)

    def _bound(self, columns: _Columns) -> None:
        """Begin anew behind what is skipped where too much is unread, or the row is full. Not for
        every token: it takes another row, since columns that start elsewhere need another salt."""
        excess = len(columns.pending) - self._most_unread
        is_full = columns.num_known - columns.first > self.max_columns
        if excess <= self._most_unread // 8 and not is_full:
            return
        columns.pending.drop(max(excess, 0))
        columns.first = columns.num_known - len(columns.pending)
        self.cache.close(columns.row)
        columns.row = self._open_row()

    def num_columns(self, seq: Sequence) -> int:
        """Columns that the row holds when all that is pending has been fed."""
        columns = self._columns[seq.seq_id]
        return columns.num_known - columns.first

    def num_unread(self, seq: Sequence) -> int:
        """Columns that the next draft feeds beside its own first one."""
        columns = self._columns.get(seq.seq_id)
        return 0 if columns is None else max(len(columns.pending) - 1, 0)

    def is_ready(self, seq: Sequence) -> bool:
        """Whether every column that the next draft needs is there or can be fed."""
        columns = self._columns.get(seq.seq_id)
        if columns is None or columns.num_known != len(seq.tokens) - 1:
            return False
        return len(columns.pending) > 0 or columns.pending.can_put_back

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
            begin = columns.first + start + 1
            tokens = seqs[i].tokens[begin : begin + size]
            feeds.append(Feed(seqs[i], columns.row, start, tokens, columns.pending.first(size)))
        return feeds

    def claim(self, feeds: List[Feed]) -> None:
        """Count in what was fed: after the pass, so that one that raises leaves all as it was."""
        for feed in feeds:
            self._columns[feed.seq.seq_id].pending.drop(len(feed.token_ids))
            self.cache.append(feed.row, feed.token_ids)

    def release(self, seq: Sequence) -> None:
        """Keep the row until it is needed: a text that starts with this one takes it over."""
        if seq.seq_id in self._columns:
            self._ended[seq.seq_id] = seq

    def check_integrity(self) -> None:
        """Raise AssertionError if rows have leaked."""
        self.cache.check_integrity([columns.row for columns in self._columns.values()])
        running = self._columns.keys() - self._ended.keys()
        assert not running, f"columns left of sequences {sorted(running)}"

    def _take_back(self, columns: _Columns) -> None:
        """Make the last column one to be fed again."""
        columns.pending.put_back()
        self.cache.rollback(columns.row, self.cache.length(columns.row) - 1)


def joined(feeds: List[Feed]) -> Float32[np.ndarray, "n F"]:
    """The features of all of them, one after the other."""
    if len(feeds) == 1:
        return feeds[0].features
    return np.concatenate([feed.features for feed in feeds])
