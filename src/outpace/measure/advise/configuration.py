"""The file in which advice is kept, for `outpace generate`, `chat` and `serve` to follow.

{"outpace_config": 1, "model": "smollm2-135m", "fingerprint": "...", "dtype": "q4_1",
 "speculative_config": {"method": "suffix", "num_speculative_tokens": 4}, "advice": {...}}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outpace.errors import ModelError, OptionError
from outpace.files import read_text, write_whole
from outpace.strict_json import without_duplicates

VERSION = 1
_VERSION_KEY = "outpace_config"
_TEXTS = ("model", "fingerprint", "dtype")
_OBJECTS = ("speculative_config", "advice")


@dataclass(frozen=True, slots=True)
class AdvisedConfig:
    """How to run a model.

    model: as `LLM` takes it. fingerprint, dtype: of what was measured. speculative_config: the
    method; {"method": "none"} decodes plainly. advice: why, in numbers; for people, never read.
    """

    model: str
    fingerprint: str
    dtype: str
    speculative_config: Mapping[str, Any]
    advice: Mapping[str, Any] = field(default_factory=dict)

    def check(self, fingerprint: str, name: str, source: str) -> None:
        """Raise ModelError unless the model `name` with this fingerprint is the one measured.

        source: what messages call this configuration.
        """
        if fingerprint != self.fingerprint:
            raise ModelError(
                f"{source} was written for {self.model} with fingerprint {self.fingerprint}, but "
                f"{name} has {fingerprint}: what pays for one model need not for another; run "
                "outpace advise again"
            )


def names_same_model(one: str, other: str) -> bool:
    """Whether two names, or paths however spelled, mean the same model."""
    if one == other:
        return True
    paths = Path(one), Path(other)
    return all(path.exists() for path in paths) and paths[0].resolve() == paths[1].resolve()


def portable_name(model: str) -> str:
    """A model's name as it can be used from any folder."""
    return str(Path(model).resolve()) if Path(model).exists() else model


def write_config(path: Path, config: AdvisedConfig) -> None:
    """Write the file whole or not at all; what was there is replaced. Raises OptionError where that
    is impossible."""
    values = {
        _VERSION_KEY: VERSION,
        **{key: getattr(config, key) for key in _TEXTS},
        **{key: dict(getattr(config, key)) for key in _OBJECTS},
    }
    write_whole(path, json.dumps(values, indent=2, ensure_ascii=False) + "\n")


def read_config(path: Path) -> AdvisedConfig:
    """Read what `write_config` wrote. Raises OptionError naming what is wrong with it."""
    try:
        values = json.loads(read_text(path), object_pairs_hook=without_duplicates)
    except (ValueError, RecursionError) as error:
        if isinstance(error, OptionError):
            raise
        raise OptionError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(values, dict) or _VERSION_KEY not in values:
        raise OptionError(
            f"{path} is no configuration of outpace: it has no {_VERSION_KEY!r}; "
            "outpace advise --write makes one"
        )
    if type(values[_VERSION_KEY]) is not int or values[_VERSION_KEY] != VERSION:
        raise OptionError(
            f"{path}: {_VERSION_KEY} is {values[_VERSION_KEY]!r}; this version reads {VERSION}"
        )
    known = {_VERSION_KEY, *_TEXTS, *_OBJECTS}
    if unknown := sorted(values.keys() - known):
        raise OptionError(f"{path}: unknown key {unknown[0]!r}; known: {', '.join(sorted(known))}")
    if missing := sorted(known - {"advice"} - values.keys()):
        raise OptionError(f"{path}: the key {missing[0]!r} is missing")
    for keys, kind, what in ((_TEXTS, str, "a text"), (_OBJECTS, dict, "an object")):
        for key in keys:
            if not isinstance(values.get(key, kind()), kind):
                raise OptionError(f"{path}: {key} must be {what}, got {values[key]!r:.80}")
    del values[_VERSION_KEY]
    return AdvisedConfig(**values)
