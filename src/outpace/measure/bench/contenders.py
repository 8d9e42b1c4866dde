"""The ways to decode that take turns, each made once and kept."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol

from outpace import SamplingParams
from outpace.drafters.parts.trained import bundled_for
from outpace.engine.speculative_config import parse_speculative_config
from outpace.measure.bench.options import DEFAULT_METHODS
from outpace.measure.bench.results import MethodInfo
from outpace.measure.bench.steps import Step, StepRecorder
from outpace.measure.kept import BatchTiming, KeptEngine
from outpace.measure.methods import PLAIN, Config, name_of, named
from outpace.measure.timing import PLAIN_CONFIG
from outpace.models.load import LoadedModel


class Engine(Protocol):
    """Decodes groups of prompts; a `KeptEngine` or a peer."""

    def generate_batch(
        self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]
    ) -> BatchTiming: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Contender:
    """A way to decode, ready to run.

    greedy_only: it does not sample as we do. max_batch: most requests it takes together, None: any
    number. recorder: of the steps of an engine of ours.
    """

    info: MethodInfo
    engine: Engine
    greedy_only: bool = False
    max_batch: int | None = None
    recorder: StepRecorder | None = None

    @property
    def name(self) -> str:
        return self.info.name

    def takes(self, temperature: float, batch: int) -> bool:
        """Whether it decodes such requests."""
        is_small_enough = self.max_batch is None or batch <= self.max_batch
        return is_small_enough and (temperature == 0 or not self.greedy_only)

    def check_rows(self, batch: int) -> None:
        """Raise OptionError if an engine of ours, which must have run, takes fewer requests at a
        time."""
        if isinstance(self.engine, KeptEngine):
            self.engine.check_rows(batch)

    def run(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams
    ) -> tuple[BatchTiming, tuple[Step, ...]]:
        """Decode the prompts together; the steps are those after all had their first token."""
        if self.recorder is None:
            return self.engine.generate_batch(prompts, [params] * len(prompts)), ()
        self.recorder.clear()
        timing = self.engine.generate_batch(prompts, [params] * len(prompts))
        return timing, self.recorder.newest(timing.counted.num_steps)


def check_methods(configs: Sequence[Config]) -> None:
    """Raise OptionError for an unknown method or option."""
    named(configs)


def method_infos(configs: Sequence[Config], loaded: LoadedModel) -> list[MethodInfo]:
    """Plain decoding, then every method; where none is given, `DEFAULT_METHODS` and what is shipped
    for the model."""
    chosen = list(configs)
    if not chosen:
        trained = bundled_for(loaded)
        chosen = [*DEFAULT_METHODS, *([{"method": trained.method}] if trained else [])]
    infos = [MethodInfo(PLAIN, PLAIN_CONFIG, is_plain=True)]
    for config in chosen:
        name = name_of(config)
        if name not in [info.name for info in infos]:
            options = parse_speculative_config(config).options
            infos.append(MethodInfo(name, config, shape=getattr(options, "shape", "chain")))
    return infos


def draft_limit(info: MethodInfo) -> int:
    """Most draft tokens that a request may have in a step."""
    if info.config is None:
        return 0
    return parse_speculative_config(info.config).options.draft_limit


def our_contenders(
    loaded: LoadedModel,
    infos: Sequence[MethodInfo],
    *,
    max_model_len: int,
    batch: int,
    closing: ExitStack,
) -> list[Contender]:
    """An engine for each method, over one loaded model."""
    found = []
    for info in infos:
        assert info.config is not None
        recorder = StepRecorder()
        engine = KeptEngine(
            loaded,
            info.config,
            name=info.name,
            max_model_len=max_model_len,
            max_num_seqs=batch,
            instruments=recorder.instruments,
        )
        closing.callback(engine.close)
        found.append(Contender(info, engine, recorder=recorder))
    return found
