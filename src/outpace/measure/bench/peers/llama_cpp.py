"""llama.cpp: greedy plain decoding, and prompt lookup with the drafts of llama-cpp-python.

The loop that verifies the drafts is ours, over the low-level interface: llama-cpp-python's own one
copies the logits of every position of the prompt and has no choice of settings, and would be
slower.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from importlib import import_module
from statistics import median
from typing import Any

import numpy as np

from outpace.errors import OutpaceError
from outpace.measure.bench.peers.base import (
    LOOKUP_LENGTHS,
    Peer,
    PeerError,
    PeerSubject,
    fastest,
    plain_and_lookup,
)
from outpace.measure.bench.peers.llama_library import (
    INSTALL,
    LlamaContext,
    load_library,
    load_weights,
)
from outpace.measure.bench.peers.process import PeerProcess, ProcessPeer
from outpace.measure.bench.peers.weights import GGUF_TYPES, gguf_file
from outpace.measure.bench.peers.worker import SETTLE_S, Request, StepClock

__all__ = ["INSTALL", "LIBRARY", "LlamaEngine", "open_methods"]

LIBRARY = "llama_cpp"
NGRAM_LEN = 2
"""Longest run of tokens that prompt lookup looks for; llama-cpp-python's default."""
NUM_TRIED = 15
"""Passes by which the fastest setting for a number of rows is found."""
PROBE = [1, 1]


def open_methods(subject: PeerSubject, closing: ExitStack) -> list[Peer]:
    """Plain decoding at the fastest of its settings, and prompt lookup with the length that is
    fastest on the tuning prompts. Where files of several types hold the weights as ours does, of
    the type that decodes those prompts fastest; without tuning prompts, of each."""
    if subject.dtype not in GGUF_TYPES:
        subject.note(f"llama.cpp was not measured: it has no format like {subject.dtype}")
    opened: list[tuple[str, PeerProcess]] = []
    for type_name in GGUF_TYPES.get(subject.dtype, ()):
        label = f"llama.cpp {type_name}"
        try:
            opened.append((label, _started(subject, label, type_name, closing)))
        except OutpaceError as error:
            subject.note(f"{label} was not measured: {error}")
    if len(opened) > 1 and subject.tuning_prompts:
        opened = _fastest_file(subject, opened)
    peers = [plain_and_lookup(subject, _ways(subject, *each)) for each in opened]
    return [peer for found in peers for peer in found]


def _fastest_file(
    subject: PeerSubject, opened: list[tuple[str, PeerProcess]]
) -> list[tuple[str, PeerProcess]]:
    """The one whose plain decoding is fastest, alone in a list; the others are closed."""
    plain = [_ways(subject, *each)("plain", 0) for each in opened]
    best = fastest(plain, subject.tuning_prompts, subject.note)
    kept = []
    for (label, process), peer in zip(opened, plain, strict=True):
        if peer not in best:
            process.close()
            continue
        kept.append((label, process))
        tried = " and ".join(label for label, _ in opened)
        subject.note(f"of {tried} the faster one on the first prompts was measured, {label}")
    return kept


def _ways(
    subject: PeerSubject, label: str, process: PeerProcess
) -> Callable[[str, int], ProcessPeer]:
    """Makes peers that decode in the process; see `plain_and_lookup`."""

    def peer(method: str, lookup_len: int) -> ProcessPeer:
        return ProcessPeer(
            f"{label} {method}",
            process,
            {"lookup_len": lookup_len},
            end_token_ids=subject.end_token_ids,
            max_model_len=subject.max_model_len,
            greedy_only=True,
        )

    return peer


def _started(subject: PeerSubject, label: str, type_name: str, closing: ExitStack) -> PeerProcess:
    """A process that was seen to compute."""
    path = gguf_file(subject, type_name, closing)

    def started(repack: bool) -> PeerProcess:
        setup = {
            "path": str(path),
            "threads": subject.threads,
            "max_model_len": subject.max_model_len,
            "repack": repack,
        }
        home = f"{__name__}:LlamaEngine"
        process = PeerProcess(label, home, setup, threads=subject.threads, closing=closing)
        process.call("probe")
        return process

    try:
        return started(repack=True)
    except PeerError as error:
        # GCC 12 builds a llama.cpp whose AMX kernels end in an illegal instruction.
        process = started(repack=False)
        subject.note(f"{label} failed on repacked weights and was measured without: {error}")
        return process


class LlamaEngine:
    """llama.cpp for one request at a time, in the worker. Its settings are flash attention or not,
    and, with `repack`, weights laid out for the processor or as in the file; for every number of
    rows of a pass the one is used that was fastest after the first prompt.

    options of `generate`: lookup_len, most tokens that prompt lookup drafts; 0 for none.
    """

    def __init__(self, *, path: str, threads: int, max_model_len: int, repack: bool) -> None:
        self._library = load_library()
        self._library.llama_backend_init()
        models = [
            load_weights(self._library, path, repack=each)
            for each in ((True, False) if repack else (False,))
        ]
        self._contexts = [
            LlamaContext(
                self._library,
                model,
                # Drafts may reach past the last token that is kept.
                num_tokens=max_model_len + max(LOOKUP_LENGTHS) + 1,
                num_threads=threads,
                flash=flash,
            )
            for model in models
            for flash in (False, True)
        ]
        self._fastest: dict[int, LlamaContext] = {}

    def probe(self) -> list[int]:
        """The most probable token after a few, by every setting: whether they compute at all."""
        return [self._first(context, PROBE) for context in self._contexts]

    def generate(self, requests: list[Request], options: Mapping[str, Any]) -> StepClock:
        (request,) = requests
        lookup_len = int(options["lookup_len"])
        context = self._choose(1 + lookup_len, request.token_ids)
        time.sleep(SETTLE_S)
        clock = StepClock(requests)
        token_ids = list(request.token_ids)
        new = [self._first(context, token_ids)]
        clock.add(0, new)
        while not clock.has_ended(0):
            token_ids += new
            drafts = self._drafts(token_ids, lookup_len)
            context.decode([token_ids[-1], *drafts], 1 + len(drafts))
            new = _verified(context, drafts)
            context.forget(len(token_ids) + len(new) - 1)
            clock.add(0, new)
        return clock

    def _first(self, context: LlamaContext, token_ids: Sequence[int]) -> int:
        context.forget(0)
        context.decode(token_ids, 1)
        return context.best()

    def _drafts(self, token_ids: Sequence[int], lookup_len: int) -> list[int]:
        if not lookup_len:
            return []
        lookup = import_module("llama_cpp.llama_speculative").LlamaPromptLookupDecoding
        drafter = lookup(max_ngram_size=NGRAM_LEN, num_pred_tokens=lookup_len)
        return [int(token) for token in drafter(np.array(token_ids, dtype=np.intc))]

    def _choose(self, num_rows: int, token_ids: Sequence[int]) -> LlamaContext:
        """The fastest setting for passes over so many rows."""
        if num_rows not in self._fastest:
            seconds: list[list[float]] = [[] for _ in self._contexts]
            for context in self._contexts:
                self._first(context, token_ids)
            for _ in range(NUM_TRIED):
                for context, times in zip(self._contexts, seconds, strict=True):
                    # Threads of the context before may still be spinning.
                    time.sleep(SETTLE_S)
                    started = time.perf_counter()
                    context.decode([token_ids[-1]] * num_rows, num_rows)
                    times.append(time.perf_counter() - started)
                    context.forget(len(token_ids))
            medians = [median(times) for times in seconds]
            self._fastest[num_rows] = self._contexts[medians.index(min(medians))]
        return self._fastest[num_rows]


def _verified(context: LlamaContext, drafts: Sequence[int]) -> list[int]:
    """The drafts that greedy decoding agrees with, and its own token after them."""
    new: list[int] = []
    for place, draft in enumerate(drafts):
        best = context.best(place - len(drafts) - 1)
        new.append(best)
        if best != draft:
            return new
    return [*new, context.best()]
