"""What a benchmark is asked to measure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outpace.errors import OptionError
from outpace.measure.methods import Config

DEFAULT_METHODS: tuple[Config, ...] = (
    {"method": "auto"},
    {"method": "suffix"},
    {"method": "ngram"},
)
"""Measured where no methods are named, with `eagle3` where a head for the model is shipped."""
MOST_TOGETHER = 1024
"""Requests; what is laid out for them must fit into memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """Raises OptionError for values that make no sense.

    methods: configurations as `speculative_config` takes them; plain decoding is always measured.
        Empty: `DEFAULT_METHODS`.
    batches: numbers of requests that are decoded together. prompts: files, see `read_questions`.
    per_column: most prompts of each category. max_prompt_tokens: longer prompts are left out.
    peers: other engines, by name. minutes: nothing is begun that is expected to end later, except
    one prompt of each category. repeats: most rounds over all prompts. seed: of the choice of
    prompts. The rest is as `load_model` takes it.
    """

    model: str
    dtypes: tuple[str, ...] = ("auto",)
    model_impl: str = "auto"
    kv_cache_dtype: str = "auto"
    activations: str = "auto"
    threads: int | None = None
    methods: tuple[Config, ...] = ()
    temperatures: tuple[float, ...] = (0.0, 0.8)
    batches: tuple[int, ...] = (1, 2, 4, 8)
    prompts: tuple[Path, ...]
    per_column: int = 8
    max_tokens: int = 128
    max_prompt_tokens: int = 1000
    peers: tuple[str, ...] = ()
    minutes: float = 5.0
    repeats: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("dtypes", "temperatures", "batches", "prompts"):
            _check_list(name, getattr(self, name))
        for name, least in (
            ("per_column", 1),
            ("max_tokens", 2),
            ("max_prompt_tokens", 1),
            ("repeats", 1),
        ):
            _check_count(name, getattr(self, name), least)
        for batch in self.batches:
            _check_count("batch", batch, 1)
            if batch > MOST_TOGETHER:
                raise OptionError(f"batch must be at most {MOST_TOGETHER}, got {batch}")
        for temperature in self.temperatures:
            _check_number("temperature", temperature)
        _check_number("minutes", self.minutes)


def _check_list(name: str, values: Sequence[Any]) -> None:
    if not values:
        raise OptionError(f"{name} must name at least one")
    twice = [value for value in values if list(values).count(value) > 1]
    if twice:
        raise OptionError(f"{name} names {twice[0]} twice; name it once")


def _check_count(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise OptionError(f"{name} must be a whole number of at least {least}, got {value!r}")


def _check_number(name: str, value: float) -> None:
    if not math.isfinite(value) or value < 0:
        raise OptionError(f"{name} must be a number of at least 0, got {value!r}")
