"""Hugging Face transformers on the same weights, prompts and threads, in a process of its own.

In one process, the OpenMP workers of one engine would change how those of the other wait. The
clock is read in the process that decodes.
"""

from __future__ import annotations

import io
import signal
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, redirect_stderr
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from multiprocessing import get_context
from typing import Any

import torch

from outpace import SamplingParams
from outpace.measure.timing import Stopwatch, Timing
from outpace.models.hub import names
from outpace.models.load import LoadedModel

LOOKUP_CANDIDATES = (2, 4, 8)
"""Draft lengths tried for prompt lookup; the fastest on a few of the prompts is used."""


@dataclass(frozen=True, slots=True)
class _Decoding:
    """How to decode, in values that can be sent to another process.

    options: passed on to `generate`. assistant: a smaller model for assisted generation.
    """

    model: str
    dtype: str
    device: str
    end_token_ids: tuple[int, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    assistant: str | None = None
    num_assistant_tokens: int = 0


class TransformersMethod:
    """`generate` of transformers, greedy, batch 1, in the process behind `pool`."""

    def __init__(self, name: str, pool: ProcessPoolExecutor, decoding: _Decoding) -> None:
        self.name = name
        self._pool = pool
        self._decoding = decoding

    def generate(self, prompt: Sequence[int], params: SamplingParams) -> Timing:
        assert params.is_greedy, "its random numbers are not ours: only greedy is comparable"
        future = self._pool.submit(_generate, self._decoding, list(prompt), params.max_tokens)
        return future.result()


def transformers_methods(
    name: str,
    loaded: LoadedModel,
    *,
    tuning_prompts: Sequence[Sequence[int]],
    tuning_params: SamplingParams,
    draft_model: str | None,
    num_draft_tokens: int,
    closing: ExitStack,
) -> list[TransformersMethod]:
    """Plain decoding, prompt lookup with the length that is fastest on the tuning prompts, and,
    given a draft model, assisted decoding. Raises whatever keeps transformers from running."""
    pool = closing.enter_context(
        ProcessPoolExecutor(
            max_workers=1,
            mp_context=get_context("spawn"),
            initializer=_initialise,
            initargs=(torch.get_num_threads(),),
        )
    )

    def method(label: str, **values: Any) -> TransformersMethod:
        ends = tuple(sorted(loaded.tokenizer.end_token_ids))
        device = str(loaded.decoder.device)
        decoding = _Decoding(name, loaded.dtype, device, ends, **values)
        return TransformersMethod(f"transformers {label}", pool, decoding)

    lookups = [
        method(f"prompt lookup K={k}", options={"prompt_lookup_num_tokens": k})
        for k in LOOKUP_CANDIDATES
    ]
    methods = [method("plain"), _fastest(lookups, tuning_prompts, tuning_params)]
    if draft_model is not None:
        label = f"assisted K={num_draft_tokens}"
        methods.append(method(label, assistant=draft_model, num_assistant_tokens=num_draft_tokens))
    return methods


def _fastest(
    methods: Sequence[TransformersMethod],
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
) -> TransformersMethod:
    """The method that decodes the prompts in the least time, after a warm-up."""
    methods[0].generate(prompts[0], params)
    seconds = {method.name: 0.0 for method in methods}
    for prompt in prompts:
        for method in methods:
            timing = method.generate(prompt, params)
            seconds[method.name] += timing.total_s - timing.ttft_s
    return min(methods, key=lambda method: seconds[method.name])


def _initialise(num_threads: int) -> None:
    # Ctrl-C reaches every process of a terminal; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(num_threads)


@torch.inference_mode()
def _generate(decoding: _Decoding, prompt: list[int], max_tokens: int | None) -> Timing:
    model = _load(decoding.model, decoding.dtype, decoding.device)
    ends = list(decoding.end_token_ids)
    options = dict(decoding.options)
    if decoding.assistant is not None:
        assistant = _load(decoding.assistant, decoding.dtype, decoding.device)
        settings = assistant.generation_config
        # Its default draft length is a heuristic around 20; here both engines draft alike.
        settings.num_assistant_tokens = decoding.num_assistant_tokens
        settings.num_assistant_tokens_schedule = "constant"
        settings.assistant_confidence_threshold = 0.0
        options["assistant_model"] = assistant
    input_ids = torch.tensor([prompt], device=model.device)
    watch = Stopwatch()
    output = model.generate(
        input_ids,
        attention_mask=torch.ones_like(input_ids),
        do_sample=False,
        max_new_tokens=max_tokens,
        eos_token_id=ends or None,
        pad_token_id=ends[0] if ends else 0,
        streamer=_StepStreamer(watch),
        **options,
    )
    timing = watch.stop()
    assert output[0, len(prompt) :].tolist() == timing.token_ids, "tokens were not streamed"
    return timing


@cache
def _load(name: str, dtype: str, device: str) -> Any:
    """The model as transformers loads it, from the file that `outpace` resolves the name to."""
    transformers: Any = import_module("transformers")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    path = names.resolve(name)
    source: dict[str, Any] = {"pretrained_model_name_or_path": path}
    if path.is_file():
        source = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name}
    # Reading a GGUF file draws a bar of its own, for which there is no switch.
    with redirect_stderr(io.StringIO()):
        model = transformers.AutoModelForCausalLM.from_pretrained(
            **source, dtype=getattr(torch, dtype), local_files_only=True
        )
    return model.to(device).eval()


class _StepStreamer:
    """Notes the tokens of every step; the first call only repeats the prompt."""

    def __init__(self, watch: Stopwatch) -> None:
        self._watch = watch
        self._saw_prompt = False

    def put(self, token_ids: torch.Tensor) -> None:
        if self._saw_prompt:
            self._watch.add(token_ids.reshape(-1).tolist())
        self._saw_prompt = True

    def end(self) -> None:
        """Part of the interface; `generate` returning is the end."""
