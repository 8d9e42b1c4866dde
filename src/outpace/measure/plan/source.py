"""What a model is, by its configuration alone: no weights are loaded, from a hub none fetched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outpace.errors import ModelError
from outpace.models.config import ModelConfig, read_json
from outpace.models.hf.config import config_from_hf
from outpace.models.hf.fields import refuse_lora
from outpace.models.hf.quantised import Scheme, read_scheme
from outpace.models.hub import aliases, download, names
from outpace.models.hub.aliases import Progress, expanded
from outpace.models.tensors import check_tensors, expected_shapes

CONFIG = "config.json"
_STATED_DTYPES = ("float32", "bfloat16", "float16")
_USUAL_DTYPE = "bfloat16"


@dataclass(frozen=True, slots=True)
class Stored:
    """How weights are stored, as far as headers and configurations say.

    name: whose, as the user gave it. types: of every tensor of `expected_shapes`, from a GGUF
    file's header. scheme: how `config.json` says that they are quantised. dtype: of all else.
    """

    name: str
    types: Mapping[str, str] = field(default_factory=dict)
    scheme: Scheme | None = None
    dtype: str = _USUAL_DTYPE


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model as its files describe it. fingerprint: of a GGUF file, by which bundled drafts are
    found; None of a configuration alone."""

    config: ModelConfig
    stored: Stored
    fingerprint: str | None = None

    @property
    def name(self) -> str:
        return self.stored.name


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """The content of a `config.json`. label: what messages call it."""

    values: Mapping[str, Any]
    label: str


def read_source(name: str, progress: Progress | None = None) -> ModelSource:
    """The model that a name stands for: an alias (fetched on first use), a GGUF file, a directory
    with `config.json`, a path of such a file alone, or an id on the Hub.

    Raises ModelError, by name, for what loading would refuse too.
    """
    found = open_config(name, progress)
    return found if isinstance(found, ModelSource) else source_of(name, found)


def open_config(name: str, progress: Progress | None = None) -> ModelSource | ConfigFile:
    """A GGUF file read, or the `config.json` that a name stands for; see `read_source`."""
    if name in aliases.ALIASES:
        return _from_gguf(name, names.resolve(name, progress))
    path = expanded(name, "model")
    if name and path.is_dir():
        refuse_lora(path)
        hint = f"a model directory must have {CONFIG}"
        return ConfigFile(read_json(path / CONFIG, hint), str(path))
    if path.is_file():
        if path.suffix.lower() == ".json":
            return ConfigFile(read_json(path, ""), str(path))
        return _from_gguf(name, names.resolve(name))
    hub_name = download.parse(name)
    if hub_name is None:
        return _from_gguf(name, names.resolve(name))  # raises, with what names there are
    if hub_name.file is not None:
        raise ModelError(
            f"{name} is a GGUF file on the Hub, which would be fetched whole to read its header; "
            "give the repository of the original model, or a file on this machine"
        )
    return ConfigFile(read_json(download.fetch_config(hub_name), ""), name)


def source_of(name: str, file: ConfigFile) -> ModelSource:
    """The model that a `config.json` describes. Raises ModelError as `config_from_hf` does."""
    config = config_from_hf(file.values, file.label)
    scheme = read_scheme(file.values, file.label)
    return ModelSource(config, Stored(name, scheme=scheme, dtype=stated_dtype(file.values)))


def _from_gguf(name: str, path: Path) -> ModelSource:
    from outpace.models.gguf.checkpoint import GGUFCheckpoint

    checkpoint = GGUFCheckpoint(path)
    check_tensors(checkpoint)
    types = {tensor: checkpoint.dtype(tensor) for tensor in expected_shapes(checkpoint.config)}
    return ModelSource(checkpoint.config, Stored(name, types), checkpoint.fingerprint())


def stated_dtype(values: Mapping[str, Any]) -> str:
    """What a `config.json` says that its weights are stored in; bfloat16 where it says nothing."""
    inner = values.get("text_config")
    for place in (values, inner if isinstance(inner, Mapping) else {}):
        for key in ("dtype", "torch_dtype"):
            if place.get(key) in _STATED_DTYPES:
                return str(place[key])
    return _USUAL_DTYPE
