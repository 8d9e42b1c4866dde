"""From a path to the checkpoint that lies there."""

from __future__ import annotations

from pathlib import Path

from outpace.errors import ModelError
from outpace.models.checkpoint import Checkpoint
from outpace.models.gguf.checkpoint import GGUFCheckpoint
from outpace.models.hf.checkpoint import HFCheckpoint


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a GGUF file or a Hugging Face directory, reading configuration and tensor table.

    Raises ModelError for a path that is neither, a damaged file, or a model that this engine
    does not run.
    """
    path = Path(path)
    if path.is_dir():
        return HFCheckpoint(path)
    if not path.exists():
        raise ModelError(f"{path}: no such file or directory")
    if path.suffix in (".bin", ".pt", ".pth", ".safetensors"):
        raise ModelError(f"{path}: give the directory that holds it with its config.json instead")
    return GGUFCheckpoint(path)
