"""Engines that make passes, each in a process of its own.

In one process, the threads of one engine would wait or spin while another computes. The clock is
read in the process that computes; only one of them is busy at a time.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing import get_context
from typing import Any, Protocol

from harness.step.results import Engine

# Workers of the engine before may still be spinning in wait for more to do.
_SETTLE_S = 0.005
_HOMES = {
    "native": "harness.step.ours:OurStepper",
    "torch": "harness.step.ours:OurStepper",
    "llama.cpp": "harness.step.llama:LlamaStepper",
    "probe": "harness.step.ours:MemoryReader",
}


@dataclass(frozen=True, slots=True)
class Setup:
    """Which engine to start, in values that can be sent to another process.

    options: for engines of ours, those of `load_model`.
    """

    label: str
    kind: str
    format: str
    path: str
    num_threads: int
    max_tokens: int
    options: Mapping[str, Any] = field(default_factory=dict)


class Stepper(Protocol):
    """What runs in an engine's process."""

    def describe(self) -> Engine: ...

    def prepare(self, contexts: Sequence[Sequence[int]]) -> None:
        """Feed each context; passes come after them. Contexts differ in length."""

    def step(self, context_len: int, num_rows: int) -> None:
        """One pass over the newest token and num_rows - 1 guesses, with logits for all, after
        `context_len` cached tokens, which is forgotten again."""

    def prefill(self, token_ids: Sequence[int]) -> None:
        """Feed the tokens to an empty row, with logits for the last one."""

    def next_token(self, token_ids: Sequence[int]) -> int:
        """The most probable token after these."""


class EngineProcess:
    """A `Stepper` behind a pipe. Errors in the process are raised here.

    Raises BrokenProcessPool if the process ends by itself.
    """

    def __init__(self, setup: Setup, contexts: Sequence[Sequence[int]], closing: ExitStack) -> None:
        self._pool = _one_process(closing)
        self.engine: Engine = self._pool.submit(_open, setup).result()
        self._pool.submit(_call, "prepare", list(contexts)).result()

    def time_step(self, context_len: int, num_rows: int, burst: int) -> float:
        """Median seconds of `burst` passes, after one that is not timed."""
        return float(self._pool.submit(_time_step, context_len, num_rows, burst).result())

    def time_prefill(self, token_ids: Sequence[int]) -> float:
        return float(self._pool.submit(_time_prefill, list(token_ids)).result())

    def next_token(self, token_ids: Sequence[int]) -> int:
        return int(self._pool.submit(_call, "next_token", list(token_ids)).result())


class ProbeProcess:
    """Reads memory with as many threads as the engines have."""

    def __init__(self, num_threads: int, closing: ExitStack) -> None:
        self._pool = _one_process(closing)
        setup = Setup("probe", "probe", "", "", num_threads, 0)
        self.details: str = self._pool.submit(_open, setup).result()

    def bytes_per_s(self) -> float:
        return float(self._pool.submit(_call, "bytes_per_s").result())


def _one_process(closing: ExitStack) -> ProcessPoolExecutor:
    pool = ProcessPoolExecutor(
        max_workers=1, mp_context=get_context("spawn"), initializer=_ignore_interrupts
    )
    closing.callback(pool.shutdown, cancel_futures=True)
    return pool


_running: list[Any] = []


def _ignore_interrupts() -> None:
    # Ctrl-C reaches every process of a terminal; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _open(setup: Setup) -> Any:
    module, _, name = _HOMES[setup.kind].partition(":")
    _running.append(getattr(import_module(module), name)(setup))
    return _running[-1].describe()


def _call(name: str, *arguments: Any) -> Any:
    return getattr(_running[-1], name)(*arguments)


def _time_step(context_len: int, num_rows: int, burst: int) -> float:
    stepper: Stepper = _running[-1]
    time.sleep(_SETTLE_S)
    stepper.step(context_len, num_rows)
    seconds = []
    for _ in range(burst):
        started = time.perf_counter()
        stepper.step(context_len, num_rows)
        seconds.append(time.perf_counter() - started)
    return sorted(seconds)[burst // 2]


def _time_prefill(token_ids: list[int]) -> float:
    time.sleep(_SETTLE_S)
    started = time.perf_counter()
    _running[-1].prefill(token_ids)
    return time.perf_counter() - started
