"""Which drafting methods are measured, and what tables call them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from outpace.drafters import available_methods, options_of
from outpace.engine.speculative_config import parse_speculative_config

ALL = "all"
SHAPES = ("chain", "tree")
Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Width:
    """A method in one shape with one number of draft tokens, to be compared with others of it."""

    name: str
    method: str
    shape: str
    num_speculative_tokens: int


def needs_model(method: str) -> bool:
    """Whether a method drafts with weights of its own, which somebody has to name or to train."""
    return any(
        field.name == "model" and not field.metadata.get("optional", False)
        for field in fields(options_of(method))
    )


def has_shapes(method: str) -> bool:
    """Whether a method drafts chains and trees."""
    return "shape" in _option_names(method)


def own_configs(method: str) -> list[dict[str, Any]]:
    """A method with its own defaults, in every shape it has."""
    if has_shapes(method):
        return [{"method": method, "shape": shape} for shape in SHAPES]
    return [{"method": method}]


def installed_configs() -> list[dict[str, Any]]:
    """Every installed method that needs no other model, with its own defaults."""
    methods = [m for m in available_methods() if m != "none" and not needs_model(m)]
    return [config for method in methods for config in own_configs(method)]


def asked_configs(methods: Iterable[str]) -> list[dict[str, Any]]:
    """`own_configs` of several methods; ALL stands for all of `installed_configs`."""
    found = []
    for method in methods:
        found += installed_configs() if method == ALL else own_configs(method)
    return found


def name_of(config: Config) -> str:
    """ "suffix tree K=16", and the other options that were given.

    Raises OptionError for an unknown method or option.
    """
    parsed = parse_speculative_config(config)
    options = {key: value for key, value in config.items() if key not in ("method", "model")}
    options.pop("num_speculative_tokens", None)
    shape = options.pop("shape", None)
    words = [parsed.method, *([shape] if shape else [])]
    words.append(f"K={parsed.options.num_speculative_tokens}")
    return " ".join([*words, *(f"{key}={value}" for key, value in options.items())])


def named(configs: Iterable[Config]) -> dict[str, Config]:
    """Configurations by name, each once."""
    return {name_of(config): config for config in configs}


def width_configs(
    methods: Sequence[str], widths: Sequence[int]
) -> tuple[list[Width], dict[str, Config]]:
    """Every method as chain and as tree with every number of draft tokens.

    Raises OptionError for a method without shapes.
    """
    found: list[Width] = []
    configs: dict[str, Config] = {}
    for method in methods:
        for k in widths:
            for shape in SHAPES:
                config = {"method": method, "shape": shape, "num_speculative_tokens": k}
                name = name_of(config)
                found.append(Width(name, method, shape, k))
                configs[name] = config
    return found, configs


def _option_names(method: str) -> set[str]:
    return {field.name for field in fields(options_of(method))}
