"""Which architectures run, and why the others do not."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from outpace.models.config import refuse

_RECURRENT_ARCHITECTURES = frozenset(
    {
        "mamba",
        "mamba2",
        "falcon_mamba",
        "falcon_h1",
        "falcon-h1",
        "jamba",
        "bamba",
        "zamba",
        "zamba2",
        "nemotron_h",
        "granitemoehybrid",
        "granitehybrid",
        "recurrent_gemma",
        "rwkv",
        "rwkv6",
        "rwkv7",
        "qwen3_next",
        "qwen3next",
        "qwen3_5",
        "qwen3_5_text",
        "qwen3_5_moe",
        "qwen35",
        "qwen35moe",
        "lfm2",
        "lfm2_moe",
        "lfm2moe",
        "kimi_linear",
        "kimi-linear",
        "olmo_hybrid",
        "plamo2",
        "minimax",
    }
)
RECURRENT_MARKS = ("mamba", "ssm", "linear_attention", "gated_delta", "gdn", "recurrent", "rwkv")


def check_architecture(architecture: Any, supported: Collection[str], name: str) -> None:
    """Raise ModelError unless the architecture is one of `supported`."""
    if isinstance(architecture, str) and architecture in supported:
        return
    known = ", ".join(supported)
    if not isinstance(architecture, str) or not architecture:
        refuse(name, f"no model architecture is given; supported: {known}")
    if architecture.lower() in _RECURRENT_ARCHITECTURES:
        refuse(
            name,
            f"architecture {architecture!r} has recurrent or hybrid layers, whose state cannot be "
            f"rolled back after a rejected draft; supported: {known}",
        )
    refuse(name, f"architecture {architecture!r} is not supported; supported: {known}")
