"""Hugging Face transformers: plain decoding, prompt lookup, and assisted generation."""

from __future__ import annotations

import io
from collections.abc import Mapping
from contextlib import ExitStack, redirect_stderr
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outpace.measure.bench.peers.base import LOOKUP_LENGTHS, Peer, PeerError, PeerSubject, fastest
from outpace.measure.bench.peers.process import PeerProcess, ProcessPeer
from outpace.measure.bench.peers.worker import Request, StepClock

if TYPE_CHECKING:
    import torch

LIBRARY = "transformers"
INSTALL = "install outpace[hf], and gguf with it for GGUF files"


def open_methods(subject: PeerSubject, closing: ExitStack) -> list[Peer]:
    """Plain decoding, prompt lookup with the length that is fastest on the tuning prompts, and,
    given a draft model, assisted generation."""
    dtype = float_dtype(subject)
    if dtype != subject.dtype:
        subject.note(
            f"transformers computes no {subject.dtype}: it ran the same weights as {dtype}, "
            "which takes more memory traffic"
        )
    setup = {
        "path": str(subject.path),
        "dtype": dtype,
        "device": subject.device,
        "threads": subject.threads,
        "assistant": None if subject.draft is None else str(subject.draft),
    }
    home = f"{__name__}:TransformersEngine"
    try:
        process = PeerProcess("transformers", home, setup, threads=subject.threads, closing=closing)
    except PeerError as error:
        subject.note(f"transformers was not measured: {error}")
        return []

    def peer(label: str, options: Mapping[str, Any], max_batch: int = 1) -> Peer:
        return ProcessPeer(
            f"transformers {label}",
            process,
            options,
            end_token_ids=subject.end_token_ids,
            max_model_len=subject.max_model_len,
            greedy_only=False,
            max_batch=max_batch,
        )

    lookups = [
        peer(f"prompt lookup K={k}", {"prompt_lookup_num_tokens": k}) for k in LOOKUP_LENGTHS
    ]
    peers = [peer("plain", {}, subject.max_batch)]
    peers += fastest(lookups, subject.tuning_prompts, subject.note)
    if subject.draft is not None:
        k = subject.num_draft_tokens
        peers.append(peer(f"assisted K={k}", {"num_assistant_tokens": k}))
    return peers


def float_dtype(subject: PeerSubject) -> str:
    """What an engine without packed formats holds the weights in: as ours, else what torch's best
    is on the device."""
    import torch

    from outpace.models.load import DTYPES, resolve_dtype

    if subject.dtype in DTYPES:
        return subject.dtype
    return str(resolve_dtype("auto", torch.device(subject.device))).removeprefix("torch.")


def load_as_transformers(path: str, dtype: str) -> Any:
    """A causal language model from a GGUF file or a folder, as transformers loads it."""
    import torch

    transformers: Any = import_module("transformers")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    place = Path(path)
    source: dict[str, Any] = {"pretrained_model_name_or_path": place}
    if place.is_file():
        source = {"pretrained_model_name_or_path": place.parent, "gguf_file": place.name}
    # Reading a GGUF file draws a bar of its own, for which there is no switch.
    with redirect_stderr(io.StringIO()):
        return transformers.AutoModelForCausalLM.from_pretrained(
            **source, dtype=getattr(torch, dtype), local_files_only=True
        )


class TransformersEngine:
    """`generate` of transformers, in the worker.

    options of `generate`: prompt_lookup_num_tokens, or num_assistant_tokens of the assistant; none
    for plain decoding, which alone takes several requests. They must share their sampling.
    """

    def __init__(
        self, *, path: str, dtype: str, device: str, threads: int, assistant: str | None
    ) -> None:
        import torch

        torch.set_num_threads(threads)
        self._model = load_as_transformers(path, dtype).to(device).eval()
        self._assistant = None
        if assistant is not None:
            self._assistant = load_as_transformers(assistant, dtype).to(device).eval()

    def generate(self, requests: list[Request], options: Mapping[str, Any]) -> StepClock:
        import torch

        transformers: Any = import_module("transformers")
        first = requests[0]
        ends = first.end_token_ids
        pad = ends[0] if ends else 0
        settings = transformers.GenerationConfig(
            max_new_tokens=max(request.max_tokens for request in requests),
            eos_token_id=ends or None,
            pad_token_id=pad,
            **_sampling(first),
        )
        # Else what the model's makers advise for sampling is filled in where nothing is set.
        self._model.generation_config = settings
        input_ids, mask = _padded([request.token_ids for request in requests], pad)
        if first.seed is not None:
            torch.manual_seed(first.seed)
        clock = StepClock(requests)
        with torch.inference_mode():
            self._model.generate(
                input_ids.to(self._model.device),
                attention_mask=mask.to(self._model.device),
                generation_config=settings,
                streamer=_StepStreamer(clock, len(requests)),
                **self._drafting(options),
            )
        return clock

    def _drafting(self, options: Mapping[str, Any]) -> dict[str, Any]:
        if "num_assistant_tokens" not in options:
            return dict(options)
        assert self._assistant is not None
        settings = self._assistant.generation_config
        # Its default draft length is a heuristic around 20; here both engines draft alike.
        settings.num_assistant_tokens = options["num_assistant_tokens"]
        settings.num_assistant_tokens_schedule = "constant"
        settings.assistant_confidence_threshold = 0.0
        return {"assistant_model": self._assistant}


def _sampling(request: Request) -> dict[str, Any]:
    if request.is_greedy:
        return {"do_sample": False}
    return {
        "do_sample": True,
        "temperature": request.temperature,
        "top_k": max(0, request.top_k),
        "top_p": request.top_p,
        "min_p": request.min_p or None,
    }


def _padded(prompts: list[list[int]], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids [B, L], shorter prompts padded on the left, and what is no padding."""
    import torch

    longest = max(map(len, prompts))
    ids = [[pad] * (longest - len(prompt)) + prompt for prompt in prompts]
    mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    return torch.tensor(ids), torch.tensor(mask)


class _StepStreamer:
    """Notes the tokens of every step; the first call only repeats the prompts."""

    def __init__(self, clock: StepClock, num_requests: int) -> None:
        self._clock = clock
        self._num_requests = num_requests
        self._saw_prompts = False

    def put(self, token_ids: torch.Tensor) -> None:
        if self._saw_prompts:
            rows = token_ids.reshape(self._num_requests, -1).tolist()
            for index, row in enumerate(rows):
                self._clock.add(index, row)
        self._saw_prompts = True

    def end(self) -> None:
        """Part of the interface; `generate` returning is the end."""
