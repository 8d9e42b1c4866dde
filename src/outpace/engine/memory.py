"""How much cache the engine may plan for."""

from __future__ import annotations

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
    target: LoadedModel, *, max_num_seqs: int, max_model_len: int, kv_cache_bytes: int
) -> int:
    """How many sequences of full length fit into `kv_cache_bytes`; at most `max_num_seqs`, and at
    most what the model can hold at a time (one, on the adapter for `transformers`: the others
    wait for their turn).

    Raises OptionError with the arithmetic if not even one fits.
    """
    row_bytes = target.kv_bytes(num_rows=1, num_tokens=max_model_len)
    num_rows = min(max_num_seqs, kv_cache_bytes // row_bytes)
    if num_rows < 1:
        token_bytes = target.decoder.kv_bytes(num_rows=1, capacity=1)
        raise OptionError(
            f"one sequence of {max_model_len} tokens needs {row_bytes / 1e9:.2f} GB of cache "
            f"({token_bytes:,} bytes a token over {target.decoder.num_layers} layers), "
            f"{kv_cache_bytes / 1e9:.2f} GB are planned for it; lower max_model_len"
        )
    return min(num_rows, target.decoder.max_rows or num_rows)
