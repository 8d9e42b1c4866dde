"""How many bytes of weights a pass reads."""

from __future__ import annotations

import math
from pathlib import Path

import torch

from outpace.models.config import ModelConfig
from outpace.models.gguf.file import GGUFFile
from outpace.models.load import DTYPES
from outpace.models.tensors import expected_shapes


def computed_weight_bytes(config: ModelConfig, dtype: str) -> int:
    """Of every tensor that a pass over one row reads whole, in a float dtype."""
    gathered = set() if config.tie_word_embeddings else {"model.embed_tokens.weight"}
    shapes = expected_shapes(config)
    numbers = sum(math.prod(shape) for name, shape in shapes.items() if name not in gathered)
    itemsize: int = getattr(torch, dtype).itemsize
    return numbers * itemsize


def stored_weight_bytes(path: Path) -> int:
    """Of every tensor that a pass over one row reads whole, as a GGUF file stores it."""
    tensors = GGUFFile(path).tensors
    gathered = {"token_embd.weight"} if "output.weight" in tensors else set()
    return sum(info.nbytes for name, info in tensors.items() if name not in gathered)


def is_packed(format_name: str) -> bool:
    return format_name not in DTYPES
