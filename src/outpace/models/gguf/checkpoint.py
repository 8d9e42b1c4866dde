"""A GGUF file as a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outpace.errors import ModelError
from outpace.models.checkpoint import Checkpoint
from outpace.models.gguf.config import config_from_gguf
from outpace.models.gguf.file import GGUFFile
from outpace.models.gguf.layouts import gguf_layout

if TYPE_CHECKING:
    import numpy as np
    import torch
    from jaxtyping import UInt8

    from outpace.models.tokenizer import Tokenizer

_SAMPLING = "general.sampling."
_SAMPLE_BYTES = 256


class GGUFCheckpoint(Checkpoint):
    """A GGUF file. What llama.cpp's converter fused or reordered is cut out and put back."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = GGUFFile(path)
        metadata = self._file.metadata
        num_parts = metadata.get("split.count", 1)
        if num_parts != 1:
            raise ModelError(
                f"{path}: is one part of a model split into {num_parts} files; join them first "
                "(llama-gguf-split --merge)"
            )
        shapes = {name: info.shape for name, info in self._file.tensors.items()}
        self.config = config_from_gguf(
            metadata, shapes, str(path), lambda name: self._file.load(name).tolist()
        )
        self._layout = gguf_layout(self.config, metadata["general.architecture"], shapes)
        self._shapes: dict[str, tuple[int, ...]] = {}

    def shape(self, name: str) -> tuple[int, ...]:
        source = self._source(name)
        if name not in self._shapes:
            self._shapes[name] = source.shape(self._file.tensors[source.stored].shape)
        return self._shapes[name]

    def dtype(self, name: str) -> str:
        return self._file.tensors[self._source(name).stored].type_name

    def _load_stored(self, stored: str) -> torch.Tensor:
        return self._file.load(stored)

    def has_blocks(self, name: str) -> bool:
        source, shape = self._source(name), self.shape(name)
        info = self._file.tensors[source.stored]
        if len(info.shape) != 2 or len(shape) != 2 or shape[1] != info.shape[1]:
            return False
        # What takes whole rows of values takes whole rows of bytes.
        row_bytes = info.nbytes // info.shape[0]
        return source.shape((info.shape[0], row_bytes)) == (shape[0], row_bytes)

    def blocks(self, name: str) -> UInt8[np.ndarray, "rows nbytes"]:
        import torch

        source = self._source(name)
        rows = self._file.raw(source.stored).reshape(self._file.tensors[source.stored].shape[0], -1)
        if source.part is None:
            return rows
        # A copy: torch warns of memory that it cannot write to.
        return source.part(torch.from_numpy(rows.copy())).contiguous().numpy()

    def files(self) -> list[Path]:
        return [self.path]

    def generation_config(self) -> dict[str, Any]:
        metadata = self._file.metadata
        return {key: value for key, value in metadata.items() if key.startswith(_SAMPLING)}

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        from outpace.models.tokenizer import Tokenizer

        return Tokenizer.from_gguf(self._file.metadata, str(self.path))

    def _samples(self, name: str) -> Iterator[bytes]:
        raw = self._file.raw(self._source(name).stored)
        for start in (0, len(raw) // 2, max(len(raw) - _SAMPLE_BYTES, 0)):
            yield raw[start : start + _SAMPLE_BYTES].tobytes()
