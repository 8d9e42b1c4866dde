"""The first layers of a model as a draft model over the model's own cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as List
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from outpace.cache import CacheRows
from outpace.models.attention import Segment, parents_after
from outpace.models.base import EarlyExit, GreedyDrafting
from outpace.models.decoder import Batch
from outpace.types import Draft, Scores, Sequence

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Float
    from torch import Tensor


@runtime_checkable
class TrainedExit(Protocol):
    """What takes the place of the model's final norm and head where an exit was trained for it.

    hidden: what the last layer that ran left, for every token fed. rows: those that are asked for.
    """

    def logits(self, hidden: Float[Tensor, "n H"], rows: List[int]) -> Float[np.ndarray, "r V"]:
        """Logits over the model's vocabulary; -inf for a token that the exit cannot draft."""

    def best(self, hidden: Float[Tensor, "n H"], rows: List[int]) -> list[int]:
        """The likeliest tokens, lowest id among equals."""


class EarlyExitRunner:
    """Runs the first layers of a model, then its final norm and head, over its own cache.

    What those layers wrote for a sequence's tokens in ordinary passes is what they need here, so
    drafting costs them, the head, and no memory. Keys and values of draft tokens go to slots past
    the row's length, which nobody reads and the pass that verifies writes anew; neither ids nor
    length of a row change. It holds no state of its own.
    """

    def __init__(
        self,
        model: EarlyExit,
        cache: CacheRows,
        num_layers: int,
        row_of: Callable[[Sequence], int | None],
        trained: TrainedExit | None = None,
    ) -> None:
        """row_of: the cache row of a sequence, or None while it has none. trained: what follows the
        layers instead of the model's final norm and head."""
        assert num_layers in model.exit_layers, f"an exit after layer {num_layers}"
        self.max_len = min(cache.capacity, model.max_len)
        self._model = model
        self._cache = cache
        self._num_layers = num_layers
        self._row_of = row_of
        self._trained = trained
        self._drafting = model if isinstance(model, GreedyDrafting) else None

    @property
    def can_draft(self) -> bool:
        """Whether `draft_greedy` is possible."""
        return self._trained is not None or self._drafting is not None

    def num_pending(self, seq: Sequence) -> int | None:
        """How many tokens of the sequence its row does not hold yet; None without a row."""
        row = self._row_of(seq)
        return None if row is None else len(seq.tokens) - self._cache.length(row)

    def commit(self, seqs: Iterable[Sequence]) -> None:
        """Nothing to do: what was fed here lies past the rows' lengths, forgotten already."""

    def extend(
        self, seqs: List[Sequence], drafts: List[Draft], *, last_only: bool = False
    ) -> Scores:
        """Feed the tokens that each sequence's row does not hold yet, then its draft, in one pass.

        last_only: every draft is a chain of which all but the last token have been fed, one after
        the other; feed that one, and return logits after it alone.
        The logits are those of the early exit; rows as in `Runner.extend`.
        """
        rows = [self._row(seq) for seq in seqs]
        token_ids: list[int] = []
        logit_rows: list[int] = []
        segments: list[Segment] = []
        score_rows, fed = [slice(0)] * len(seqs), [slice(0)] * len(seqs)
        for i in sorted(range(len(seqs)), key=rows.__getitem__):
            seq, draft, start = seqs[i], drafts[i], self._cache.length(rows[i])
            num_pending = len(seq.tokens) - start
            feed = [*seq.tokens[start:], *draft.token_ids]
            parents = None if draft.parents is None else parents_after(num_pending, draft.parents)
            num_logits = 1 + len(draft)
            if last_only:
                num_past = num_pending + len(draft) - 1 if len(draft) else 0
                start, feed, num_logits = start + num_past, feed[num_past:], 1
            fed[i] = slice(len(token_ids), len(token_ids) + len(feed))
            token_ids += feed
            segments.append(Segment(rows[i], start, len(feed), parents))
            score_rows[i] = slice(len(logit_rows), len(logit_rows) + num_logits)
            logit_rows += range(fed[i].stop - num_logits, fed[i].stop)
        if self._trained is not None:
            hidden = self._hidden(token_ids, segments)
            return Scores(self._trained.logits(hidden, logit_rows), score_rows, fed)
        batch = Batch(token_ids, logit_rows, segments)
        logits, _ = self._model.forward(batch, self._cache, (), self._num_layers)
        return Scores(logits, score_rows, fed)

    def draft_greedy(self, seqs: List[Sequence], counts: List[int]) -> list[list[int]]:
        """The greedy continuation of each sequence, `counts[i]` tokens (at least one)."""
        rows = [self._row(seq) for seq in seqs]
        starts = [self._cache.length(row) for row in rows]
        pending = [seq.tokens[start:] for seq, start in zip(seqs, starts, strict=True)]
        if self._trained is not None:
            return self._draft_by_steps(self._trained, rows, starts, pending, counts)
        assert self._drafting is not None, "check can_draft first"
        return self._drafting.draft(self._cache, rows, starts, pending, counts, self._num_layers)

    def _draft_by_steps(
        self,
        trained: TrainedExit,
        rows: List[int],
        starts: List[int],
        pending: List[List[int]],
        counts: List[int],
    ) -> list[list[int]]:
        """`draft_greedy` with a pass for each token: what was trained is not the model's to run."""
        drafted: list[list[int]] = [[] for _ in rows]
        feeds, slots = list(pending), list(starts)
        running = sorted(range(len(rows)), key=rows.__getitem__)
        while running:
            token_ids: list[int] = []
            last: list[int] = []
            segments: list[Segment] = []
            for i in running:
                segments.append(Segment(rows[i], slots[i], len(feeds[i])))
                token_ids += feeds[i]
                last.append(len(token_ids) - 1)
            chosen = trained.best(self._hidden(token_ids, segments), last)
            for i, token in zip(running, chosen, strict=True):
                drafted[i].append(token)
                slots[i] += len(feeds[i])
                feeds[i] = [token]
            running = [i for i in running if len(drafted[i]) < counts[i]]
        return drafted

    def _hidden(self, token_ids: List[int], segments: List[Segment]) -> Float[Tensor, "n H"]:
        """What the last of the layers leaves of every token fed."""
        layer = self._num_layers
        batch = Batch(token_ids, (), segments)
        _, hidden = self._model.forward(batch, self._cache, (layer,), layer)
        return hidden[layer]

    def _row(self, seq: Sequence) -> int:
        row = self._row_of(seq)
        assert row is not None, f"sequence {seq.seq_id} has no row"
        return row
