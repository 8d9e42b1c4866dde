"""A Hugging Face directory as a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outpace.models.checkpoint import Checkpoint
from outpace.models.config import read_json
from outpace.models.hf import shards
from outpace.models.hf.config import config_from_hf
from outpace.models.hf.fields import refuse_lora
from outpace.models.hf.layouts import hf_layout
from outpace.models.hf.quantised import dequantised, read_scheme

if TYPE_CHECKING:
    import torch

    from outpace.models.tokenizer import Tokenizer


class HFCheckpoint(Checkpoint):
    """A Hugging Face directory: config.json and one or several safetensors or `.bin` files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        refuse_lora(path)
        values = read_json(path / "config.json", "a model directory must have config.json")
        self.config = config_from_hf(values, str(path))
        self._stored = dequantised(shards.open_all(path), read_scheme(values, str(path)))
        self._layout = hf_layout(self.config, sorted(self._stored.names()))

    def shape(self, name: str) -> tuple[int, ...]:
        source = self._source(name)
        return source.shape(self._stored.shape(source.stored))

    def dtype(self, name: str) -> str:
        return self._stored.dtype(self._source(name).stored)

    def _load_stored(self, stored: str) -> torch.Tensor:
        return self._stored.load(stored)

    def files(self) -> list[Path]:
        return self._stored.files()

    def generation_config(self) -> dict[str, Any]:
        return read_generation_config(self.path)

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        from outpace.models.tokenizer import Tokenizer

        return Tokenizer.from_directory(self.path)

    def _samples(self, name: str) -> Iterator[bytes]:
        return self._stored.samples(self._source(name).stored)


def read_generation_config(path: Path) -> dict[str, Any]:
    """Contents of a directory's generation_config.json; empty without one."""
    file = path / "generation_config.json"
    return read_json(file, "") if file.exists() else {}
