"""llama.cpp through the low-level interface of llama-cpp-python, and files in its formats."""

from __future__ import annotations

import ctypes
import logging
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib import import_module, metadata
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from harness.step.engines import Setup
from harness.step.results import Engine
from harness.step.weights import stored_weight_bytes
from outpace.models.open import open_checkpoint

PEER = "llama-cpp-python==0.3.36"
INSTALL = (
    "install it into the environment that runs this, built for this processor: "
    f"CMAKE_ARGS=-DGGML_NATIVE=ON pip install --no-binary llama-cpp-python {PEER} "
    "(some 20 minutes of compiling)"
)
# Types of a file's matrices -> the number llama.cpp has for it.
FILE_TYPES = {"F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "BF16": 32}
_NUM_TUNING = {"step": 3, "prefill": 1}
_MAX_OUTPUTS = 64
_UBATCH_LEN = 512
_KV_BYTES = 2  # its default, F16


def load_library() -> Any:
    """The module, silenced. Raises ImportError that says how to install it."""
    try:
        library: Any = import_module("llama_cpp")
    except ImportError as error:
        raise ImportError(f"llama.cpp is not installed ({error}); {INSTALL}") from error
    logging.getLogger("llama-cpp-python").setLevel(logging.ERROR)
    return library


def describe_library() -> dict[str, str]:
    """Version, and the instruction sets that it was built for."""
    info = load_library().llama_print_system_info().decode()
    return {"llama-cpp-python": metadata.version("llama-cpp-python"), "llama.cpp": info}


def requantise(source: Path, type_name: str, folder: Path) -> Path:
    """The model in `source` with its matrices in another type, made once and kept in `folder`.

    What was quantised before is quantised again, which loses twice: fit for timing, not for judging
    quality. Raises ImportError without llama.cpp, RuntimeError where it fails.
    """
    key = open_checkpoint(source).fingerprint()[:12]
    target = folder / f"{source.stem}.{key}.{type_name}.gguf"
    if target.exists():
        return target
    library = load_library()
    folder.mkdir(parents=True, exist_ok=True)
    params = library.llama_model_quantize_default_params()
    params.ftype = FILE_TYPES[type_name]
    params.allow_requantize = True
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        made = Path(temporary) / target.name
        status = library.llama_model_quantize(
            os.fsencode(source), os.fsencode(made), ctypes.byref(params)
        )
        if status != 0:
            raise RuntimeError(f"llama.cpp could not write {source} as {type_name}")
        os.replace(made, target)
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
        self._models = [self._load(repack) for repack in repacking]
        vocab = self._library.llama_model_get_vocab(self._models[0])
        self._vocab_size = self._library.llama_vocab_n_tokens(vocab)
        self._scratch = self._contexts_of(setup.max_tokens)
        self._contexts: dict[int, list[_Context]] = {}
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
            contexts_of_length = self._contexts_of(len(token_ids) + _MAX_OUTPUTS)
            for context in contexts_of_length:
                context.decode(token_ids, 1)
            self._contexts[len(token_ids)] = contexts_of_length

    def step(self, context_len: int, num_rows: int) -> None:
        def run(context: _Context) -> None:
            context.decode(range(1, num_rows + 1), num_rows)
            context.forget(context_len)

        contexts = self._contexts[context_len]
        run(contexts[self._fastest("step", context_len, num_rows, contexts, run)])

    def prefill(self, token_ids: Sequence[int]) -> None:
        def run(context: _Context) -> None:
            context.forget(0)
            context.decode(token_ids, 1)

        run(self._scratch[self._fastest("prefill", 0, len(token_ids), self._scratch, run)])

    def next_token(self, token_ids: Sequence[int]) -> int:
        context = self._scratch[0]
        context.forget(0)
        context.decode(token_ids, 1)
        return context.best(self._vocab_size)

    def _load(self, repack: bool) -> Any:
        params = self._library.llama_model_default_params()
        params.n_gpu_layers = 0
        params.use_extra_bufts = repack
        model = self._library.llama_model_load_from_file(os.fsencode(self._setup.path), params)
        if not model:
            raise RuntimeError(f"llama.cpp could not load {self._setup.path}")
        return model

    def _contexts_of(self, num_tokens: int) -> list[_Context]:
        return [
            _Context(self._library, model, num_tokens, self._setup.num_threads, flash)
            for model in self._models
            for flash in (False, True)
        ]

    def _fastest(
        self,
        kind: str,
        context_len: int,
        num_tokens: int,
        contexts: Sequence[_Context],
        run: Callable[[_Context], None],
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


class _Context:
    """A llama_context for one sequence."""

    def __init__(
        self, library: Any, model: Any, num_tokens: int, num_threads: int, flash: bool
    ) -> None:
        params = library.llama_context_default_params()
        params.n_ctx = num_tokens
        params.n_batch = max(num_tokens, _MAX_OUTPUTS)
        params.n_ubatch = _UBATCH_LEN
        params.n_outputs_max = _MAX_OUTPUTS
        params.n_threads = params.n_threads_batch = num_threads
        params.flash_attn_type = int(flash)
        params.no_perf = True
        self._library = library
        self._pointer = library.llama_init_from_model(model, params)
        if not self._pointer:
            raise RuntimeError(f"llama.cpp could not make a context of {num_tokens} tokens")
        self._memory = library.llama_get_memory(self._pointer)

    def decode(self, token_ids: Sequence[int], num_logits: int) -> None:
        """Feed tokens after those in the cache, with logits for the last `num_logits` of them."""
        count = len(token_ids)
        tokens = (ctypes.c_int32 * count)(*token_ids)
        wanted = (ctypes.c_int8 * count)(*[0] * (count - num_logits), *[1] * num_logits)
        # What is left out means one sequence, at the positions that follow.
        batch = self._library.llama_batch(n_tokens=count, token=tokens, logits=wanted)
        status = self._library.llama_decode(self._pointer, batch)
        if status != 0:
            raise RuntimeError(f"llama_decode of {count} tokens failed with {status}")
        self._library.llama_synchronize(self._pointer)

    def forget(self, start: int) -> None:
        """Drop what was fed from position `start` on."""
        if not self._library.llama_memory_seq_rm(self._memory, 0, start, -1):
            raise RuntimeError("llama.cpp could not roll its cache back")

    def best(self, vocab_size: int) -> int:
        logits = self._library.llama_get_logits_ith(self._pointer, -1)
        return int(np.ctypeslib.as_array(logits, shape=(vocab_size,)).argmax())
