"""Our own models, native and torch, as steppers; and the read rate of memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np
import torch

from harness.step.engines import Setup
from harness.step.results import Engine
from harness.step.weights import computed_weight_bytes, is_packed, stored_weight_bytes
from outpace import SamplingParams
from outpace.models.load import load_model
from outpace.native.pool import ThreadPool
from outpace.runner import Runner
from outpace.types import Draft, Scores
from outpace.types import Sequence as TokenSequence

_CHUNK_LEN = 512
# Larger than the last-level caches of current servers, which reach some hundred megabytes.
_PROBE_BYTES = 1 << 29
_NUM_PROBES = 3


class OurStepper:
    """A model of ours, fed through the `Runner` as the engine feeds it."""

    def __init__(self, setup: Setup) -> None:
        torch.set_num_threads(setup.num_threads)
        self._setup = setup
        self._model = load_model(setup.path, **setup.options)
        self._scratch = self._new_runner(1)
        self._contexts: dict[int, TokenSequence] = {}
        self._runner = self._scratch

    def describe(self) -> Engine:
        setup, model = self._setup, self._model
        return Engine(
            label=setup.label,
            kind=setup.kind,
            format=setup.format,
            weight_bytes=self._weight_bytes(),
            kv_bytes_per_token=model.kv_bytes(num_rows=1, num_tokens=1024) / 1024,
            details=model.runs_on,
        )

    def _weight_bytes(self) -> int:
        if is_packed(self._setup.format):
            return stored_weight_bytes(Path(self._setup.path))
        return computed_weight_bytes(self._model.config, self._setup.format)

    def prepare(self, contexts: Sequence[Sequence[int]]) -> None:
        self._runner = self._new_runner(len(contexts))
        for index, token_ids in enumerate(contexts):
            # One more than is cached: the newest token is what a pass begins with.
            seq = _sequence(index, [*token_ids, token_ids[0]])
            _feed(self._runner, seq)
            self._runner.commit([seq])
            self._contexts[len(token_ids)] = seq

    def step(self, context_len: int, num_rows: int) -> None:
        seq = self._contexts[context_len]
        scores = self._runner.extend([seq], [Draft(tuple(seq.tokens[: num_rows - 1]))])
        assert len(scores.logits) == num_rows
        # The sequence gained nothing, so this forgets all that the pass fed.
        self._runner.commit([seq])

    def prefill(self, token_ids: Sequence[int]) -> None:
        self._last_scores(token_ids)

    def next_token(self, token_ids: Sequence[int]) -> int:
        return int(self._last_scores(token_ids).logits[-1].argmax())

    def _new_runner(self, num_rows: int) -> Runner:
        cache = self._model.new_cache(num_rows=num_rows, num_tokens=self._setup.max_tokens)
        return Runner(self._model.decoder, cache)

    def _last_scores(self, token_ids: Sequence[int]) -> Scores:
        seq = _sequence(0, list(token_ids))
        scores = _feed(self._scratch, seq)
        self._scratch.release(seq)
        return scores


def _sequence(seq_id: int, tokens: list[int]) -> TokenSequence:
    return TokenSequence(seq_id, tokens, len(tokens), SamplingParams())


def _feed(runner: Runner, seq: TokenSequence) -> Scores:
    runner.open(seq, reuse=False)
    while True:
        scores = runner.extend([seq], max_feed=[_CHUNK_LEN])
        if runner.num_cached(seq) == len(seq.tokens):
            return scores


class MemoryReader:
    """Reads a buffer with the pool that the native step runs on."""

    def __init__(self, setup: Setup) -> None:
        self._pool = ThreadPool.shared(setup.num_threads)
        self._buffer = np.ones(_PROBE_BYTES, dtype=np.uint8)

    def describe(self) -> str:
        return f"{_PROBE_BYTES >> 20} MiB, {self._pool.num_threads} threads"

    def bytes_per_s(self) -> float:
        seconds = [self._pool.read_seconds(self._buffer) for _ in range(_NUM_PROBES)]
        return _PROBE_BYTES / median(seconds)
