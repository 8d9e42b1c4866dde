"""The weight files of a Hugging Face directory: one, or shards listed in an index.

safetensors are taken where they exist; PyTorch's `.bin` files are read otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from outpace.errors import ModelError
from outpace.models.config import read_json
from outpace.models.hf.tensor_files import TensorFiles, first_bytes, sampled_rows, tensor_homes
from outpace.models.hf.torch_bin import TorchBinFiles

if TYPE_CHECKING:
    import torch

SAFETENSORS = "model.safetensors"
SAFETENSORS_INDEX = "model.safetensors.index.json"
BIN = "pytorch_model.bin"
BIN_INDEX = "pytorch_model.bin.index.json"
_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
}


def open_all(path: Path) -> TensorFiles:
    """Open the weight files of a directory.

    Raises ModelError if there are none, one is missing or damaged, the index names a file outside
    the directory or disagrees with the files, or two files hold the same tensor.
    """
    for single, index in ((SAFETENSORS, SAFETENSORS_INDEX), (BIN, BIN_INDEX)):
        if (path / single).is_file():
            return _open(path, [single])
        if (path / index).is_file():
            return _open_shards(path / index)
    for file in sorted(path.glob("*.pth")):
        raise ModelError(
            f"{path}: {file.name} is in the layout of the model's authors, which is not read; "
            "take the model's Hugging Face version, or convert it to that"
        )
    raise ModelError(
        f"{path}: no weights found; expected {SAFETENSORS}, {SAFETENSORS_INDEX}, {BIN} or "
        f"{BIN_INDEX}"
    )


def read_weight_map(index: Path) -> dict[str, str]:
    """Tensor name -> file name, from the index of a sharded checkpoint.

    Raises ModelError for a damaged index and for files outside the index's directory.
    """
    weight_map = read_json(index, "the index of the shards").get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"{index}: weight_map must be an object of tensor and file names")
    for name, file in weight_map.items():
        if not isinstance(file, str):
            raise ModelError(f"{index}: the file of {name:.200} must be a name, got {file!r:.200}")
        parts = PurePosixPath(file.replace("\\", "/"))
        if parts.is_absolute() or ".." in parts.parts or Path(file).is_absolute() or not file:
            raise ModelError(
                f"{index}: {name:.200} lies at {file!r:.200}, outside the model's directory"
            )
    return weight_map


class SafetensorsFiles(TensorFiles):
    """Tensors of safetensors files. The library checks headers: sizes, offsets and overlaps."""

    def __init__(self, path: Path, files: list[str]) -> None:
        self.path = path
        self._readers = {file: _reader(path / file) for file in files}
        stored = {file: list(reader.keys()) for file, reader in self._readers.items()}
        self.homes = tensor_homes(path, stored)

    def names(self) -> set[str]:
        return set(self.homes)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._of(name).get_slice(name).get_shape())

    def dtype(self, name: str) -> str:
        stored: str = self._of(name).get_slice(name).get_dtype()
        return _DTYPES.get(stored, stored)

    def load(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._of(name).get_tensor(name)
        return tensor

    def samples(self, name: str) -> Iterator[bytes]:
        shape = self.shape(name)
        if not shape or 0 in shape:
            return
        rows = self._of(name).get_slice(name)
        for start in sampled_rows(shape[0]):
            yield first_bytes(rows[start : start + 1])

    def files(self) -> list[Path]:
        return [self.path / file for file in self._readers]

    def _of(self, name: str) -> Any:
        """The reader of the file that holds a tensor."""
        if name not in self.homes:
            raise self.lacks(name)
        return self._readers[self.homes[name]]


def _open(path: Path, files: list[str]) -> SafetensorsFiles | TorchBinFiles:
    if files[0].endswith(".safetensors"):
        return SafetensorsFiles(path, files)
    return TorchBinFiles(path, files)


def _open_shards(index: Path) -> TensorFiles:
    weight_map = read_weight_map(index)
    files = sorted(set(weight_map.values()))
    kind = Path(index.name.removesuffix(".index.json")).suffix
    for file in files:
        if not file.endswith(kind):
            raise ModelError(f"{index}: the shard {file:.200} is not a {kind} file")
        if not _is_file(index.parent / file):
            raise ModelError(
                f"{index.parent}: the shard {file:.200} named by {index.name} is missing"
            )
    opened = _open(index.parent, files)
    for name, file in weight_map.items():
        if opened.homes.get(name) != file:
            raise ModelError(f"{index}: says {name:.200} is in {file:.200}, but it is not")
    return opened


def _is_file(path: Path) -> bool:
    """Whether it is there; False for names that no file can have."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _reader(path: Path) -> Any:
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(path, framework="pt", device="cpu")
    except (SafetensorError, ValueError) as error:
        raise ModelError(f"{path}: damaged safetensors file ({error})") from None
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error})") from None
