"""Ways to decode a prompt, all timed with the same clock at the same place: the caller's."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol

from outpace import LLM, SamplingParams
from outpace.engine.metrics import EngineMetrics
from outpace.models.load import LoadedModel, load_model
from outpace.outputs import SpeculationStats

PLAIN_CONFIG = {"method": "none"}


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


class Method(Protocol):
    """One way to decode, ready to run. name: how tables call it."""

    name: str

    def generate(self, prompt: Sequence[int], params: SamplingParams) -> Timing: ...


class OutpaceMethod:
    """This engine, one request at a time, over an already loaded model.

    Every generation has an engine of its own, made before the clock starts. So nothing is reused
    between requests, and there is one engine thread at a time, as in a user's program: the OpenMP
    workers of a second one, even idle, would make those of the first go to sleep sooner.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        config: Mapping[str, Any] | None,
        *,
        max_model_len: int,
        name: str | None = None,
    ) -> None:
        self.name = name or f"outpace {_label(config)}"
        self._loaded = loaded
        self._config = config
        self._max_model_len = max_model_len

    def generate(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        before: Sequence[Sequence[int]] = (),
    ) -> Timing:
        """before: prompts that the same engine answers first, the clock not running."""
        with self._warm_engine(prompt, before, params) as llm:
            timing = timed_generation(llm, prompt, params)
        assert timing.num_cached_tokens == 0, "the prompt was in the cache"
        return timing

    def measure_steps(
        self, prompt: Sequence[int], params: SamplingParams
    ) -> tuple[EngineMetrics, float]:
        """What the engine counted over one generation, and the wall time of it in seconds.

        The prompt is put into the cache before, so that every step is a decoding step.
        """
        with self._warm_engine(prompt) as llm:
            timed_generation(llm, prompt, SamplingParams(temperature=0.0, max_tokens=1))
            before = replace(llm.metrics)
            timing = timed_generation(llm, prompt, params)
            counted = since(before, llm.metrics)
        assert timing.num_cached_tokens == len(prompt) - 1, "the prompt was not cached"
        return counted, timing.total_s

    @contextmanager
    def _warm_engine(
        self,
        prompt: Sequence[int],
        before: Sequence[Sequence[int]] = (),
        params: SamplingParams | None = None,
    ) -> Iterator[LLM]:
        """A new engine whose threads are running and whose cache holds no part of `prompt`."""
        with LLM(
            self._loaded,
            speculative_config=self._config or PLAIN_CONFIG,
            max_model_len=self._max_model_len,
            max_num_seqs=1,
        ) as llm:
            for earlier in before:
                timed_generation(llm, earlier, params or SamplingParams())
            # The cache has one row, which this empties of whatever came before.
            other = 1 if prompt[0] == 0 else 0
            timed_generation(llm, [other, other], SamplingParams(temperature=0.0, max_tokens=1))
            yield llm


def answer(loaded: LoadedModel, prompt: Sequence[int], max_tokens: int) -> str:
    """The text of the model's greedy answer, decoded plainly."""
    with LLM(
        loaded,
        speculative_config=PLAIN_CONFIG,
        max_model_len=len(prompt) + max_tokens,
        max_num_seqs=1,
    ) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
        (output,) = llm.generate([{"prompt_token_ids": list(prompt)}], params)
        return output.outputs[0].text


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


def outpace_methods(
    loaded: LoadedModel, configs: Sequence[Mapping[str, Any]], *, max_model_len: int
) -> list[OutpaceMethod]:
    """Plain decoding and one method per speculative_config, sharing the model's weights.

    A draft model named in a configuration is loaded here, once, in the target's dtype.
    """
    methods = [OutpaceMethod(loaded, None, max_model_len=max_model_len)]
    for config in configs:
        values = dict(config)
        if values.get("method") == "draft_model" and isinstance(values.get("model"), str):
            device = str(loaded.decoder.device)
            values["model"] = load_model(values["model"], dtype=loaded.dtype, device=device)
        methods.append(OutpaceMethod(loaded, values, max_model_len=max_model_len))
    return methods


def _label(config: Mapping[str, Any] | None) -> str:
    """ "plain", or the method with its options: "ngram K=4"."""
    if config is None:
        return "plain"
    options = {
        ("K" if key == "num_speculative_tokens" else key): value
        for key, value in config.items()
        if key not in ("method", "model")
    }
    method = str(config.get("method", "draft_model"))
    return " ".join([method, *(f"{key}={value}" for key, value in options.items())])
