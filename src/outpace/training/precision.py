"""The precision of products while training."""

from __future__ import annotations

import torch

from outpace.models.load import has_native_bfloat16


def compute_dtype() -> torch.dtype:
    """bfloat16 where the processor has it, else float32: emulated, bfloat16 is far slower."""
    return torch.bfloat16 if has_native_bfloat16(torch.device("cpu")) else torch.float32
