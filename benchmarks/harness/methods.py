"""Ways to decode a prompt, all timed with the same clock at the same place: the caller's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol

from outpace import LLM, SamplingParams
from outpace.engine.metrics import EngineMetrics
from outpace.measure.timing import PLAIN_CONFIG, Timing, since, timed_generation
from outpace.models.load import LoadedModel, load_model


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
