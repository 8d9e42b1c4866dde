"""llama.cpp through the low-level interface of llama-cpp-python."""

from __future__ import annotations

import ctypes
import logging
import os
import tempfile
from collections.abc import Sequence
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import numpy as np

PEER = "llama-cpp-python==0.3.36"
INSTALL = (
    "install it into the environment that runs this, built for this processor: "
    f"CMAKE_ARGS=-DGGML_NATIVE=ON pip install --no-binary llama-cpp-python {PEER} "
    "(some 20 minutes of compiling)"
)
# Types of a file's matrices -> the number llama.cpp has for it.
FILE_TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "BF16": 32}
MAX_OUTPUTS = 64
"""Most positions of one `decode` with logits."""
_UBATCH_LEN = 512


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


class Converter:
    """Writes GGUF files in other types; opened in a worker, where it may crash."""

    def convert(self, source: str, target: str, type_name: str) -> None:
        """The model in the file `source`, its matrices as `type_name`, in `target`.

        What was quantised before is quantised again, which loses twice: fit for timing, not for
        judging quality. Raises ImportError without llama.cpp, RuntimeError where it fails.
        """
        library, place = load_library(), Path(target)
        place.parent.mkdir(parents=True, exist_ok=True)
        params = library.llama_model_quantize_default_params()
        params.ftype = FILE_TYPES[type_name]
        params.allow_requantize = True
        with tempfile.TemporaryDirectory(dir=place.parent) as temporary:
            made = Path(temporary) / place.name
            status = library.llama_model_quantize(
                os.fsencode(source), os.fsencode(made), ctypes.byref(params)
            )
            if status != 0:
                raise RuntimeError(f"llama.cpp could not write {source} as {type_name}")
            os.replace(made, place)


def load_weights(library: Any, path: str | Path, *, repack: bool) -> Any:
    """A llama_model on the CPU. repack: lay weights out for the processor (`use_extra_bufts`)."""
    params = library.llama_model_default_params()
    params.n_gpu_layers = 0
    params.use_extra_bufts = repack
    model = library.llama_model_load_from_file(os.fsencode(path), params)
    if not model:
        raise RuntimeError(f"llama.cpp could not load {path}")
    return model


def vocab_size(library: Any, model: Any) -> int:
    return int(library.llama_vocab_n_tokens(library.llama_model_get_vocab(model)))


class LlamaContext:
    """A llama_context for one sequence of up to `num_tokens` tokens.

    flash: with flash attention.
    """

    def __init__(
        self, library: Any, model: Any, *, num_tokens: int, num_threads: int, flash: bool
    ) -> None:
        params = library.llama_context_default_params()
        params.n_ctx = num_tokens
        params.n_batch = max(num_tokens, MAX_OUTPUTS)
        params.n_ubatch = _UBATCH_LEN
        params.n_outputs_max = MAX_OUTPUTS
        params.n_threads = params.n_threads_batch = num_threads
        params.flash_attn_type = int(flash)
        params.no_perf = True
        self._library = library
        self._vocab_size = vocab_size(library, model)
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

    def best(self, place: int = -1) -> int:
        """The most probable token after one of the last decode's tokens with logits; `place` counts
        from its end, -1 being the last."""
        logits = self._library.llama_get_logits_ith(self._pointer, place)
        return int(np.ctypeslib.as_array(logits, shape=(self._vocab_size,)).argmax())
