"""Raw figures of the step's benchmark, before any averaging."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Engine:
    """What was measured. Engines of one `format` hold the same weights.

    label: unique. kind: "native", "torch" or "llama.cpp". weight_bytes: read by a pass over one
    row. kv_bytes_per_token: of the cache, read by a pass for each cached token. details: how it was
    set up.
    """

    label: str
    kind: str
    format: str
    weight_bytes: int
    kv_bytes_per_token: float
    details: str


@dataclass(slots=True)
class Passes:
    """Seconds of a pass over `num_rows` rows after `context_len` cached tokens, one per round.

    Figures at the same place of two such lists, or of a list of probes, were taken right after
    each other.
    """

    engine: str
    context_len: int
    num_rows: int
    seconds: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Prefills:
    """Seconds of feeding `num_tokens` tokens to an empty cache, one per round."""

    engine: str
    num_tokens: int
    seconds: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Probes:
    """Bytes per second that all threads together read from a buffer larger than any cache.

    Taken before the passes over `num_rows` rows after `context_len` tokens, one per round.
    """

    context_len: int
    num_rows: int
    bytes_per_s: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Results:
    """Filled while measuring. `complete` becomes true at the very end.

    choices: by engine, the most probable token after each of the same few prompts.
    """

    engines: list[Engine] = field(default_factory=list)
    passes: list[Passes] = field(default_factory=list)
    prefills: list[Prefills] = field(default_factory=list)
    probes: list[Probes] = field(default_factory=list)
    choices: dict[str, list[int]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    rounds: int = 0
    elapsed_s: float = 0.0
    complete: bool = False

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Results:
        """What `asdict` and JSON made of results."""
        lists = {"engines": Engine, "passes": Passes, "prefills": Prefills, "probes": Probes}
        rows = {name: [kind(**row) for row in values[name]] for name, kind in lists.items()}
        return cls(**{**values, **rows})
