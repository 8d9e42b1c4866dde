"""`outpace info`: what a bug report or a measurement should say about the machine."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from typing import Any

import click

from outpace import __version__
from outpace.cli.answers import dump_json

# What the processor cannot do on each instruction-set path that a better one could.
LOST = {
    "amx": "nothing",
    "avx512bf16": "AMX tiles: products over many rows, such as prompts, are slower",
    "avx512": "bfloat16 and 8-bit dot products: a pass over several rows costs more",
    "avx2": "AVX-512: a pass over several rows costs more, in every format",
    "portable": "AVX2 and fused multiply-add: every pass costs a multiple",
}
LOST_WITHOUT_NATIVE = (
    "the native step; torch serves: weights are unpacked, a pass over several rows costs more than "
    "one, and speculative text may differ from plain text where rounding decides"
)

LIBRARIES = ("torch", "numpy", "tokenizers", "safetensors", "huggingface_hub", "transformers")


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def info(as_json: bool) -> None:
    """Print versions, processor features, how fast memory is, and the cache folder."""
    values = collect()
    if as_json:
        click.echo(dump_json(values))
        return
    width = max(map(len, values))
    for name, value in values.items():
        click.echo(f"{name:<{width}}  {_spelled(value)}")


def collect() -> dict[str, Any]:
    """Everything `outpace info` prints; None for a library that is not installed."""
    import psutil
    import torch

    from outpace.models.hub.aliases import cache_dir
    from outpace.models.load import has_native_bfloat16

    return {
        "outpace": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        **{name: _version(name) for name in LIBRARIES},
        "cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "torch_threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "bfloat16_in_hardware": has_native_bfloat16(torch.device("cpu")),
        "cuda_devices": torch.cuda.device_count(),
        **native_step(),
        "cache_dir": str(cache_dir()),
    }


def native_step() -> dict[str, Any]:
    """Which instruction-set path runs or why none does, and what memory allows it at best."""
    from outpace.errors import OptionError
    from outpace.native.library import NativeStatus, status
    from outpace.native.pool import ThreadPool, default_num_threads, probe_buffer, read_bandwidth

    try:
        found = status()
    except OptionError as error:  # of the variable that forces a path: the rest is still true
        found = NativeStatus(None, str(error))
    values: dict[str, Any] = {
        "native_path": found.path,
        "native_unavailable": found.reason,
        "native_paths_usable": list(found.usable),
        "native_threads": default_num_threads(),
        "lost": LOST_WITHOUT_NATIVE if found.path is None else LOST[found.path],
        "read_gb_per_s_one_thread": None,
        "read_gb_per_s_all_threads": None,
    }
    if found.path is not None:
        buffer = probe_buffer()
        for name, num_threads in (("one_thread", 1), ("all_threads", None)):
            pool = ThreadPool.shared(num_threads)
            values[f"read_gb_per_s_{name}"] = round(read_bandwidth(pool, buffer) / 1e9, 1)
    return values


def _spelled(value: Any) -> str:
    if value is None or value == []:
        return "-"
    return ", ".join(value) if isinstance(value, list) else str(value)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
