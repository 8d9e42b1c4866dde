"""Reading and writing the two files of a draft: `config.json` and `model.safetensors`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outpace.errors import ModelError
from outpace.models.config import read_json

if TYPE_CHECKING:
    from torch import Tensor

CONFIG, WEIGHTS = "config.json", "model.safetensors"


def read_config(directory: Path) -> dict[str, Any]:
    """The content of a draft's `config.json`. Raises ModelError where there is none."""
    if not (directory / CONFIG).is_file():
        raise ModelError(
            f"{directory} is no draft: it holds no {CONFIG}; give the directory that "
            "`outpace train` wrote, or an EAGLE-3 directory in speculators' layout"
        )
    return read_json(directory / CONFIG, "a draft's configuration")


def read_tensors(directory: Path) -> dict[str, Tensor]:
    """All tensors of a draft. Raises ModelError for a missing or damaged file."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = directory / WEIGHTS
    if not path.is_file():
        raise ModelError(f"{directory} holds no {WEIGHTS}; a draft's weights stand in that file")
    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise ModelError(f"{path} is damaged: {error}") from error


def write_draft(directory: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write both files into an existing directory, each whole or not at all."""
    from safetensors.torch import save_file

    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    weights = directory / WEIGHTS
    _write_whole(weights, lambda path: save_file(contiguous, path, metadata={"format": "pt"}))
    text = json.dumps(config, indent=2) + "\n"
    _write_whole(directory / CONFIG, lambda path: path.write_text(text, encoding="utf-8"))


def _write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` make a file beside `path`, which takes its place once it is on the disk."""
    temporary = path.with_name(f".{path.name}.partial")
    try:
        write(temporary)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def check_names(stored: set[str], expected: set[str], directory: Path) -> None:
    """Raise ModelError unless a draft holds exactly the tensors it should."""
    unknown, missing = sorted(stored - expected), sorted(expected - stored)
    if unknown:
        raise ModelError(
            f"{directory}: unknown tensor {unknown[0]} (and {len(unknown) - 1} more); it would "
            "have to be ignored, and then the draft would not be what was trained"
        )
    if missing:
        raise ModelError(f"{directory}: tensor {missing[0]} is missing ({len(missing)} in all)")


def check_shape(name: str, tensor: Tensor, shape: tuple[int, ...], directory: Path) -> None:
    """Raise ModelError unless a tensor has the shape that the configuration says."""
    if tuple(tensor.shape) != shape:
        raise ModelError(
            f"{directory}: {name} is {list(tensor.shape)}, by {CONFIG} it is {list(shape)}"
        )
