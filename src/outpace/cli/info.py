"""`outpace info`: what a bug report or a measurement should say about the machine."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from typing import Any

import click

from outpace import __version__
from outpace.cli.answers import dump_json

LIBRARIES = ("torch", "numpy", "tokenizers", "safetensors", "huggingface_hub", "transformers")


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def info(as_json: bool) -> None:
    """Print versions, processor features and the cache folder."""
    values = collect()
    if as_json:
        click.echo(dump_json(values))
        return
    width = max(map(len, values))
    for name, value in values.items():
        click.echo(f"{name:<{width}}  {'-' if value is None else value}")


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
        "cache_dir": str(cache_dir()),
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
