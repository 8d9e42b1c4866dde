"""Models and caches of the native step: one call is one target pass, or a whole draft."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int32

from outpace.errors import ModelError
from outpace.native.config import NativeConfig
from outpace.native.interface import ERROR_BYTES, BatchStruct, LayerStruct, SegmentStruct
from outpace.native.library import chosen_path, library
from outpace.native.pool import ThreadPool
from outpace.native.weights import Array, address, address_or_null, check_ids, check_vector

SLOTS = 16  # a cache's capacity is a multiple of this


class NativeSegment(NamedTuple):
    """`op_segment`: new tokens of one sequence, slots `start` and up of cache row `row`.

    parents: None for a chain; else int32 [num_tokens], each node's parent among the new tokens, -1
    for the last token before `start`; parents come first.
    """

    row: int
    start: int
    num_tokens: int
    parents: Int32[np.ndarray, " num_tokens"] | None = None


class NativeModel:
    """A model in native memory, bound to a pool and an instruction-set path."""

    def __init__(self, config: NativeConfig, pool: ThreadPool, path: str | None = None) -> None:
        self.config = config
        self.pool = pool
        self.path = path or chosen_path()
        self._error = ctypes.create_string_buffer(ERROR_BYTES)
        self._error_address = ctypes.addressof(self._error)
        self._ropes: dict[int, tuple[Array, Array]] = {}  # keeps the tables alive
        layers = (LayerStruct * len(config.layers))(*(layer.struct() for layer in config.layers))
        eagle = None if config.eagle is None else config.eagle.struct()
        struct = config.struct(layers, eagle)
        pointer = library().op_model_new(
            ctypes.addressof(struct), pool.pointer, self.path.encode(), self._error_address
        )
        if not pointer:
            raise ModelError(self._message())
        self.pointer: int = pointer
        # Not at exit: another thread may still be in a pass, and the system takes the memory back.
        weakref.finalize(self, library().op_model_free, pointer).atexit = False
        self._forward = library().op_forward
        self._batch = BatchStruct()
        self._batch_address = ctypes.addressof(self._batch)
        self._segments = (SegmentStruct * 1)()

    def set_rope(
        self,
        index: int,
        cos: Float[np.ndarray, "positions half"],
        sin: Float[np.ndarray, "positions half"],
    ) -> None:
        """Rotary tables of the layers with `rope == index`; longer ones may replace them later."""
        assert cos.shape == sin.shape
        for table in (cos, sin):
            check_vector(table, None)
        positions, half = cos.shape
        tables = address(cos), address(sin)
        with self.pool.lock:
            self._check(
                library().op_set_rope(
                    self.pointer, index, half, positions, *tables, self._error_address
                )
            )
            self._ropes[index] = (cos, sin)

    def forward(
        self,
        cache: NativeCache,
        token_ids: Int32[np.ndarray, " tokens"],
        segments: Sequence[NativeSegment],
        logit_rows: Int32[np.ndarray, " rows"],
        *,
        logits: Float[np.ndarray, "rows num_logits"] | None = None,
        best: Int32[np.ndarray, " rows"] | None = None,
        capture: Int32[np.ndarray, " layers"] | None = None,
        hidden: Sequence[Float[np.ndarray, "tokens hidden"]] = (),
        num_layers: int = 0,
        x: Float[np.ndarray, "tokens hidden"] | None = None,
        outputs: Float[np.ndarray, "tokens hidden"] | None = None,
    ) -> None:
        """One pass: feed `token_ids`, segment after segment, and write keys and values to `cache`.

        Args:
            logit_rows: which of the tokens to answer for.
            logits, best: filled with the logits and with their argmax (lowest id among equals).
            capture: ascending layers (0: the embedding, i: the i-th layer's output).
            hidden: one array per captured layer, filled.
            num_layers: run only the first that many; 0: all.
            x, outputs: of an EAGLE head what columns start from, and what they leave (filled).
        """
        rows = len(logit_rows)
        check_ids(token_ids)
        check_ids(logit_rows)
        for array in (x, outputs):
            check_vector(array, len(token_ids) * self.config.hidden_size)
        check_vector(logits, rows * self.config.num_logits)
        if best is not None:
            check_ids(best)
            assert len(best) == rows
        with self.pool.lock:
            batch = self._fill(segments, num_layers)
            assert len(token_ids) == batch.num_tokens
            batch.token_ids = address(token_ids)
            batch.num_logit_rows = rows
            batch.logit_rows = address(logit_rows)
            batch.logits = address_or_null(logits)
            batch.best = address_or_null(best)
            batch.x, batch.outputs = address_or_null(x), address_or_null(outputs)
            kept = self._fill_capture(capture, hidden)
            self._check(
                self._forward(self.pointer, cache.pointer, self._batch_address, self._error_address)
            )
            del kept

    def layer_forward(
        self,
        cache: NativeCache,
        layer: int,
        x: Float[np.ndarray, "tokens hidden"],
        segments: Sequence[NativeSegment],
    ) -> None:
        """Layer `layer` (0-based) over x, in place."""
        check_vector(x, None)
        assert x.shape[1] == self.config.hidden_size
        with self.pool.lock:
            batch = self._fill(segments, 0)
            assert batch.num_tokens == len(x)
            batch.token_ids = None
            batch.num_logit_rows = batch.num_capture = 0
            struct = self._batch_address
            self._check(
                library().op_layer_forward(
                    self.pointer, cache.pointer, layer, struct, address(x), self._error_address
                )
            )

    def draft(
        self,
        cache: NativeCache,
        rows: Int32[np.ndarray, " seqs"],
        starts: Int32[np.ndarray, " seqs"],
        num_pending: Int32[np.ndarray, " seqs"],
        pending_ids: Int32[np.ndarray, " pending"],
        num_steps: Int32[np.ndarray, " seqs"],
        num_layers: int = 0,
    ) -> Int32[np.ndarray, "seqs max_steps"]:
        """Greedy drafting in one call: feed each sequence's pending tokens from slot `starts` of
        its row, then num_steps - 1 tokens chosen here. Past a sequence's num_steps stands -1.

        num_layers: run only the first that many; 0: all.
        """
        arrays = (rows, starts, num_pending, pending_ids, num_steps)
        for array in arrays:
            check_ids(array)
        assert len(rows) == len(starts) == len(num_pending) == len(num_steps)
        assert int(num_pending.sum()) == len(pending_ids)
        drafted = np.full((len(rows), int(num_steps.max())), -1, dtype=np.int32)
        with self.pool.lock:
            self._check(
                library().op_draft(
                    self.pointer,
                    cache.pointer,
                    len(rows),
                    *map(address, arrays),
                    num_layers,
                    address(drafted),
                    self._error_address,
                )
            )
        return drafted

    def _fill(self, segments: Sequence[NativeSegment], num_layers: int) -> BatchStruct:
        """The structs are reused: making them anew costs more than filling them."""
        if len(segments) > len(self._segments):
            self._segments = (SegmentStruct * (2 * len(segments)))()
        total = 0
        for struct, (row, start, num_tokens, parents) in zip(
            self._segments, segments, strict=False
        ):
            struct.row, struct.start, struct.num_tokens = row, start, num_tokens
            struct.parents = address_or_null(parents)
            total += num_tokens
            if parents is not None:
                check_ids(parents)
                assert len(parents) == num_tokens
        batch = self._batch
        batch.num_tokens, batch.num_segments, batch.num_layers = total, len(segments), num_layers
        batch.segments = ctypes.addressof(self._segments)
        return batch

    def _fill_capture(self, capture: Array | None, hidden: Sequence[Array]) -> object:
        """Returns what must stay referenced during the pass."""
        batch = self._batch
        if capture is None:
            batch.num_capture, batch.capture, batch.hidden = 0, None, None
            return None
        check_ids(capture)
        assert len(capture) == len(hidden)
        for array in hidden:
            check_vector(array, batch.num_tokens * self.config.hidden_size)
        addresses = (ctypes.c_void_p * len(hidden))(*map(address, hidden))
        batch.num_capture = len(capture)
        batch.capture = address(capture)
        batch.hidden = ctypes.addressof(addresses)
        return addresses

    def _check(self, status: int) -> None:
        if status < 0:
            raise ModelError(self._message())

    def _message(self) -> str:
        return self._error.value.decode()


class NativeCache:
    """Keys and values of `num_rows` sequences of up to `capacity` tokens, for models of this shape.

    capacity is rounded up to a multiple of 16. Memory is committed when it is first written.
    """

    def __init__(self, model: NativeModel, num_rows: int, capacity: int) -> None:
        capacity = -(-capacity // SLOTS) * SLOTS
        error = ctypes.create_string_buffer(ERROR_BYTES)
        pointer = library().op_cache_new(model.pointer, num_rows, capacity, ctypes.addressof(error))
        if not pointer:
            raise ModelError(error.value.decode())
        self.pointer: int = pointer
        self.num_rows = num_rows
        self.capacity = capacity
        weakref.finalize(self, library().op_cache_free, pointer).atexit = False

    @staticmethod
    def num_bytes(model: NativeModel, num_rows: int, capacity: int) -> int:
        """Memory that such a cache takes when it is full."""
        capacity = -(-capacity // SLOTS) * SLOTS
        return int(library().op_cache_bytes(model.pointer, num_rows, capacity))

    def copy(self, source: int, target: int, begin: int, end: int) -> None:
        """Copy slots begin .. end - 1 of row `source` to row `target`, all layers."""
        assert 0 <= source < self.num_rows
        assert 0 <= target < self.num_rows
        assert 0 <= begin <= end <= self.capacity
        library().op_cache_copy(self.pointer, source, target, begin, end)

    def keep(self, row: int, start: int, nodes: Int32[np.ndarray, " nodes"]) -> None:
        """Compact an accepted path: slot start + nodes[i] moves to slot start + i; nodes ascend."""
        check_ids(nodes)
        assert 0 <= row < self.num_rows
        assert start >= 0
        library().op_cache_keep(self.pointer, row, start, address(nodes), len(nodes))
