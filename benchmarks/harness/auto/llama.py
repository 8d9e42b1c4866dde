"""Plain greedy decoding by llama.cpp, in a process of its own."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median
from typing import Any

from harness.step.engines import EngineProcess, Setup
from harness.step.llama import LlamaStepper
from outpace import SamplingParams
from outpace.measure.kept import SETTLE_S
from outpace.measure.timing import Stopwatch, Timing

NUM_TRIED = 15
"""Passes over one row by which the fastest setting is found."""


class LlamaDecoder(LlamaStepper):
    """Decodes with the setting that is fastest for passes over one row after the first prompt."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._fastest_context: Any = None

    def generate(
        self, token_ids: Sequence[int], max_tokens: int, end_token_ids: Sequence[int]
    ) -> Timing:
        if self._fastest_context is None:
            self._fastest_context = self._try_all(token_ids)
        context = self._fastest_context
        time.sleep(SETTLE_S)
        context.forget(0)
        watch = Stopwatch()
        context.decode(token_ids, 1)
        newest = context.best(self._vocab_size)
        watch.add([newest])
        while len(watch.timing.token_ids) < max_tokens and newest not in end_token_ids:
            context.decode([newest], 1)
            newest = context.best(self._vocab_size)
            watch.add([newest])
        return watch.stop()

    def _try_all(self, token_ids: Sequence[int]) -> Any:
        seconds: list[list[float]] = [[] for _ in self._scratch]
        for context in self._scratch:
            context.forget(0)
            context.decode(token_ids, 1)
        for _ in range(NUM_TRIED):
            for context, times in zip(self._scratch, seconds, strict=True):
                # Threads of the context before may still be spinning.
                time.sleep(SETTLE_S)
                started = time.perf_counter()
                context.decode([token_ids[-1]], 1)
                times.append(time.perf_counter() - started)
                context.forget(len(token_ids))
        medians = [median(times) for times in seconds]
        return self._scratch[medians.index(min(medians))]


class LlamaMethod:
    """The decoder behind its process, as one of the methods that take turns."""

    def __init__(self, process: EngineProcess, end_token_ids: Sequence[int]) -> None:
        self.name = process.engine.label
        self._process = process
        self._end_token_ids = sorted(end_token_ids)

    def generate(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        before: Sequence[Sequence[int]] = (),
    ) -> Timing:
        assert params.is_greedy, "its random numbers are not ours: only greedy is comparable"
        assert not before, "it remembers nothing"
        timing: Timing = self._process.call(
            "generate", list(prompt), params.max_tokens, self._end_token_ids
        )
        return timing
