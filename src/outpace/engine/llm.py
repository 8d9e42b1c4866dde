"""The Python interface: `LLM`, in vLLM's shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as List
from functools import cached_property
from inspect import signature
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from outpace.control.decisions import DecisionLog
from outpace.engine.defaults import check_generation_config, default_sampling_params
from outpace.engine.inputs import Message, Prompt, to_conversations, to_prompts
from outpace.engine.instruments import Instruments
from outpace.engine.loop import EngineLoop
from outpace.engine.metrics import EngineMetrics, EngineState
from outpace.engine.offered import OfferedMethods
from outpace.engine.preparation import Preparation
from outpace.engine.request import RequestGroup
from outpace.engine.setup import EngineOptions, set_up
from outpace.engine.speculative_config import parse_request_methods, parse_speculative_config
from outpace.engine.stream import AsyncStream, Stream
from outpace.errors import OptionError
from outpace.models.load import LoadedModel
from outpace.models.threads import in_own_thread
from outpace.outputs import RequestOutput, SpeculationStats
from outpace.params import SamplingParams, refuse_unknown


class LLM:
    """A model with its engine.

    model: alias, GGUF file, Hugging Face directory, id on the Hugging Face Hub, or a model that is
        loaded already.
    speculative_config: `{"method": ..., "num_speculative_tokens": ..., ...}` with vLLM's keys.
        Without it the method is "auto", which decides by itself how far to draft (docs/auto.md);
        `{"method": "none"}` decodes plainly. `speculative_model` and `num_speculative_tokens` are
        the older shorthand. `"acceptance_method": "typical"` trades exactness for speed, see
        docs/losslessness.md.
    request_methods: further methods, by name or configured like `speculative_config`, which single
        requests may name in its place (`generate(..., speculative={"method": ...})`).
    dtype: "auto", "float32", "bfloat16", "float16", "float64", or "q4_0", "q4_1", "q8_0" for a
        GGUF file that is stored so. "auto": on CPUs a GGUF file's own format where it is one of
        those, else bfloat16; see `load_model`.
    max_model_len: most tokens of prompt and output together (default: the model's limit, at
        most 8192).
    max_num_seqs: most sequences decoded together; fewer if their caches do not fit in memory.
    kv_cache_bytes: memory for key/value caches (default: 80 % of what is free after loading).
    device: "auto", "cpu", "cuda", ...
    model_impl: what computes the model: "native" (the native step, on CPUs), "torch" (our decoder
        in torch), "transformers" (an adapter, slower and one sequence at a time) or "auto" (the
        first of these that can).
    threads: processor threads of the native step (default: one for each physical core); given, it
        is torch's number of threads too.
    kv_cache_dtype: what the native step keeps keys and values in: "float32", "bfloat16" or "auto"
        (float32 with float32 weights, else bfloat16).
    activations: what the native step rounds activations to before they meet packed weights:
        "bfloat16", "int16", "int8" or "auto". This and kv_cache_dtype are the target's; a draft
        model takes "auto".
    generation_config: "auto" takes the sampling parameters that the model's makers advise for
        requests that bring none; "none" does not. See `get_default_sampling_params`.
    progress: called with (bytes done, bytes in all) while a model is downloaded, and while its
        weights are laid out for the native step, which is done once.
    instruments: for measuring; what decides drafts in place of the lossless rules, and what is told
        of every step's time.

    Use as a context manager, or call `close`. Methods may be called from several threads.
    Raises OptionError for options that cannot be honoured and ModelError for unusable models.
    """

    def __init__(
        self,
        model: str | Path | LoadedModel,
        *,
        speculative_config: Mapping[str, Any] | None = None,
        speculative_model: Any = None,
        num_speculative_tokens: int | None = None,
        request_methods: List[Any] = (),
        dtype: str = "auto",
        max_model_len: int | None = None,
        max_num_seqs: int = 8,
        kv_cache_bytes: int | None = None,
        device: str = "auto",
        model_impl: str = "auto",
        threads: int | None = None,
        kv_cache_dtype: str = "auto",
        activations: str = "auto",
        generation_config: str = "auto",
        tensor_parallel_size: int = 1,
        trust_remote_code: bool = False,
        progress: Callable[[int, int], None] | None = None,
        instruments: Instruments | None = None,
        **unsupported: Any,
    ) -> None:
        known = [name for name in signature(LLM).parameters if name != "unsupported"]
        refuse_unknown("LLM option", unsupported, known)
        _refuse_what_we_do_not_do(tensor_parallel_size, trust_remote_code)
        check_generation_config(generation_config)
        options = EngineOptions(
            dtype=dtype,
            device=device,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            kv_cache_bytes=kv_cache_bytes,
            progress=progress,
            model_impl=model_impl,
            threads=threads,
            kv_cache_dtype=kv_cache_dtype,
            activations=activations,
        )
        speculation = parse_speculative_config(
            speculative_config,
            speculative_model=speculative_model,
            num_speculative_tokens=num_speculative_tokens,
        )
        self.method = speculation.method
        extra = parse_request_methods(request_methods, speculation)
        self.methods = OfferedMethods(
            self.method,
            {each.method: each.options.draft_limit for each in (speculation, *extra)},
        )
        self._lossy = speculation.lossy
        self._generation_config = generation_config

        setup = in_own_thread(lambda: set_up(model, speculation, options, extra, instruments))
        if threads is not None:
            torch.set_num_threads(threads)
        self._engine, self._target = setup.engine, setup.target
        self.max_model_len = setup.max_model_len
        self._loop = EngineLoop(self._engine)
        self._preparation = Preparation(
            setup.target, setup.max_model_len, self.methods, lossy=self.lossy
        )

    @property
    def tokenizer(self) -> Any:
        return self._target.tokenizer

    @property
    def model_name(self) -> str:
        return self._target.name

    @property
    def fingerprint(self) -> str:
        """The model's: equal for equal weights and configuration."""
        return self._target.fingerprint

    @property
    def lossy(self) -> str | None:
        """The name of the rule that accepts draft tokens of sampled requests, if it is lossy."""
        return self._lossy.name if self._lossy else None

    @property
    def dtype(self) -> str:
        return self._target.dtype

    @property
    def metrics(self) -> EngineMetrics:
        """Running totals of all steps so far."""
        return self._engine.metrics

    @property
    def speculation(self) -> SpeculationStats:
        """Running totals of all requests so far, those that still run included."""
        return self._engine.speculation

    @property
    def decisions(self) -> DecisionLog | None:
        """What `auto` decided in each of the newest steps, what it expected and what came of it;
        None with a method that decides nothing. Complete while nothing runs."""
        return self._engine.decisions

    def get_default_sampling_params(self) -> SamplingParams:
        """What a request without sampling parameters gets: what the model's makers advise (its
        generation_config.json, or the sampling metadata of its GGUF file), else our defaults.

        Raises ModelError if the advice cannot be used.
        """
        return self._default_sampling_params

    @cached_property
    def _default_sampling_params(self) -> SamplingParams:
        if self._generation_config == "none":
            return SamplingParams()
        return default_sampling_params(self._target.generation_config, self._target.name)

    def generate(
        self,
        prompts: str | Mapping[str, Any] | List[str | Mapping[str, Any]],
        sampling_params: SamplingParams | List[SamplingParams] | None = None,
        *,
        speculative: bool | Mapping[str, Any] = True,
    ) -> list[RequestOutput]:
        """Complete prompts: strings, or `{"prompt_token_ids": [...]}`; one output for each.

        A mapping may also hold a `cache_salt`, a text: requests reuse what is remembered of
        others (cached prompts, a drafter's stores) only among those with the same one. No answer
        depends on it; how soon it comes may.

        sampling_params: one for all, or one per prompt; None takes
        `get_default_sampling_params()`. speculative=False decodes these requests plainly, and
        `{"method": ..., "num_speculative_tokens": ...}` chooses among what this engine has
        (`methods`). All prompts are checked before the first is run.

        With n > 1 an output holds n answers. Unseeded they are independent draws; with a seed,
        answer i is the same whatever n is; greedy ones are all equal. The prompt is fed once.
        """
        return self._run(to_prompts(prompts), sampling_params, speculative)

    def chat(
        self,
        messages: Mapping[str, Any] | List[Message] | List[List[Message]],
        sampling_params: SamplingParams | List[SamplingParams] | None = None,
        *,
        speculative: bool | Mapping[str, Any] = True,
    ) -> list[RequestOutput]:
        """Answer a conversation, or each of several, using the model's chat template.

        A conversation is a list of messages, or `{"messages": [...]}`, which may hold a
        `cache_salt` as in `generate`.
        """
        conversations = to_conversations(messages)
        return self._run(conversations, sampling_params, speculative)

    def stream(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        speculative: bool | Mapping[str, Any] = True,
    ) -> Stream:
        """Generate for one prompt (or conversation), event by event; with n > 1 each event says
        by its index which answer it belongs to."""
        return Stream(self._loop, self.prepare(prompt, sampling_params, speculative=speculative))

    def astream(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        speculative: bool | Mapping[str, Any] = True,
    ) -> AsyncStream:
        """Like `stream`, for `async for`. Closing it, or cancelling its task, cancels the
        request. Must be called with an event loop running."""
        return self.submit(self.prepare(prompt, sampling_params, speculative=speculative))

    def prepare(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        speculative: bool | Mapping[str, Any] = True,
    ) -> RequestGroup:
        """Check one prompt (or conversation) and its parameters without starting anything.

        What takes long before the engine sees a request happens here (tokenising a long prompt,
        compiling a grammar), so a server calls it in a thread of its own, then `submit`.
        """
        params = self._default_sampling_params if sampling_params is None else sampling_params
        return self._preparation.prepare(prompt, params, speculative)

    def submit(self, group: RequestGroup) -> AsyncStream:
        """Start what `prepare` returned, once. Must be called with an event loop running."""
        return AsyncStream(self._loop, group)

    def state(self) -> EngineState:
        """What the engine does at this moment, seen from outside: approximate while it runs."""
        return self._loop.state()

    def close(self) -> None:
        """Cancel what runs and free the engine's thread."""
        self._loop.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _run(
        self,
        prompts: List[Prompt],
        sampling_params: SamplingParams | List[SamplingParams] | None,
        speculative: bool | Mapping[str, Any],
    ) -> list[RequestOutput]:
        if sampling_params is None or isinstance(sampling_params, SamplingParams):
            each = [sampling_params] * len(prompts)
        else:
            if not isinstance(sampling_params, List):
                given = type(sampling_params).__name__
                raise OptionError(f"sampling_params must be SamplingParams or a list, got {given}")
            each = list(sampling_params)
            if len(each) != len(prompts):
                raise OptionError(f"{len(prompts)} prompts, but {len(each)} sampling_params")
        requests = [
            self.prepare(prompt, params, speculative=speculative)
            for prompt, params in zip(prompts, each, strict=True)
        ]
        streams = [Stream(self._loop, request) for request in requests]
        try:
            return [stream.drain() for stream in streams]
        finally:
            for stream in streams:
                stream.close()


def _refuse_what_we_do_not_do(tensor_parallel_size: int, trust_remote_code: bool) -> None:
    if tensor_parallel_size != 1:
        raise OptionError(
            f"tensor_parallel_size={tensor_parallel_size!r}: this engine runs on one device; "
            "only 1 is possible"
        )
    if trust_remote_code:
        raise OptionError(
            "trust_remote_code=True: models run by this engine's own code only, code shipped "
            "with a checkpoint is never executed; leave it out"
        )
