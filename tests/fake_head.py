"""An EAGLE head of a few numbers in numpy, which remembers every column that it was fed.

A column's output depends on its position, its token, what it starts from and all columns that it
sees, in an order that does not depend on how they were split into passes: equal columns give equal
drafts, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence as List
from typing import Any

import numpy as np
from tiny import layer_kind

from outpace.cache import CopyableRows
from outpace.heads.base import BEST, Chooser, HeadDraft
from outpace.heads.config import EagleConfig
from outpace.models.attention import Segment

HIDDEN = 6


def head_config(
    *,
    vocab_size: int,
    draft_vocab_size: int | None = None,
    feature_layers: tuple[int, ...] = (1, 2),
    target_hidden_size: int = 3,
    max_len: int = 256,
    algorithm: str = "eagle3",
) -> EagleConfig:
    rope = layer_kind().rope
    assert rope is not None
    return EagleConfig(
        algorithm=algorithm,
        feature_layers=feature_layers,
        hidden_size=HIDDEN,
        target_hidden_size=target_hidden_size,
        intermediate_size=8,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=8,
        rms_norm_eps=1e-5,
        rope=rope,
        max_position_embeddings=max_len,
        vocab_size=vocab_size,
        draft_vocab_size=draft_vocab_size or vocab_size,
    )


class FakeRows(CopyableRows):
    """What was last written to each slot.

    positions, token_ids: [rows, slots]; of a tree's nodes positions go by depth. x: what columns
    started from; sums: of the values of all columns that each sees. Both [rows, slots, H].
    """

    def __init__(self, hidden_size: int, *, num_rows: int, capacity: int) -> None:
        super().__init__(num_rows=num_rows, capacity=capacity)
        self.positions = np.zeros((num_rows, capacity), np.int64)
        self.tokens = np.zeros((num_rows, capacity), np.int64)
        self.x = np.zeros((num_rows, capacity, hidden_size), np.float32)
        self.sums = np.zeros((num_rows, capacity, hidden_size), np.float32)

    @property
    def _all(self) -> tuple[np.ndarray, ...]:
        return self.positions, self.tokens, self.x, self.sums

    def _copy_slots(self, source: int, target: int, begin: int, end: int) -> None:
        for slots in self._all:
            slots[target, begin:end] = slots[source, begin:end]

    def _move_slots(self, row: int, start: int, nodes: List[int]) -> None:
        for slots in self._all:
            slots[row, start : start + len(nodes)] = slots[row, [start + node for node in nodes]]


class FakeHead:
    """An `EagleRunner`. pass_sizes: of every pass its number of columns.

    sharpness: of its logits. fails: raise in the next passes, that many times.
    """

    def __init__(self, config: EagleConfig, *, seed: int = 0, sharpness: float = 3.0) -> None:
        self.config = config
        rng = np.random.default_rng(seed)

        def random(*shape: int) -> np.ndarray:
            return rng.standard_normal(shape).astype(np.float32)

        size = config.hidden_size
        self._fc = random(config.feature_size, size)
        self._embedding = random(config.vocab_size, size)
        self._from_x, self._from_token, self._from_past = (random(size, size) for _ in range(3))
        self._head = random(size, config.draft_vocab_size) * np.float32(sharpness / size**0.5)
        chosen = rng.permutation(config.vocab_size)[: config.draft_vocab_size]
        self.draft_token_ids = np.sort(chosen).astype(np.int64)
        self.pass_sizes: list[int] = []
        self.fails = 0

    def kv_bytes(self, *, num_rows: int, capacity: int) -> int:
        return 8 * self.config.head_dim * num_rows * capacity

    def new_cache(self, *, num_rows: int, capacity: int) -> FakeRows:
        assert capacity % 256 == 0
        return FakeRows(self.config.hidden_size, num_rows=num_rows, capacity=capacity)

    def fuse(self, features: np.ndarray) -> np.ndarray:
        assert features.dtype == np.float32
        return np.tanh(_product(features, self._fc))

    def forward(
        self,
        cache: CopyableRows,
        token_ids: List[int],
        x: np.ndarray,
        segments: List[Segment],
        logit_rows: List[int],
    ) -> tuple[np.ndarray, np.ndarray]:
        assert isinstance(cache, FakeRows)
        if self.fails:
            self.fails -= 1
            raise RuntimeError("the head fails")
        assert len(x) == len(token_ids) == sum(s.num_tokens for s in segments)
        assert [s.row for s in segments] == sorted({s.row for s in segments}), "ordered by row"
        self.pass_sizes.append(len(token_ids))
        values = np.tanh(
            _product(x, self._from_x) + _product(self._embedding[token_ids], self._from_token)
        )
        sums, at = np.empty_like(values), 0
        for segment in segments:
            own = slice(at, at + segment.num_tokens)
            sums[own] = self._write(cache, segment, token_ids[own], x[own], values[own])
            at = own.stop
        outputs = np.tanh(values + _product(np.tanh(sums), self._from_past))
        return _product(outputs[list(logit_rows)], self._head), outputs

    def _write(
        self,
        cache: FakeRows,
        segment: Segment,
        token_ids: List[int],
        x: np.ndarray,
        values: np.ndarray,
    ) -> np.ndarray:
        """Fill the segment's slots; returns for each column the sum over all that it sees."""
        row, slots, positions = segment.row, segment.slots, segment.positions()
        assert slots.stop <= cache.capacity
        assert max(positions) < self.config.max_position_embeddings
        before = cache.sums[row, segment.start - 1] if segment.start else np.zeros_like(values[0])
        # One after the other, so that how columns were split into passes is not to be seen.
        sums: list[np.ndarray] = []
        for i, value in enumerate(values + np.float32(0.01) * np.array(positions)[:, None]):
            parent = i - 1 if segment.parents is None else segment.parents[i]
            sums.append((before if parent < 0 else sums[parent]) + value.astype(np.float32))
        cache.positions[row, slots], cache.tokens[row, slots] = positions, token_ids
        cache.x[row, slots], cache.sums[row, slots] = x, sums
        return cache.sums[row, slots]

    def draft(
        self,
        cache: CopyableRows,
        rows: List[int],
        starts: List[int],
        pending: List[List[int]],
        features: np.ndarray,
        counts: List[int],
        choosers: List[Chooser],
        *,
        width: int = 0,
    ) -> HeadDraft:
        assert sum(map(len, pending)) == len(features)
        assert not width or all(chooser is BEST for chooser in choosers)
        x = self.fuse(features)
        token_ids, q, ranked, at = [], [], [], 0
        for i, row in enumerate(rows):
            tokens, end = list(pending[i]), at + len(pending[i])
            chain, laws, logits = self._chain(
                cache, row, starts[i], tokens, x[at:end], counts[i], choosers[i]
            )
            token_ids.append(chain)
            q.append(np.stack(laws) if laws else None)
            ranked += [[self._best(row, width) for row in logits]] if width else []
            at = end
        return HeadDraft(token_ids, q, ranked)

    def _best(self, logits: np.ndarray, width: int) -> tuple[list[int], list[float]]:
        best = np.argsort(-logits, kind="stable")[:width]
        return self.draft_token_ids[best].tolist(), softmax(logits)[best].tolist()

    def _chain(
        self,
        cache: CopyableRows,
        row: int,
        start: int,
        tokens: list[int],
        x: np.ndarray,
        count: int,
        chooser: Chooser,
    ) -> tuple[list[int], list[np.ndarray], list[np.ndarray]]:
        """A chain's tokens, the distributions of those drawn, and the logits of all."""
        assert count > 0
        assert tokens
        chain: list[int] = []
        laws: list[np.ndarray] = []
        seen: list[np.ndarray] = []
        while True:
            segments = [Segment(row, start, len(tokens))]
            logits, outputs = self.forward(cache, tokens, x, segments, [len(tokens) - 1])
            choice = int(logits[0].argmax())
            if chooser.race is not None:
                choice = chooser.race.winner(logits[0], len(chain))
            elif chooser.coins:
                coin = chooser.coins[len(chain)]
                choice, law = self._drawn(logits[0], chooser.temperature, coin)
                laws.append(law)
            chain.append(int(self.draft_token_ids[choice]))
            seen.append(logits[0])
            if len(chain) == count:
                return chain, laws, seen
            start, tokens, x = start + len(tokens), chain[-1:], outputs[-1:]

    def _drawn(self, logits: np.ndarray, temperature: float, coin: float) -> tuple[int, np.ndarray]:
        law = softmax(logits / temperature)
        return int(np.searchsorted(np.cumsum(law), coin, side="right").clip(0, len(law) - 1)), law


class LyingHead(FakeHead):
    """Draws from what it says it does not: claims the uniform distribution."""

    def _drawn(self, *args: Any) -> tuple[int, np.ndarray]:
        choice, law = super()._drawn(*args)
        return choice, np.full_like(law, 1 / len(law))


def _product(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """x @ weights; the bits of a row do not depend on how many there are."""
    return (x[:, :, None] * weights).sum(axis=1)


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits.astype(np.float64) - float(logits.max()))
    return (weights / weights.sum()).astype(np.float32)
