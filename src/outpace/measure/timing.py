"""One request on a clock: when its tokens came, and what the engine counted meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from outpace import LLM, SamplingParams
from outpace.engine.metrics import EngineMetrics
from outpace.outputs import SpeculationStats

PLAIN_CONFIG = {"method": "none"}
"""The configuration of plain decoding."""


@dataclass(slots=True)
class Timing:
    """What one generation gave, and when.

    step_lens: output tokens of each step. ttft_s: from the call to the first step's tokens;
    total_s: to the return of the call. counted: what our engine counted in the steps after the
    first that gave tokens; stats: what became of its drafts, over all steps.
    """

    token_ids: list[int] = field(default_factory=list)
    step_lens: list[int] = field(default_factory=list)
    ttft_s: float = 0.0
    total_s: float = 0.0
    num_cached_tokens: int = 0
    counted: EngineMetrics = field(default_factory=EngineMetrics)
    stats: SpeculationStats = field(default_factory=SpeculationStats)


class Stopwatch:
    """Started by making it; `add` notes the tokens of one step."""

    def __init__(self) -> None:
        self.timing = Timing()
        self._started = time.perf_counter()

    def add(self, token_ids: Iterable[int]) -> None:
        elapsed = time.perf_counter() - self._started
        before = len(self.timing.token_ids)
        self.timing.token_ids.extend(token_ids)
        if len(self.timing.token_ids) == before:
            return
        if not self.timing.step_lens:
            self.timing.ttft_s = elapsed
        self.timing.step_lens.append(len(self.timing.token_ids) - before)

    def stop(self) -> Timing:
        self.timing.total_s = time.perf_counter() - self._started
        return self.timing


def timed_generation(
    llm: LLM, prompt: Sequence[int], params: SamplingParams, salt: str | None = None
) -> Timing:
    """One request, alone. salt: of what it shares with others; None shares with all without one."""
    request: dict[str, Any] = {"prompt_token_ids": list(prompt)}
    watch = Stopwatch()
    first: EngineMetrics | None = None
    with llm.stream(request | ({"cache_salt": salt} if salt else {}), params) as stream:
        for event in stream:
            watch.add(event.token_ids)
            # The engine is in its next pass by now, and adds up again only when that is over.
            first = first or replace(llm.metrics)
    timing = watch.stop()
    if first is not None:
        timing.counted = since(first, llm.metrics)
    timing.num_cached_tokens = stream.output.metrics.num_cached_tokens
    timing.stats = stream.output.stats
    return timing


def since(before: EngineMetrics, after: EngineMetrics) -> EngineMetrics:
    """What was counted in between."""
    differences = {
        f.name: getattr(after, f.name) - getattr(before, f.name) for f in fields(EngineMetrics)
    }
    return EngineMetrics(**differences)
