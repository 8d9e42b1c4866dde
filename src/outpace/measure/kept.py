"""Engines that are kept from request to request, as a server keeps them.

What a method learns of the machine and of how often its drafts are right stays; texts do not: every
request has a salt of its own, so that it finds neither prompts nor a drafter's memory of others.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from outpace import LLM, SamplingParams
from outpace.engine.instruments import Instruments
from outpace.engine.metrics import EngineMetrics
from outpace.errors import OptionError
from outpace.measure.decided import Decided, DecisionReader
from outpace.measure.timing import Timing, since, timed_generation
from outpace.models.load import LoadedModel
from outpace.outputs import RequestOutput, SpeculationStats

SETTLE_S = 0.005
"""For threads of whoever computed before, which may still be spinning in wait for more to do."""

_salts = itertools.count()


@dataclass(slots=True)
class DecidedTiming(Timing):
    """A generation, and what was decided in it."""

    decided: Decided | None = None


@dataclass(slots=True)
class Answer:
    """One request of a batch. first_s: from the beginning of the batch to its first tokens."""

    token_ids: list[int]
    first_s: float
    stats: SpeculationStats


@dataclass(slots=True)
class BatchTiming:
    """Requests decoded together, times in seconds from when they were handed over.

    window_s: from when all had their first token to the end; window_tokens, counted: output tokens
    that came in it, and what the engine counted.
    """

    answers: list[Answer] = field(default_factory=list)
    total_s: float = 0.0
    window_s: float = 0.0
    window_tokens: int = 0
    counted: EngineMetrics = field(default_factory=EngineMetrics)
    decided: Decided | None = None


class KeptEngine:
    """A method, ready to run: one engine over an already loaded model, made on first use."""

    def __init__(
        self,
        loaded: LoadedModel,
        config: Mapping[str, Any],
        *,
        name: str,
        max_model_len: int,
        max_num_seqs: int = 1,
        instruments: Instruments | None = None,
    ) -> None:
        self.name = name
        self._loaded = loaded
        self._config = config
        self._max_model_len = max_model_len
        self._max_num_seqs = max_num_seqs
        self._instruments = instruments
        self._llm: LLM | None = None
        self._decisions: DecisionReader | None = None

    def generate(self, prompt: Sequence[int], params: SamplingParams) -> Timing:
        """Decode one prompt."""
        llm = self.llm
        self._decided()
        timing = timed_generation(llm, prompt, params, _new_salt())
        assert timing.num_cached_tokens == 0, "the prompt was in the cache"
        values = {f.name: getattr(timing, f.name) for f in fields(Timing)}
        return DecidedTiming(**values, decided=self._decided())

    def generate_batch(
        self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]
    ) -> BatchTiming:
        """Decode the prompts together, each with its own parameters."""
        llm = self.llm
        self._decided()
        timing = asyncio.run(_time_batch(llm, prompts, params))
        timing.decided = self._decided()
        return timing

    def check_rows(self, batch: int) -> None:
        """Raise OptionError if it takes fewer requests at a time."""
        num_rows = self.llm.state().num_rows
        if num_rows < batch:
            raise OptionError(f"{batch} requests together do not fit; {num_rows} do")

    def close(self) -> None:
        if self._llm is not None:
            self._llm.close()
            self._llm = None

    @property
    def llm(self) -> LLM:
        """The engine, made at the first call."""
        if self._llm is None:
            self._llm = LLM(
                self._loaded,
                speculative_config=self._config,
                max_model_len=self._max_model_len,
                max_num_seqs=self._max_num_seqs,
                instruments=self._instruments,
            )
            self._decisions = DecisionReader(self._llm)
        return self._llm

    def _decided(self) -> Decided | None:
        """What was decided since the last call."""
        # The engine delivers a step's tokens before it notes what the step took.
        time.sleep(SETTLE_S)
        assert self._decisions is not None
        return self._decisions.read()


def _new_salt() -> str:
    return f"run {next(_salts)}"


async def _time_batch(
    llm: LLM, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]
) -> BatchTiming:
    arrivals: list[tuple[float, int]] = []
    at_first = EngineMetrics()
    started = time.perf_counter()

    async def run(prompt: Sequence[int], own: SamplingParams) -> tuple[float, RequestOutput]:
        request = {"prompt_token_ids": list(prompt), "cache_salt": _new_salt()}
        nonlocal at_first
        first_s = 0.0
        # Interrupted, it waits for the request's end: events must not come to a loop that is gone.
        async with llm.astream(request, own) as stream:
            async for event in stream:
                elapsed = time.perf_counter() - started
                if not first_s:
                    # The last request to get here is the one that counts.
                    first_s, at_first = elapsed, replace(llm.metrics)
                arrivals.append((elapsed, len(event.token_ids)))
        return first_s, stream.output

    done = await asyncio.gather(*map(run, prompts, params))
    answers = [
        Answer(list(output.outputs[0].token_ids), first_s, output.stats) for first_s, output in done
    ]
    total_s = max(at for at, _ in arrivals)
    window_from = max(answer.first_s for answer in answers)
    return BatchTiming(
        answers,
        total_s,
        total_s - window_from,
        sum(count for at, count in arrivals if at > window_from),
        since(at_first, llm.metrics),
    )
