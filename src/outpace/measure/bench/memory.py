"""The limit that memory sets: what a pass must read, and how fast that can be read here, by how
many threads."""

from __future__ import annotations

import math

import torch

from outpace.models.decoder import Decoder
from outpace.models.load import LoadedModel
from outpace.models.native.decoder import NativeDecoder
from outpace.models.tensors import expected_shapes
from outpace.native.pool import probe_buffer, read_bandwidth


def weights_bytes(loaded: LoadedModel) -> int | None:
    """Bytes of weights that a pass over one row reads whole: all matrices but an embedding that is
    not the head as well. None for models that other code computes."""
    if isinstance(loaded.decoder, NativeDecoder):
        config = loaded.decoder.native_model.config
        matrices = [
            part for each in config.layers for part in (each.qkv, each.o, each.up, each.down)
        ]
        return sum(matrix.data.nbytes for matrix in (*matrices, config.head))
    if not isinstance(loaded.decoder, Decoder):
        return None
    shapes = expected_shapes(loaded.config)
    gathered = set() if loaded.config.tie_word_embeddings else {"model.embed_tokens.weight"}
    numbers = sum(math.prod(shape) for name, shape in shapes.items() if name not in gathered)
    itemsize: int = getattr(torch, loaded.dtype).itemsize
    return numbers * itemsize


def memory_bytes_per_s(loaded: LoadedModel) -> float | None:
    """The rate at which the threads of the native step together read memory; None for models that
    something else computes."""
    if not isinstance(loaded.decoder, NativeDecoder):
        return None
    return read_bandwidth(loaded.decoder.pool, probe_buffer())


def num_threads(loaded: LoadedModel) -> int | None:
    """Threads that compute a pass: the native step's, else torch's; None on a device that has no
    such number."""
    if isinstance(loaded.decoder, NativeDecoder):
        return loaded.decoder.num_threads
    return torch.get_num_threads() if loaded.decoder.device.type == "cpu" else None
