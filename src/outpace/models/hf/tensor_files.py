"""What every reader of a Hugging Face directory's weights offers: tensors by their stored names."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from outpace.errors import ModelError

if TYPE_CHECKING:
    import torch

FLOAT_DTYPES = ("float64", "float32", "float16", "bfloat16")
_SAMPLE_BYTES = 256


class TensorFiles(ABC):
    """The tensors in one or several files, under the names they are stored by. Read-only.

    Opening reads headers; data is read when a tensor is loaded or sampled.
    shape, dtype, load and samples raise ModelError for a name that is not stored.
    """

    path: Path

    @abstractmethod
    def names(self) -> set[str]:
        """Names of all tensors."""

    @abstractmethod
    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, without loading it."""

    @abstractmethod
    def dtype(self, name: str) -> str:
        """Type of a tensor as stored: one of FLOAT_DTYPES, or what the format calls it."""

    @abstractmethod
    def load(self, name: str) -> torch.Tensor:
        """The tensor, contiguous, on the CPU. Not to be written to: it may be the mapped file."""

    @abstractmethod
    def samples(self, name: str) -> Iterator[bytes]:
        """Up to 256 stored bytes each from the beginning, middle and end of a tensor."""

    @abstractmethod
    def files(self) -> list[Path]:
        """The files that hold the tensors."""

    def lacks(self, name: str) -> ModelError:
        """The error for a name that is not stored."""
        return ModelError(f"{self.path}: holds no tensor {name}")


def tensor_homes(path: Path, stored: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """Tensor name -> file that holds it, from the names in each file; ModelError if two do."""
    homes: dict[str, str] = {}
    for file, names in stored.items():
        for name in names:
            if name in homes:
                raise ModelError(f"{path}: tensor {name} is in both {homes[name]} and {file}")
            homes[name] = file
    return homes


def sampled_rows(num_rows: int) -> list[int]:
    """The rows that `samples` looks at: first, middle and last."""
    return sorted({0, num_rows // 2, num_rows - 1})


def first_bytes(tensor: torch.Tensor) -> bytes:
    """Up to 256 bytes from the beginning of a tensor's data."""
    import torch

    # A copy has plain strides; a stored tensor of one element may have any.
    values = tensor.clone(memory_format=torch.contiguous_format).view(torch.uint8).flatten()
    return bytes(values[:_SAMPLE_BYTES].tolist())
