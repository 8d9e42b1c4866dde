"""Lookahead decoding's two memories: the window that finds n-grams, the pool that keeps them."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as List

Ngram = tuple[int, ...]


class NgramPool:
    """N-grams by their first token, at most `max_per_token` of each; the oldest is dropped.

    One that comes again counts as new.
    """

    def __init__(self, max_per_token: int) -> None:
        self._max_per_token = max_per_token
        # Dictionaries keep the order of insertion: the oldest n-gram is the first.
        self._rests: dict[int, dict[Ngram, None]] = {}

    def add(self, ngram: Ngram) -> None:
        rests = self._rests.setdefault(ngram[0], {})
        rests.pop(ngram[1:], None)
        rests[ngram[1:]] = None
        if len(rests) > self._max_per_token:
            del rests[next(iter(rests))]

    def guesses(self, token: int) -> list[Ngram]:
        """What follows `token` in the n-grams that begin with it, the newest first."""
        return list(reversed(self._rests.get(token, {})))


class JacobiWindow:
    """W columns of guesses at the text ahead, each of which grows by one token a pass.

    Column i, counted from 0, is a run of at most N - 1 tokens that starts i + 1 places past the
    newest committed token. Its first token follows the first tokens of the columns before it, each
    of the others the one above. A pass yields the token that follows each column's last; a column
    that has N tokens with it is an n-gram, and goes on without its first.

    fresh: returns a token to start a new column with.
    """

    def __init__(self, num_columns: int, ngram_size: int, fresh: Callable[[], int]) -> None:
        self._num_columns, self._ngram_size, self._fresh = num_columns, ngram_size, fresh
        self.columns: list[list[int]] = []
        self._refill()

    @property
    def depth(self) -> int:
        """How far past the newest committed token the window reaches."""
        return max((i + len(column) for i, column in enumerate(self.columns)), default=0)

    def nodes(self) -> tuple[list[int], list[int], list[int]]:
        """The window as a tree, level by level: tokens; parents, -1 being the newest committed
        token; and for each column the index of its last token."""
        token_ids: list[int] = []
        parents: list[int] = []
        last = [-1] * len(self.columns)
        for level in range(max(map(len, self.columns), default=0)):
            for i, column in enumerate(self.columns):
                if level < len(column):
                    parents.append(last[i - 1] if level == 0 and i else last[i])
                    last[i] = len(token_ids)
                    token_ids.append(column[level])
        return token_ids, parents, last

    def advance(self, num_tokens: int, following: List[int] | None = None) -> list[Ngram]:
        """Move on with the newest token, by the `num_tokens` just committed; returns the n-grams
        that were completed.

        following: the token after each column's last; None where the window was not in the pass.
        Columns that the newest token has passed go, fresh ones join at the far end. A column that
        is still growing keeps its place: its first token was never a guess for a certain place.
        """
        ngrams: list[Ngram] = []
        if following is not None:
            for column, token in zip(self.columns, following, strict=True):
                column.append(token)
                if len(column) == self._ngram_size:
                    ngrams.append(tuple(column))
                    # One place is gained here: what is now first was a guess for the next place.
                    del column[0]
            num_tokens = max(num_tokens - 1, 0)
        del self.columns[:num_tokens]
        self._refill()
        return ngrams

    def _refill(self) -> None:
        while len(self.columns) < self._num_columns:
            self.columns.append([self._fresh()])
