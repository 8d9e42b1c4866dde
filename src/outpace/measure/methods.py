"""Drafting methods as people write them, "suffix:1-4" or JSON, and what tables call them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from outpace.engine.speculative_config import parse_speculative_config
from outpace.errors import OptionError
from outpace.strict_json import without_duplicates

PLAIN = "plain"
"""What tables call plain decoding."""
SHAPES = ("chain", "tree")
EXAMPLES = "auto, suffix:4, ngram:1-4 or eagle3:8:tree"

MAX_K = 64
"""Most draft tokens at which a range may end."""

Config = Mapping[str, Any]


def parse_methods(text: str) -> list[dict[str, Any]]:
    """Configurations from METHOD, METHOD:K or METHOD:K:SHAPE, several of them separated by commas,
    where K may be a range; or from one JSON object.

    Raises OptionError for what is neither. Whether such methods exist is not asked here: `name_of`
    does.
    """
    if text.lstrip().startswith("{"):
        return [_from_json(text)]
    return [config for part in text.split(",") for config in _from_words(part.strip())]


def _from_json(text: str) -> dict[str, Any]:
    try:
        config = json.loads(text, object_pairs_hook=without_duplicates)
    except (ValueError, RecursionError) as error:
        raise OptionError(f"{text} is not valid JSON: {error}") from error
    assert isinstance(config, dict)
    return config


def _from_words(text: str) -> list[dict[str, Any]]:
    method, *options = text.split(":")
    if not method or len(options) > 2 or options[1:] not in ([], *([shape] for shape in SHAPES)):
        raise OptionError(
            f"{text!r} is no drafting method; write METHOD[:K[:{' or '.join(SHAPES)}]], as in "
            f"{EXAMPLES}"
        )
    shape = {"shape": options[1]} if options[1:] else {}
    if not options:
        return [{"method": method}]
    return [
        {"method": method, "num_speculative_tokens": k, **shape} for k in _lengths(text, options[0])
    ]


def _lengths(text: str, lengths: str) -> range:
    first, _, last = lengths.partition("-")
    try:
        found = range(int(first), int(last or first) + 1)
    except ValueError:
        found = range(0)
    if not found or found[0] < 1:
        raise OptionError(
            f"{text!r}: the number of draft tokens must be at least 1, or a range such as 1-4, "
            f"got {lengths!r}"
        )
    if found[-1] > MAX_K and len(found) > 1:
        raise OptionError(f"{text!r}: a range of draft tokens can go to {MAX_K}, got {lengths!r}")
    return found


def name_of(config: Config) -> str:
    """ "suffix tree K=16", and the other options that were given.

    Raises OptionError for an unknown method or option.
    """
    parsed = parse_speculative_config(config)
    if not parsed.options.draft_limit:
        return PLAIN
    options = {key: value for key, value in config.items() if key not in ("method", "model")}
    options.pop("num_speculative_tokens", None)
    shape = options.pop("shape", None)
    words = [parsed.method, *([shape] if shape else [])]
    words.append(f"K={parsed.options.num_speculative_tokens}")
    return " ".join([*words, *(f"{key}={value}" for key, value in options.items())])


def named(configs: Iterable[Config]) -> dict[str, Config]:
    """Configurations by name, each once."""
    return {name_of(config): config for config in configs}
