"""OpenVINO GenAI: plain decoding and prompt lookup, through its continuous batching pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from outpace.errors import OutpaceError
from outpace.measure.bench.peers.base import Peer, PeerSubject, plain_and_lookup
from outpace.measure.bench.peers.process import PeerProcess, ProcessPeer
from outpace.measure.bench.peers.weights import GGUF_TYPES, gguf_file
from outpace.measure.bench.peers.worker import Request, StepClock

LIBRARY = "openvino_genai"
INSTALL = "install openvino-genai"
NGRAM_LEN = 3
"""Longest run of tokens that prompt lookup looks for; the value of OpenVINO's own samples."""
_MODEL_FILE = "openvino_model.xml"
_READ_TYPES = ("F16", "Q4_0", "Q4_1", "Q8_0")


def open_methods(subject: PeerSubject, closing: ExitStack) -> list[Peer]:
    """Plain decoding, and prompt lookup with the length that is fastest on the tuning prompts."""
    try:
        path = _path(subject, closing)
        process = PeerProcess(
            "OpenVINO",
            f"{__name__}:OpenVinoEngine",
            {
                "path": str(path),
                "threads": subject.threads,
                "max_model_len": subject.max_model_len,
                "max_batch": subject.max_batch,
            },
            threads=subject.threads,
            closing=closing,
        )
    except OutpaceError as error:
        subject.note(f"OpenVINO was not measured: {error}")
        return []

    def peer(label: str, lookup_len: int) -> Peer:
        return ProcessPeer(
            f"OpenVINO {label}",
            process,
            {"lookup_len": lookup_len},
            end_token_ids=subject.end_token_ids,
            max_model_len=subject.max_model_len,
            greedy_only=lookup_len > 0,
            max_batch=subject.max_batch,
        )

    return plain_and_lookup(subject, peer)


def _path(subject: PeerSubject, closing: ExitStack) -> Path:
    """A folder that OpenVINO exported, or a GGUF file of a type that it reads."""
    if (subject.path / _MODEL_FILE).exists():
        return subject.path
    wanted = [name for name in GGUF_TYPES.get(subject.dtype, ()) if name in _READ_TYPES]
    if not wanted:
        raise OutpaceError(
            f"it reads GGUF files of {', '.join(_READ_TYPES)}, and none of them is {subject.dtype}"
        )
    return gguf_file(subject, wanted[0], closing)


class OpenVinoEngine:
    """A pipeline of OpenVINO GenAI on the CPU, stepped by us, in the worker; one with prompt lookup
    is made when it is first asked for.

    options of `generate`: lookup_len, tokens that prompt lookup drafts; 0 for none.
    """

    def __init__(self, *, path: str, threads: int, max_model_len: int, max_batch: int) -> None:
        self._genai: Any = import_module("openvino_genai")
        self._tensor: Any = import_module("openvino").Tensor
        self._path = path
        self._threads = threads
        self._max_model_len = max_model_len
        self._max_batch = max_batch
        self._pipelines: dict[bool, Any] = {False: self._open(lookup=False)}
        self._num_requests = 0

    def generate(self, requests: list[Request], options: Mapping[str, Any]) -> StepClock:
        lookup_len = int(options["lookup_len"])
        lookup = lookup_len > 0
        if lookup not in self._pipelines:
            self._pipelines[lookup] = self._open(lookup)
        pipeline = self._pipelines[lookup]
        settings = [self._settings(request, lookup_len) for request in requests]
        prompts = [self._tensor(np.array([request.token_ids])) for request in requests]
        clock = StepClock(requests)
        handles = []
        for prompt, setting in zip(prompts, settings, strict=True):
            handles.append(pipeline.add_request(self._num_requests, prompt, setting))
            self._num_requests += 1
        while pipeline.has_non_finished_requests():
            pipeline.step()
            for index, handle in enumerate(handles):
                while handle.can_read():
                    for output in handle.read().values():
                        clock.add(index, list(output.generated_ids))
        return clock

    def _open(self, lookup: bool) -> Any:
        scheduler = self._genai.SchedulerConfig()
        scheduler.max_num_seqs = self._max_batch
        # Prompts in one pass, as ours takes them.
        scheduler.max_num_batched_tokens = self._max_model_len * self._max_batch
        # Every repetition is to compute its prompt again.
        scheduler.enable_prefix_caching = False
        # As much cache as the requests need.
        scheduler.cache_size = 0
        properties: dict[str, Any] = {"INFERENCE_NUM_THREADS": self._threads}
        if lookup:
            properties["prompt_lookup"] = True
        return self._genai.ContinuousBatchingPipeline(self._path, scheduler, "CPU", properties)

    def _settings(self, request: Request, lookup_len: int) -> Any:
        settings = self._genai.GenerationConfig()
        settings.max_new_tokens = request.max_tokens
        settings.apply_chat_template = False
        settings.stop_token_ids = set(request.end_token_ids)
        settings.ignore_eos = not request.end_token_ids
        settings.do_sample = not request.is_greedy
        if not request.is_greedy:
            settings.temperature = request.temperature
            settings.top_p = request.top_p
            settings.min_p = request.min_p
            if request.top_k > 0:
                settings.top_k = request.top_k
            if request.seed is not None:
                settings.rng_seed = request.seed
        if lookup_len:
            settings.num_assistant_tokens = lookup_len
            settings.max_ngram_size = NGRAM_LEN
        return settings
