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
    """How many sequences of full length fit into `kv_cache_bytes`; at most `max_num_seqs`.

    Raises OptionError with the arithmetic if not even one fits.
    """
    row_bytes = target.kv_bytes(num_rows=1, num_tokens=max_model_len)
    num_rows = min(max_num_seqs, kv_cache_bytes // row_bytes)
    if num_rows < 1:
        config = target.config
        raise OptionError(
            f"one sequence of {max_model_len} tokens needs {row_bytes / 1e9:.2f} GB of cache "
            f"(2 x {config.num_hidden_layers} layers x {config.num_key_value_heads} KV heads x "
            f"{config.head_dim} x {max_model_len} tokens x {target.decoder.dtype.itemsize} bytes), "
            f"{kv_cache_bytes / 1e9:.2f} GB are planned for it; lower max_model_len"
        )
    return num_rows
