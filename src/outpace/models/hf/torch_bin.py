"""PyTorch's `.bin` weight files, read as data.

A `.bin` file is a pickle: a program that builds Python objects. `torch.load(weights_only=True)`
interprets it with a short list of allowed constructors and calls nothing else, and here only plain
dense tensors under string names come out of it.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outpace.errors import ModelError
from outpace.models.hf.tensor_files import TensorFiles, first_bytes, sampled_rows, tensor_homes

if TYPE_CHECKING:
    import torch

_FORBIDDEN_GLOBAL = re.compile(r"GLOBAL ([\w.]+)")
_CONVERT = (
    "convert the model to safetensors (save_pretrained of a recent transformers), on a machine "
    "that may run the file"
)


class TorchBinFiles(TensorFiles):
    """Tensors of pickled PyTorch files. Their data is mapped, not read, where the format allows.

    homes: tensor name -> name of the file that holds it.
    """

    def __init__(self, path: Path, files: list[str]) -> None:
        self.path = path
        self._tensors = {file: _state_dict(path / file) for file in files}
        self.homes = tensor_homes(path, self._tensors)

    def names(self) -> set[str]:
        return set(self.homes)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._of(name).shape)

    def dtype(self, name: str) -> str:
        return str(self._of(name).dtype).removeprefix("torch.")

    def load(self, name: str) -> torch.Tensor:
        return self._of(name).contiguous()

    def samples(self, name: str) -> Iterator[bytes]:
        tensor = self._of(name)
        if tensor.ndim == 0 or tensor.numel() == 0:
            return
        for row in sampled_rows(tensor.shape[0]):
            yield first_bytes(tensor[row : row + 1])

    def files(self) -> list[Path]:
        return [self.path / file for file in self._tensors]

    def _of(self, name: str) -> torch.Tensor:
        if name not in self.homes:
            raise self.lacks(name)
        return self._tensors[self.homes[name]][name]


def _state_dict(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of one file, checked: plain, dense, and inside their storage."""
    values = _unpickled(path)
    if isinstance(values, dict) and set(values) == {"state_dict"}:
        values = values["state_dict"]
    if not isinstance(values, dict) or not values:
        raise ModelError(
            f"{path}: must hold a flat dictionary of tensors, found {_described(values)}"
        )
    tensors: dict[str, torch.Tensor] = {}
    for name, value in values.items():
        if not isinstance(name, str):
            raise ModelError(f"{path}: tensor names must be strings, found {name!r:.80}")
        reason = _not_plain(value)
        if reason:
            raise ModelError(f"{path}: {name} is not a plain tensor ({reason})")
        tensors[name] = value.detach()
    _check_size(path, tensors)
    return tensors


def _unpickled(path: Path) -> Any:
    import torch

    try:
        with path.open("rb") as file:
            is_zip = file.read(2) == b"PK"
        if is_zip:
            _refuse_compression(path)
        return torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    except ModelError:
        raise
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror or error})") from None
    # The bytes are a program for a small interpreter: a damaged one may fail in any way it likes.
    except Exception as error:
        found = _FORBIDDEN_GLOBAL.search(str(error))
        if found:
            raise ModelError(
                f"{path}: the file wants to call {found[1]}, which plain weights do not need; it "
                f"was not run. If you trust the file, {_CONVERT}"
            ) from None
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelError(f"{path}: damaged PyTorch file, or not one ({reason:.200})") from None


def _refuse_compression(path: Path) -> None:
    """Mapped data is taken as it lies in the archive, so it must lie there uncompressed."""
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if member.compress_type != zipfile.ZIP_STORED:
                raise ModelError(f"{path}: {member.filename} is compressed; {_CONVERT}")


def _not_plain(value: Any) -> str:
    """Why a value is no plain tensor; empty if it is one."""
    import torch

    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        return f"found {_described(value)}"
    if value.layout != torch.strided or value.is_quantized:
        return "sparse or quantised"
    if value.device.type != "cpu":
        return f"its data is on {value.device.type}"
    if value.is_conj() or value.is_neg():
        return "a lazy view"
    if value.numel() * value.element_size() > value.untyped_storage().nbytes():
        return "larger than its data"
    return ""


def _check_size(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Refuse storages that add up to more than the file: their content would be made up."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in tensors.values()}
    claimed = sum(storage.nbytes() for storage in storages.values())
    if claimed > path.stat().st_size:
        raise ModelError(f"{path}: damaged: it claims {claimed} bytes of tensors and is smaller")


def _described(value: Any) -> str:
    if isinstance(value, dict):
        listed = ", ".join(f"{key!r:.40}" for key in list(value)[:5])
        return f"a dictionary with the entries {listed}" if value else "an empty dictionary"
    return type(value).__name__
