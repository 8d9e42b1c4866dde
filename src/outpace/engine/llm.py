"""The Python interface: `LLM`, in vLLM's shape."""

from __future__ import annotations

import itertools
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
from outpace.engine.fold import OutputFold
from outpace.engine.inputs import (
    Message,
    Prompt,
    split_salt,
    to_conversations,
    to_prompts,
    to_token_ids,
)
from outpace.engine.loop import EngineLoop
from outpace.engine.metrics import EngineMetrics
from outpace.engine.parameters import bad_words_ids, check_for_model
from outpace.engine.request import Request, RequestGroup
from outpace.engine.setup import EngineOptions, set_up
from outpace.engine.speculative_config import parse_speculative_config
from outpace.engine.stream import AsyncStream, Stream
from outpace.errors import ContextLengthError, OptionError
from outpace.models.load import LoadedModel
from outpace.models.threads import in_own_thread
from outpace.outputs import RequestOutput
from outpace.params import SamplingParams, refuse_unknown
from outpace.types import Sequence


class LLM:
    """A model with its engine.

    model: alias, GGUF file, Hugging Face directory, id on the Hugging Face Hub, or a model that is
        loaded already.
    speculative_config: `{"method": ..., "num_speculative_tokens": ..., ...}` with vLLM's keys.
        Without it the method is "auto", which decides by itself how far to draft (docs/auto.md);
        `{"method": "none"}` decodes plainly. `speculative_model` and `num_speculative_tokens` are
        the older shorthand. `"acceptance_method": "typical"` trades exactness for speed, see
        docs/losslessness.md.
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
        self._num_speculative_tokens = speculation.options.num_speculative_tokens
        self._lossy = speculation.lossy
        self._generation_config = generation_config

        setup = in_own_thread(lambda: set_up(model, speculation, options))
        if threads is not None:
            torch.set_num_threads(threads)
        self._engine, self._target = setup.engine, setup.target
        self.max_model_len = setup.max_model_len
        self._loop = EngineLoop(self._engine)
        self._ids = itertools.count()

    @property
    def tokenizer(self) -> Any:
        return self._target.tokenizer

    @property
    def model_name(self) -> str:
        return self._target.name

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
        speculative: bool = True,
    ) -> list[RequestOutput]:
        """Complete prompts: strings, or `{"prompt_token_ids": [...]}`; one output for each.

        A mapping may also hold a `cache_salt`, a text: requests reuse what is remembered of
        others (cached prompts, a drafter's stores) only among those with the same one. No answer
        depends on it; how soon it comes may.

        sampling_params: one for all, or one per prompt; None takes
        `get_default_sampling_params()`. speculative=False decodes these requests plainly. All
        prompts are checked before the first is run.

        With n > 1 an output holds n answers. Unseeded they are independent draws; with a seed,
        answer i is the same whatever n is; greedy ones are all equal. The prompt is fed once.
        """
        return self._run(to_prompts(prompts), sampling_params, speculative)

    def chat(
        self,
        messages: Mapping[str, Any] | List[Message] | List[List[Message]],
        sampling_params: SamplingParams | List[SamplingParams] | None = None,
        *,
        speculative: bool = True,
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
        speculative: bool = True,
    ) -> Stream:
        """Generate for one prompt (or conversation), event by event; with n > 1 each event says
        by its index which answer it belongs to."""
        return Stream(self._loop, self._request(prompt, sampling_params, speculative))

    def astream(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        speculative: bool = True,
    ) -> AsyncStream:
        """Like `stream`, for `async for`. Closing it, or cancelling its task, cancels the
        request. Must be called with an event loop running."""
        return AsyncStream(self._loop, self._request(prompt, sampling_params, speculative))

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
        speculative: bool,
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
            self._request(prompt, params, speculative)
            for prompt, params in zip(prompts, each, strict=True)
        ]
        streams = [Stream(self._loop, request) for request in requests]
        try:
            return [stream.drain() for stream in streams]
        finally:
            for stream in streams:
                stream.close()

    def _request(
        self, prompt: Prompt, params: SamplingParams | None, speculative: bool
    ) -> RequestGroup:
        """Check a prompt and its parameters and make requests of them, without starting any."""
        params = self._default_sampling_params if params is None else params
        if not isinstance(params, SamplingParams):
            given = type(params).__name__
            raise OptionError(f"sampling_params must be SamplingParams, got {given}")
        tokenizer, vocab_size = self._target.tokenizer, self._target.decoder.num_logits
        check_for_model(params, tokenizer.end_token_ids, vocab_size)
        salt, prompt = split_salt(prompt)
        text, token_ids = to_token_ids(prompt, tokenizer, vocab_size)
        if len(token_ids) >= self.max_model_len:
            raise ContextLengthError(
                f"the prompt has {len(token_ids)} tokens and leaves no room for an answer in a "
                f"context of {self.max_model_len}; shorten it or raise max_model_len (the model "
                f"allows {self._target.max_len})"
            )
        bad_words = bad_words_ids(params.bad_words, tokenizer)
        requests = [
            self._answer(
                Sequence(
                    seq_id=next(self._ids),
                    tokens=list(token_ids),
                    num_prompt=len(token_ids),
                    params=params,
                    end_token_ids=tokenizer.end_token_ids,
                    choice=choice,
                    bad_words_ids=bad_words,
                    cache_salt=salt,
                ),
                self._num_speculative_tokens if speculative else 0,
            )
            for choice in range(params.n)
        ]
        lossy = self.lossy if speculative and not params.is_greedy else None
        return RequestGroup(str(requests[0].seq.seq_id), text, requests, lossy)

    def _answer(self, seq: Sequence, draft_limit: int) -> Request:
        """The request for one answer; it is finished already if there is nothing to run."""
        params = seq.params
        room = self.max_model_len - seq.num_prompt
        max_new = room if params.max_tokens is None else min(params.max_tokens, room)
        seq.max_len = seq.num_prompt + max_new
        fold = OutputFold(self._target.tokenizer, params, seq.end_token_ids, max(max_new, 1))
        is_scored = params.prompt_logprobs is not None and seq.choice == 0
        if max_new == 0 and not is_scored:
            fold.finish("length")
        return Request(
            seq, fold, max_new, draft_limit, prompt_logprobs=[None] if is_scored else None
        )


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
