"""Reading `config.json` of a Hugging Face model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outpace.models.architectures import check_architecture
from outpace.models.config import ModelConfig, read_json, refuse
from outpace.models.hf.families import FAMILIES
from outpace.models.hf.fields import refuse_features, refuse_own_code, refuse_packaging

SUPPORTED = tuple(FAMILIES)


def needs_adapter(path: Path) -> bool:
    """Whether it is a Hugging Face directory of an architecture that our decoder does not have."""
    if not (path / "config.json").is_file():
        return False
    architecture = read_json(path / "config.json", "").get("model_type")
    return isinstance(architecture, str) and architecture not in SUPPORTED


def config_from_hf(values: Mapping[str, Any], name: str = "") -> ModelConfig:
    """Read the content of a Hugging Face `config.json`.

    Fields that are absent take the value that the model's own class gives them. Raises ModelError
    for anything the decoder does not compute and for bad fields.
    """
    if not isinstance(values, Mapping):
        refuse(name, f"config.json must hold an object, got {type(values).__name__}")
    refuse_packaging(values, name)
    check_architecture(values.get("model_type"), SUPPORTED, name)
    family = FAMILIES[values["model_type"]]
    classes = values.get("architectures")
    if classes is not None and not (isinstance(classes, list) and family.model_class in classes):
        refuse(name, f"architectures must hold {family.model_class!r}, got {classes!r:.200}")
    if not family.had_own_code:
        refuse_own_code(values, name)
    completed = {**family.defaults, **values}
    refuse_features(completed, name)
    return family.read(completed, name)
