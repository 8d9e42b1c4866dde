"""Which method a draft's directory is for, by its `config.json` alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from outpace.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Mapping

# Methods with a `config.json` of their own, by the fields that name them.
_BY_SPECULATORS_TYPE = {"eagle3": "eagle3", "eagle": "eagle"}
_BY_MODEL_TYPE = {"medusa": "medusa", "outpace_early_exit": "early_exit"}
DRAFT_MODEL = "draft_model"


def detect_kind(directory: str | Path) -> str:
    """The drafting method that a directory holds a draft for: "eagle3", "eagle", "medusa",
    "early_exit", or "draft_model" for a whole model.

    Raises ModelError where there is no `config.json`, or one that is none of these.
    """
    from outpace.heads.files import read_config
    from outpace.models.hf.config import SUPPORTED

    directory = Path(directory)
    values = read_config(directory)
    kind, model_type = head_kind(values, str(directory)), values.get("model_type")
    if kind is not None:
        return kind
    if model_type in SUPPORTED and _has_tokenizer(directory):
        return DRAFT_MODEL
    raise ModelError(
        f"{directory}: its config.json is that of no draft (model_type {model_type!r}); give a "
        "directory that `outpace train` wrote, an EAGLE head in speculators' layout, Medusa heads "
        "in vLLM's, or a small model with its tokenizer"
    )


def head_kind(values: Mapping[str, Any], name: str) -> str | None:
    """The method that a `config.json` describes heads for; None where it is not that of heads.

    Raises ModelError for heads of a kind that is not supported.
    """
    stated, model_type = values.get("speculators_model_type"), values.get("model_type")
    if stated is None:
        return _BY_MODEL_TYPE.get(model_type) if isinstance(model_type, str) else None
    if isinstance(stated, str) and stated in _BY_SPECULATORS_TYPE:
        return _BY_SPECULATORS_TYPE[stated]
    known = ", ".join(_BY_SPECULATORS_TYPE)
    raise ModelError(f"{name}: speculators_model_type is {stated!r}; supported: {known}")


def speculative_config(directory: str | Path, **options: Any) -> Mapping[str, Any]:
    """What `LLM(speculative_config=...)` takes for a draft's directory. options: of its method."""
    return {"method": detect_kind(directory), "model": str(directory), **options}


def _has_tokenizer(directory: Path) -> bool:
    return (directory / "tokenizer.json").is_file()
