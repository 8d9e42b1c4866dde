"""A model and its cache: feed what is not cached, keep what was committed, forget the rest."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as List
from dataclasses import dataclass

from outpace.cache import CacheRows, CopyableRows, common_prefix_len
from outpace.early_exit import EarlyExitRunner, TrainedExit
from outpace.models.attention import Segment, parents_after
from outpace.models.base import CausalModel, EarlyExit, GreedyDrafting
from outpace.models.decoder import Batch
from outpace.types import NO_DRAFT, Draft, Scores, Sequence


@dataclass(slots=True)
class _Placement:
    """Where a sequence lives in the cache, and up to where the cache is known to agree with it.

    tree: the slot of the first node and the parents of all nodes, while the row ends with a tree
    instead of a text.
    """

    row: int
    settled: int
    tree: tuple[int, List[int]] | None = None


class Runner:
    """Runs one model over many sequences. Prefill, decoding, verification and catching up are
    one thing here: feed the tokens that the cache does not hold yet.

    Mutates only its own cache. Target and draft model each have one.
    """

    def __init__(self, model: CausalModel, cache: CacheRows) -> None:
        self.model = model
        self.cache = cache
        self._placements: dict[int, _Placement] = {}
        self._drafting = model if isinstance(model, GreedyDrafting) else None

    @property
    def takes_trees(self) -> bool:
        """Whether drafts may branch: the cache can keep one path of a tree."""
        return isinstance(self.cache, CopyableRows)

    @property
    def max_len(self) -> int:
        """Most tokens a sequence may have fed here."""
        return min(self.cache.capacity, self.model.max_len)

    def open(self, seq: Sequence, *, reuse: bool = True) -> int:
        """Give `seq` a cache row; returns how many of its tokens the row already holds.

        reuse=False: none, so that every token is fed and can be scored.
        """
        row, reused = self.cache.open(seq.tokens if reuse else (), seq.cache_salt)
        self._placements[seq.seq_id] = _Placement(row, reused)
        return reused

    def fork(self, source: Sequence, seq: Sequence) -> int:
        """Give `seq` a cache row that holds whatever is cached of its longest common prefix with
        `source`, less the last token of `seq`; returns how many tokens that is.

        For several answers to one prompt: it is fed once. A source without a row, or a cache that
        cannot copy rows, makes this `open`.
        """
        placement = self._placements.get(source.seq_id)
        if placement is None or not isinstance(self.cache, CopyableRows):
            return self.open(seq)
        shared = common_prefix_len(self.cache.token_ids(placement.row), seq.tokens[:-1])
        row = self.cache.fork(placement.row, shared)
        self._placements[seq.seq_id] = _Placement(row, shared)
        return shared

    def rewind(self, seq: Sequence, length: int) -> None:
        """Forget all but the first `length` of the tokens that `seq`'s row was opened with."""
        placement = self._placements[seq.seq_id]
        placement.settled = min(placement.settled, length)
        self.cache.rollback(placement.row, length)

    def is_open(self, seq: Sequence) -> bool:
        return seq.seq_id in self._placements

    def num_cached(self, seq: Sequence) -> int:
        return self.cache.length(self._placements[seq.seq_id].row)

    def extend(
        self,
        seqs: List[Sequence],
        drafts: List[Draft] | None = None,
        *,
        max_feed: List[int] | None = None,
        last_only: bool = False,
        score_prompt: List[bool] = (),
        capture: List[int] = (),
    ) -> Scores:
        """Feed every sequence's uncached tokens, then its draft tokens, in one pass.

        The nodes of a tree see the committed tokens, their ancestors and themselves. A tree must
        be fed at once: what `commit` does not keep of it has to be fed again.

        max_feed: most uncached tokens to feed per sequence. A sequence with more than that is
        mid-prefill: its draft is not fed and it gets no logits.
        last_only: logits only after the last token fed, instead of after the last committed
        token and each draft token.
        score_prompt: for which sequences to return logits after every token fed, beside the
        others: `Scores.prompt_rows`.
        A draft id outside the vocabulary is fed as token 0: its probability is 0, so it is
        rejected and what follows it is never looked at.
        """
        drafts = drafts or [NO_DRAFT] * len(seqs)
        feeds: list[list[int]] = []
        wanted: list[int] = []
        parents: list[tuple[int, ...] | None] = [None] * len(seqs)
        for i, (seq, draft) in enumerate(zip(seqs, drafts, strict=True)):
            placement = self._placements[seq.seq_id]
            cached = self.cache.length(placement.row)
            pending = seq.tokens[cached:]
            if max_feed is not None and len(pending) > max_feed[i]:
                feeds.append(pending[: max_feed[i]])
                wanted.append(0)
                continue
            beyond = max(cached - len(seq.tokens), 0)
            vocab = self.model.num_logits
            feeds.append(pending + [t if 0 <= t < vocab else 0 for t in draft.token_ids[beyond:]])
            wanted.append(1 if last_only else 1 + len(draft))
            if draft.parents is not None and not draft.is_chain:
                assert self.takes_trees, "this cache cannot keep one path of a tree"
                assert not beyond, "a tree is fed at once"
                parents[i] = parents_after(len(pending), draft.parents)
                placement.tree = cached + len(pending), draft.parents
        score_prompt = score_prompt or [False] * len(seqs)
        return self._forward(seqs, feeds, parents, wanted, score_prompt, capture)

    def _forward(
        self,
        seqs: List[Sequence],
        feeds: list[list[int]],
        parents: list[tuple[int, ...] | None],
        wanted: list[int],
        score_prompt: List[bool],
        capture: List[int],
    ) -> Scores:
        rows = [self._placements[seq.seq_id].row for seq in seqs]
        order = sorted(range(len(seqs)), key=rows.__getitem__)
        token_ids: list[int] = []
        logit_rows: list[int] = []
        segments: list[Segment] = []
        score_rows = [slice(0)] * len(seqs)
        prompt_rows = [slice(0)] * len(seqs)
        fed = [slice(0)] * len(seqs)
        starts = [self.cache.length(row) for row in rows]
        for i in order:
            start = starts[i]
            self.cache.append(rows[i], feeds[i])
            fed[i] = slice(len(token_ids), len(token_ids) + len(feeds[i]))
            token_ids.extend(feeds[i])
            segments.append(Segment(rows[i], start, len(feeds[i]), parents[i]))
            num_logits = len(feeds[i]) if score_prompt[i] else wanted[i]
            logit_rows.extend(range(fed[i].stop - num_logits, fed[i].stop))
            end = len(logit_rows)
            score_rows[i] = slice(end - wanted[i], end)
            if score_prompt[i]:
                prompt_rows[i] = slice(end - num_logits, end)
        batch = Batch(token_ids, logit_rows, segments)
        try:
            logits, hidden = self.model.forward(batch, self.cache, capture)
        except BaseException:
            # Slots were claimed but not written; nobody may start from them later.
            for segment in segments:
                self.cache.rollback(segment.row, segment.start)
            for seq in seqs:
                self._placements[seq.seq_id].tree = None
            raise
        return Scores(logits, score_rows, fed, hidden, prompt_rows, starts)

    @property
    def can_draft(self) -> bool:
        """Whether `draft_greedy` is possible."""
        return self._drafting is not None

    def draft_greedy(self, seqs: List[Sequence], counts: List[int]) -> list[list[int]]:
        """The model's own greedy continuation of each sequence, `counts[i]` tokens (at least one),
        in one call. Feeds every sequence's uncached tokens, then all it chose but the last."""
        assert self._drafting is not None, "check can_draft first"
        rows = [self._placements[seq.seq_id].row for seq in seqs]
        starts = [self.cache.length(row) for row in rows]
        pending = [seq.tokens[start:] for seq, start in zip(seqs, starts, strict=True)]
        drafted = self._drafting.draft(self.cache, rows, starts, pending, counts)
        for row, tokens, chosen in zip(rows, pending, drafted, strict=True):
            self.cache.append(row, [*tokens, *chosen[:-1]])
        return drafted

    def early_exit(self, num_layers: int, trained: TrainedExit | None = None) -> EarlyExitRunner:
        """The first layers of the model, with its final norm and head, over this cache.

        num_layers: one of the model's `exit_layers`. Only for a model that is `EarlyExit`.
        trained: what follows the layers instead of the model's final norm and head.
        """
        assert isinstance(self.model, EarlyExit), "this model runs all its layers or none"
        return EarlyExitRunner(self.model, self.cache, num_layers, self._row_of, trained)

    def _row_of(self, seq: Sequence) -> int | None:
        placement = self._placements.get(seq.seq_id)
        return None if placement is None else placement.row

    def commit(self, seqs: Iterable[Sequence]) -> None:
        """Keep what `tokens` confirms of what was fed, forget the rest.

        The rule is the longest common prefix of what was fed and what stands in `tokens`, less
        the newest token; of a tree that of its path which agrees longest. It covers acceptance,
        rejection, stops and sleeping drafters alike.
        """
        for seq in seqs:
            placement = self._placements.get(seq.seq_id)
            if placement is None:
                continue
            self._keep_path(placement, seq.tokens)
            fed = self.cache.token_ids(placement.row)
            agreed = common_prefix_len(fed, seq.tokens, min(placement.settled, len(fed)))
            placement.settled = min(agreed, len(seq.tokens) - 1)
            self.cache.rollback(placement.row, placement.settled)

    def _keep_path(self, placement: _Placement, tokens: List[int]) -> None:
        """Make a row that ends with a tree end with the path that goes on in `tokens`."""
        if placement.tree is None:
            return
        cache = self.cache
        assert isinstance(cache, CopyableRows)
        start, parents = placement.tree
        nodes = cache.token_ids(placement.row)[start : start + len(parents)]
        cache.keep(placement.row, start, longest_path(nodes, parents, tokens[start:]))
        placement.tree = None

    def release(self, seq: Sequence) -> None:
        """Give the row back; safe to call for a sequence that never had one."""
        placement = self._placements.pop(seq.seq_id, None)
        if placement is not None:
            if placement.tree is not None:
                # What closes may be opened again for its text, and a tree is none.
                self.cache.rollback(placement.row, placement.tree[0])
            self.cache.close(placement.row)

    def check_integrity(self) -> None:
        """Raise AssertionError if rows have leaked or the cache disagrees with itself."""
        self.cache.check_integrity([placement.row for placement in self._placements.values()])


def longest_path(nodes: List[int], parents: List[int], tokens: List[int]) -> list[int]:
    """The nodes, from the root on, whose tokens are the longest possible beginning of `tokens`.

    nodes: the token of each node of a tree; siblings may be equal.
    """
    depths, longest = [0] * len(nodes), -1
    for node, (token, parent) in enumerate(zip(nodes, parents, strict=True)):
        # 0 marks what does not agree: a node that does is at least one deep.
        depth = depths[parent] if parent >= 0 else 0
        agrees = parent < 0 or depth > 0
        if agrees and depth < len(tokens) and tokens[depth] == token:
            depths[node] = depth + 1
            if longest < 0 or depths[node] > depths[longest]:
                longest = node
    path = []
    while longest >= 0:
        path.append(longest)
        longest = parents[longest]
    return path[::-1]
