"""How many bytes of weights a pass reads, and which format a file is in."""

from __future__ import annotations

import math
from collections import Counter
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


def main_format(path: Path) -> str | None:
    """What most weights of a GGUF file's layers are stored in, in lower case; None for others."""
    if not path.is_file():
        return None
    sizes: Counter[str] = Counter()
    for name, info in GGUFFile(path).tensors.items():
        if name.startswith("blk."):
            sizes[info.type_name.lower()] += math.prod(info.shape)
    return sizes.most_common(1)[0][0] if sizes else None


def is_packed(format_name: str) -> bool:
    return format_name not in DTYPES
