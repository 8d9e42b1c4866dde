"""Which drafting methods are measured, and what tables call them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from outpace.measure.methods import SHAPES, Config, has_shapes, name_of, untrained_methods

ALL = "all"


@dataclass(frozen=True, slots=True)
class Width:
    """A method in one shape with one number of draft tokens, to be compared with others of it."""

    name: str
    method: str
    shape: str
    num_speculative_tokens: int


def own_configs(method: str) -> list[dict[str, Any]]:
    """A method with its own defaults, in every shape it has."""
    if has_shapes(method):
        return [{"method": method, "shape": shape} for shape in SHAPES]
    return [{"method": method}]


def installed_configs() -> list[dict[str, Any]]:
    """Every installed method that needs no other model, with its own defaults."""
    return [config for method in untrained_methods() for config in own_configs(method)]


def asked_configs(methods: Iterable[str]) -> list[dict[str, Any]]:
    """`own_configs` of several methods; ALL stands for all of `installed_configs`."""
    found = []
    for method in methods:
        found += installed_configs() if method == ALL else own_configs(method)
    return found


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
