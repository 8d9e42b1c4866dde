"""A model's weights, configuration and tokenizer on disk, whatever their format.

A checkpoint is a GGUF file (`gguf.checkpoint`) or a Hugging Face directory (`hf.checkpoint`).
Opening one reads headers only; `tensors.check_tensors` then compares every tensor with what the
configuration implies, so that loading can neither miss a weight nor ignore one.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outpace.errors import ModelError
from outpace.models.config import ModelConfig

if TYPE_CHECKING:
    import numpy as np
    import torch
    from jaxtyping import UInt8

    from outpace.models.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Source:
    """The stored tensor that one of ours comes from, and how.

    part: takes the stored tensor and returns ours: a slice of fused projections, a transpose, a
        reordering of rows; None takes it as it is. Also called with tensors on the meta device, to
        learn the shape without reading data, and must raise ModelError for a shape it cannot cut.
    """

    stored: str
    part: Callable[[torch.Tensor], torch.Tensor] | None = None

    def shape(self, stored_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of our tensor, from that of the stored one."""
        if self.part is None:
            return stored_shape
        import torch

        return tuple(self.part(torch.empty(stored_shape, device="meta")).shape)


class Checkpoint(ABC):
    """Weights, configuration and tokenizer of one model. Read-only; tensors are loaded on demand.

    config: shape of the model. path: the file or directory. stored_dtype: the most common type
    of the projection weights as stored ("Q4_1", "float32", "bfloat16", ...).
    """

    config: ModelConfig
    path: Path
    _layout: dict[str, Source]
    _fused: tuple[str, torch.Tensor] | None = None

    def names(self) -> set[str]:
        """Names of all tensors, those of `tensors.expected_shapes` where they are among them; any
        other tensor keeps its stored name."""
        return set(self._layout)

    @abstractmethod
    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, without loading it."""

    @abstractmethod
    def dtype(self, name: str) -> str:
        """Type of a tensor as stored, without loading it."""

    def load(self, name: str) -> torch.Tensor:
        """The tensor in Hugging Face's layout. Not to be written to: it may be the mapped file.

        float32 where it is stored quantised or in a GGUF file, the stored dtype otherwise.
        Raises ModelError for a name the checkpoint lacks.
        """
        source = self._source(name)
        if source.part is None:
            return self._load_stored(source.stored)
        # A fused tensor is read, or dequantised, once, and kept until its last part was asked for.
        if self._fused is None or self._fused[0] != source.stored:
            self._fused = (source.stored, self._load_stored(source.stored))
        tensor = source.part(self._fused[1]).contiguous()
        if name == self._last_parts[source.stored]:
            self._fused = None
        return tensor

    def has_blocks(self, name: str) -> bool:
        """Whether `blocks` can give the rows of this matrix in the block format of its `dtype`."""
        return False

    def blocks(self, name: str) -> UInt8[np.ndarray, "rows nbytes"]:
        """A quantised matrix as it is stored, row by row, in the order of the rows of `load`.

        Not to be written to: it may be the mapped file. Only where `has_blocks` says so.
        """
        raise AssertionError(f"{name} is not stored in blocks: ask has_blocks first")

    @cached_property
    def _last_parts(self) -> dict[str, str]:
        """Stored tensor -> the last of ours that comes from it."""
        return {source.stored: name for name, source in self._layout.items()}

    @abstractmethod
    def _load_stored(self, stored: str) -> torch.Tensor:
        """A tensor as it is stored, by its name there."""

    def stored_name(self, name: str) -> str:
        """What the file calls the tensor that this one is, or is a part of."""
        return self._source(name).stored

    def _source(self, name: str) -> Source:
        """Where a tensor comes from. Raises ModelError for a name the checkpoint lacks."""
        if name not in self._layout:
            raise ModelError(f"{self.path}: holds no tensor {name}")
        return self._layout[name]

    @abstractmethod
    def files(self) -> list[Path]:
        """The files that hold the weights."""

    @cached_property
    @abstractmethod
    def _tokenizer(self) -> Tokenizer: ...

    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer; built on the first call, then kept."""
        return self._tokenizer

    @abstractmethod
    def generation_config(self) -> dict[str, Any]:
        """What the model's makers advise for sampling, as stored: the contents of
        generation_config.json, or the `general.sampling.*` metadata of a GGUF file."""

    @abstractmethod
    def _samples(self, name: str) -> Iterator[bytes]:
        """A few stored bytes from the beginning, middle and end of a tensor."""

    @property
    def stored_dtype(self) -> str:
        kinds = Counter(self.dtype(n) for n in sorted(self.names()) if n.endswith("_proj.weight"))
        return kinds.most_common(1)[0][0] if kinds else "none"

    def fingerprint(self) -> str:
        """Content key of the model (hex SHA-256), in milliseconds rather than a full hash.

        Covers the configuration except its name, and of every tensor its name, type, shape and
        sampled bytes. Equal files have equal keys and retrained or requantised weights other
        ones; a change confined to bytes that are not sampled goes unseen, and the same weights
        stored in another format have another key.
        """
        config = asdict(self.config)
        del config["name"]
        tensors = [
            (n, self.dtype(n), self.shape(n), self._samples(n)) for n in sorted(self.names())
        ]
        return content_key(config, tensors)


def content_key(
    config: Mapping[str, Any],
    tensors: Iterable[tuple[str, str, tuple[int, ...], Iterator[bytes]]],
) -> str:
    """Hex SHA-256 over a configuration and the name, type, shape and samples of every tensor."""
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
    for name, dtype, shape, samples in tensors:
        digest.update(f"\n{name} {dtype} {shape} ".encode())
        for sample in samples:
            digest.update(sample)
    return digest.hexdigest()
