"""llama.cpp on the file that is measured: found, or made from it, and started."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from harness.auto.llama import LlamaMethod
from harness.auto.options import Options
from harness.step import llama
from harness.step.engines import EngineProcess, Setup
from harness.step.weights import main_format
from outpace.models.hub import names
from outpace.models.load import LoadedModel
from outpace.native.pool import default_num_threads

# Types of its file for each of our formats.
FILE_TYPES = {
    "bfloat16": ("F16", "BF16"),
    "q4_1": ("Q4_1",),
    "q4_0": ("Q4_0",),
    "q8_0": ("Q8_0",),
}


def llama_methods(
    options: Options,
    loaded: LoadedModel,
    num_tokens: int,
    note: Callable[[str], None],
    closing: ExitStack,
) -> list[LlamaMethod]:
    """Plain decoding by llama.cpp for the loaded format, up to `num_tokens` a request; of what
    cannot be had or run, `note` is told."""
    methods = []
    for type_name in FILE_TYPES.get(loaded.dtype, ()):
        label = f"llama.cpp {type_name} plain"
        # Whatever stops another engine, or its absence, must not stop this benchmark.
        try:
            path = _file(options, loaded.dtype, type_name)
            threads = options.threads or default_num_threads()
            setup = Setup(label, "llama.cpp decoder", loaded.dtype, str(path), threads, num_tokens)
            process = _started(setup, note, closing)
        except Exception as error:
            note(f"{label} was NOT measured: {type(error).__name__}: {error}")
        else:
            methods.append(LlamaMethod(process, sorted(loaded.tokenizer.end_token_ids)))
    return methods


def _file(options: Options, format_name: str, type_name: str) -> Path:
    given = options.files.get(format_name)
    if given is not None:
        return given
    own = names.resolve(options.model)
    if main_format(own) == type_name.lower():
        return own
    return llama.requantise(own, type_name, options.work_dir)


def _started(setup: Setup, note: Callable[[str], None], closing: ExitStack) -> EngineProcess:
    try:
        return _tried(setup, closing)
    except BrokenProcessPool:
        # GCC 12 builds a llama.cpp whose AMX kernels end in an illegal instruction.
        note(f"{setup.label} crashed on repacked weights and was measured without")
        return _tried(replace(setup, options={"repack": False}), closing)


def _tried(setup: Setup, closing: ExitStack) -> EngineProcess:
    """Started, and seen to compute."""
    process = EngineProcess(setup, [], closing)
    process.next_token([1, 1])
    return process
