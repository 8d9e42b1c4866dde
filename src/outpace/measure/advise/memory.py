"""What a method takes in memory beside its target."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from outpace.engine.speculative_config import parse_speculative_config
from outpace.heads.bundled import bundled_for
from outpace.measure.advise.candidates import AUTO, EAGLE3, Candidate
from outpace.models.load import LoadedModel, load_model

_WEIGHTS = ("*.safetensors", "*.bin", "*.gguf")


@dataclass(frozen=True, slots=True)
class Memory:
    """In bytes. weights: of the draft, as they are stored. per_sequence: what it keeps for each
    request of full length."""

    weights: int
    per_sequence: int


def memory_of(candidate: Candidate, target: LoadedModel, max_model_len: int) -> Memory:
    """What a candidate keeps; `max_model_len` is the length of a sequence."""
    parsed = parse_speculative_config(candidate.config)
    models = parsed.drafter.models(
        parsed.options, lambda model: load_model(model, device=str(target.decoder.device))
    )
    per_sequence = parsed.drafter.row_bytes(parsed.options, target, max_model_len)
    for model in models:
        length = min(max_model_len, model.max_len)
        per_sequence += model.kv_bytes(num_rows=1, num_tokens=length)
    return Memory(_stored_bytes(candidate, target), per_sequence)


def _stored_bytes(candidate: Candidate, target: LoadedModel) -> int:
    from outpace.models.hub.names import resolve

    named = candidate.config.get("model")
    path: Path | None
    if isinstance(named, str) and named != "none":
        path = Path(named) if Path(named).is_dir() else resolve(named)
    elif named is None and candidate.method in (AUTO, EAGLE3):
        path = bundled_for(target.fingerprint, EAGLE3)
    else:
        return 0
    if path is None:
        return 0
    files = [path] if path.is_file() else [file for kind in _WEIGHTS for file in path.glob(kind)]
    return sum(file.stat().st_size for file in files)
