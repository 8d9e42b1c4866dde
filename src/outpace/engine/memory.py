"""How much cache the engine may plan for."""

from __future__ import annotations

from collections.abc import Sequence

import psutil
import torch

from outpace.errors import OptionError
from outpace.models.load import LoadedModel

SHARE_OF_FREE_MEMORY = 0.8


def available_bytes(device: torch.device) -> int:
    """Memory that is free on the device now, in bytes."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free)
    return int(psutil.virtual_memory().available)


def plan_rows(
    models: Sequence[LoadedModel],
    *,
    max_num_seqs: int,
    max_model_len: int,
    kv_cache_bytes: int,
    drafter_bytes: int = 0,
) -> int:
    """How many sequences of full length fit into `kv_cache_bytes` with a cache of each model; at
    most `max_num_seqs`, and at most what the models can hold at a time (one, on the adapter for
    `transformers`: the others wait for their turn).

    models: the target, then those of the drafter, which are used up to their own context.
    drafter_bytes: what the drafter keeps of a sequence besides (`Drafter.row_bytes`).
    Raises OptionError with the arithmetic if not even one fits.
    """
    row_bytes = [
        model.kv_bytes(num_rows=1, num_tokens=min(max_model_len, model.max_len)) for model in models
    ]
    needed = sum(row_bytes) + drafter_bytes
    num_rows = min(max_num_seqs, kv_cache_bytes // needed)
    if num_rows < 1:
        parts = ", ".join(
            f"{size / 1e9:.2f} GB for {model.name} ({model.decoder.num_layers} layers)"
            for model, size in zip(models, row_bytes, strict=True)
        )
        if drafter_bytes:
            parts += f", {drafter_bytes / 1e9:.2f} GB for the drafter"
        raise OptionError(
            f"one sequence of {max_model_len} tokens needs {needed / 1e9:.2f} GB of cache "
            f"({parts}), {kv_cache_bytes / 1e9:.2f} GB are planned for it; lower max_model_len"
        )
    return min([num_rows, *(m.decoder.max_rows for m in models if m.decoder.max_rows)])
