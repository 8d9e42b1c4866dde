"""From options to an engine: load the models, plan the memory, build the drafter."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as List
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import numpy as np

from outpace.drafters.base import Drafter, DraftingContext, check_whole_number
from outpace.engine.engine import Engine
from outpace.engine.instruments import Instruments
from outpace.engine.memory import SHARE_OF_FREE_MEMORY, available_bytes, plan_rows
from outpace.engine.speculative_config import SpeculativeConfig
from outpace.errors import ModelError, OptionError
from outpace.models.load import LoadedModel, load_model
from outpace.models.native.decoder import NativeDecoder
from outpace.models.native.formats import PACKED_DTYPES, NativeOptions
from outpace.models.threads import check_threads
from outpace.runner import Runner

DEFAULT_MAX_MODEL_LEN = 8192


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What `LLM` was asked for, besides the model and the drafter; see there."""

    dtype: str
    device: str
    max_model_len: int | None
    max_num_seqs: int
    kv_cache_bytes: int | None
    progress: Callable[[int, int], None] | None
    model_impl: str = "auto"
    threads: int | None = None
    kv_cache_dtype: str = "auto"
    activations: str = "auto"

    def __post_init__(self) -> None:
        check_whole_number("max_num_seqs", self.max_num_seqs, low=1)
        if self.max_model_len is not None:
            check_whole_number("max_model_len", self.max_model_len, low=2)
        if self.kv_cache_bytes is not None:
            check_whole_number("kv_cache_bytes", self.kv_cache_bytes, low=1)
        check_threads(self.threads)

    def load(self, model: str | Path | LoadedModel) -> LoadedModel:
        """Load a model with these options; one that is loaded already must agree with them."""
        if not isinstance(model, LoadedModel):
            return load_model(
                model,
                dtype=self.dtype,
                device=self.device,
                model_impl=self.model_impl,
                kv_cache_dtype=self.kv_cache_dtype,
                activations=self.activations,
                threads=self.threads,
                download_progress=self.progress,
                packing_progress=self.progress,
            )
        self._check_agrees(model)
        return model

    def for_draft(self) -> EngineOptions:
        """The same for a draft model: what was said of the target alone is left out."""
        dtype = "auto" if self.dtype in PACKED_DTYPES else self.dtype
        return replace(
            self, dtype=dtype, model_impl="auto", kv_cache_dtype="auto", activations="auto"
        )

    def _check_agrees(self, model: LoadedModel) -> None:
        if self.dtype not in ("auto", model.dtype):
            raise OptionError(f"dtype={self.dtype!r}, but {model.name} is loaded in {model.dtype}")
        if self.model_impl not in ("auto", model.model_impl):
            raise OptionError(
                f"model_impl={self.model_impl!r}, but {model.name} runs on the {model.runs_on}"
            )
        options = NativeOptions(self.kv_cache_dtype, self.activations)
        if not isinstance(model.decoder, NativeDecoder):
            options.refuse_given(f"it runs on the {model.runs_on}")
            return
        for name in ("kv_cache_dtype", "activations"):
            asked, loaded = getattr(self, name), getattr(model.decoder, name)
            if asked not in ("auto", loaded):
                raise OptionError(f"{name}={asked!r}, but {model.name} is loaded with {loaded}")
        if self.threads not in (None, model.decoder.num_threads):
            raise OptionError(
                f"threads={self.threads}, but {model.name} is loaded with "
                f"{model.decoder.num_threads}; give it to load_model"
            )


@dataclass(frozen=True, slots=True)
class Setup:
    """An engine with what its callers need to know of it."""

    engine: Engine
    target: LoadedModel
    max_model_len: int


def set_up(
    model: str | Path | LoadedModel,
    speculation: SpeculativeConfig,
    options: EngineOptions,
    extra: List[SpeculativeConfig] = (),
    instruments: Instruments | None = None,
) -> Setup:
    """Build the engine. extra: methods that a request may name instead of the engine's own.

    Raises OptionError or ModelError if something cannot be honoured.
    """
    methods = [speculation, *extra]
    target = options.load(model)
    max_model_len = _context_length(target, options.max_model_len)
    load_draft = options.for_draft().load
    draft_models = [each.drafter.models(each.options, load_draft) for each in methods]
    kv_cache_bytes = options.kv_cache_bytes
    if kv_cache_bytes is None:
        kv_cache_bytes = int(available_bytes(target.decoder.device) * SHARE_OF_FREE_MEMORY)
    num_rows = plan_rows(
        [target, *chain.from_iterable(draft_models)],
        max_num_seqs=options.max_num_seqs,
        max_model_len=max_model_len,
        kv_cache_bytes=kv_cache_bytes,
        drafter_bytes=sum(
            each.drafter.row_bytes(each.options, target, max_model_len) for each in methods
        ),
    )
    cache = target.new_cache(num_rows=num_rows, num_tokens=max_model_len)
    rng = np.random.default_rng()
    runner = Runner(target.decoder, cache)
    context = DraftingContext(
        target=target,
        max_num_seqs=num_rows,
        max_model_len=max_model_len,
        rng=rng,
        runner=runner,
    )
    drafters = {
        each.method: _build(each, replace(context, models=own))
        for each, own in zip(methods, draft_models, strict=True)
    }
    engine = Engine(
        runner,
        drafters,
        target.tokenizer,
        rng=rng,
        lossy=speculation.lossy,
        instruments=instruments,
    )
    return Setup(engine, target, max_model_len)


def _build(method: SpeculativeConfig, context: DraftingContext) -> Drafter:
    drafter = method.drafter(method.options, context)
    _check_capture(drafter, context.target)
    return drafter


def _check_capture(drafter: Drafter, target: LoadedModel) -> None:
    layers = target.decoder.capturable
    missing = sorted(set(drafter.capture) - set(layers))
    if missing:
        raise ModelError(
            f"method {drafter.method_name()!r} needs the output of layer {missing[0]} of "
            f"{target.name}, which gives those of layers {layers.start} to {layers.stop - 1} "
            f"({target.runs_on})"
        )


def _context_length(target: LoadedModel, asked: int | None) -> int:
    limit = target.max_len
    if asked is None:
        return min(limit, DEFAULT_MAX_MODEL_LEN)
    if asked > limit:
        raise OptionError(
            f"max_model_len={asked} is beyond what {target.name} was made for ({limit} positions)"
        )
    return asked
