"""Passes by llama.cpp, and files in its formats."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from harness.step.engines import Setup
from harness.step.results import Engine
from harness.step.weights import stored_weight_bytes
from outpace.measure.bench.peers.llama_library import (
    MAX_OUTPUTS,
    Converter,
    LlamaContext,
    load_library,
    load_weights,
)
from outpace.measure.bench.peers.weights import made_path
from outpace.models.open import open_checkpoint

_NUM_TUNING = {"step": 3, "prefill": 1}
_KV_BYTES = 2  # its default, F16


def requantise(source: Path, type_name: str, folder: Path) -> Path:
    """The model in `source` with its matrices in another type, made once and kept in `folder`; see
    `Converter`."""
    target = made_path(source, type_name, folder)
    if not target.exists():
        Converter().convert(str(source), str(target), type_name)
    return target


class LlamaStepper:
    """The fastest of several settings for every kind of pass: flash attention on and off, weights
    repacked for the processor or (its `use_extra_bufts`) as they are in the file.

    options: `repack=False` leaves repacking out.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._library = load_library()
        self._library.llama_backend_init()
        repacking = (True, False) if setup.options.get("repack", True) else (False,)
        self._models = [
            load_weights(self._library, setup.path, repack=repack) for repack in repacking
        ]
        self._scratch = self._contexts_of(setup.max_tokens)
        self._contexts: dict[int, list[LlamaContext]] = {}
        self._choice: dict[tuple[str, int, int], int] = {}

    def describe(self) -> Engine:
        path = Path(self._setup.path)
        config = open_checkpoint(path).config
        kv_values = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
        return Engine(
            label=self._setup.label,
            kind=self._setup.kind,
            format=self._setup.format,
            weight_bytes=stored_weight_bytes(path),
            kv_bytes_per_token=float(_KV_BYTES * kv_values),
            details="best setting of each kind of pass: flash attention on or off, "
            + ("weights repacked or not" if len(self._models) > 1 else "weights not repacked"),
        )

    def prepare(self, contexts: Sequence[Sequence[int]]) -> None:
        for token_ids in contexts:
            contexts_of_length = self._contexts_of(len(token_ids) + MAX_OUTPUTS)
            for context in contexts_of_length:
                context.decode(token_ids, 1)
            self._contexts[len(token_ids)] = contexts_of_length

    def step(self, context_len: int, num_rows: int) -> None:
        def run(context: LlamaContext) -> None:
            context.decode(range(1, num_rows + 1), num_rows)
            context.forget(context_len)

        contexts = self._contexts[context_len]
        run(contexts[self._fastest("step", context_len, num_rows, contexts, run)])

    def prefill(self, token_ids: Sequence[int]) -> None:
        def run(context: LlamaContext) -> None:
            context.forget(0)
            context.decode(token_ids, 1)

        run(self._scratch[self._fastest("prefill", 0, len(token_ids), self._scratch, run)])

    def next_token(self, token_ids: Sequence[int]) -> int:
        context = self._scratch[0]
        context.forget(0)
        context.decode(token_ids, 1)
        return context.best()

    def _contexts_of(self, num_tokens: int) -> list[LlamaContext]:
        return [
            LlamaContext(
                self._library,
                model,
                num_tokens=num_tokens,
                num_threads=self._setup.num_threads,
                flash=flash,
            )
            for model in self._models
            for flash in (False, True)
        ]

    def _fastest(
        self,
        kind: str,
        context_len: int,
        num_tokens: int,
        contexts: Sequence[LlamaContext],
        run: Callable[[LlamaContext], None],
    ) -> int:
        """Index of the fastest context, which are timed in turn when first asked for."""
        place = (kind, context_len, num_tokens)
        if place not in self._choice:
            seconds: list[list[float]] = [[] for _ in contexts]
            for _ in range(1 + _NUM_TUNING[kind]):
                for context, times in zip(contexts, seconds, strict=True):
                    started = time.perf_counter()
                    run(context)
                    times.append(time.perf_counter() - started)
            medians = [median(times[1:]) for times in seconds]
            self._choice[place] = medians.index(min(medians))
        return self._choice[place]
