"""The safetensors files of a Hugging Face directory: one, or shards listed in an index."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any

from outpace.errors import ModelError
from outpace.models.config import read_json

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
CONVERT_BIN = (
    "PyTorch .bin weights are not supported (they are pickled code); convert the model to "
    "safetensors, for instance with save_pretrained of a recent transformers"
)


def open_all(path: Path) -> dict[str, Any]:
    """Open the weight files of a directory: file name -> safetensors reader.

    Raises ModelError if there are none, one is missing or damaged, or the index names a file
    outside the directory.
    """
    return {file: _open(path / file) for file in _weight_files(path)}


def tensor_homes(path: Path, readers: dict[str, Any]) -> dict[str, str]:
    """Tensor name -> name of the file that holds it.

    Raises ModelError where shards hold a tensor twice or the index disagrees with them.
    """
    homes: dict[str, str] = {}
    for file, reader in readers.items():
        for name in reader.keys():  # noqa: SIM118 (safe_open is no mapping)
            if name in homes:
                raise ModelError(f"{path}: tensor {name} is in both {homes[name]} and {file}")
            homes[name] = file
    if not (path / _SINGLE).exists():
        for name, file in _weight_map(path / _INDEX).items():
            if homes.get(name) != file:
                raise ModelError(f"{path / _INDEX}: says {name} is in {file}, but it is not")
    return homes


def _weight_files(path: Path) -> list[str]:
    if (path / _SINGLE).exists():
        return [_SINGLE]
    if (path / _INDEX).exists():
        files = sorted(set(_weight_map(path / _INDEX).values()))
        for file in files:
            if not (path / file).is_file():
                raise ModelError(f"{path}: the shard {file} named by {_INDEX} is missing")
        return files
    if any(path.glob("*.bin")) or any(path.glob("*.pth")):
        raise ModelError(f"{path}: {CONVERT_BIN}")
    raise ModelError(f"{path}: no weights found; expected {_SINGLE} or {_INDEX}")


def _weight_map(index: Path) -> dict[str, str]:
    weight_map = read_json(index, "the index of the shards").get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"{index}: weight_map must be an object of tensor and file names")
    for name, file in weight_map.items():
        if not isinstance(file, str):
            raise ModelError(f"{index}: the file of {name} must be a name, got {file!r}")
        parts = PurePosixPath(file.replace("\\", "/"))
        if parts.is_absolute() or ".." in parts.parts or Path(file).is_absolute() or not file:
            raise ModelError(f"{index}: {name} lies at {file!r}, outside the model's directory")
    return weight_map


def _open(path: Path) -> Any:
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(path, framework="pt", device="cpu")
    except (SafetensorError, ValueError) as error:
        raise ModelError(f"{path}: damaged safetensors file ({error})") from None
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error})") from None
