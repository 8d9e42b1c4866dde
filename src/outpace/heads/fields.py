"""Strict reading of a draft's `config.json`: every field checked, none guessed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NoReturn

from outpace.errors import ModelError
from outpace.models.config import is_integer

# Says nothing about what a draft computes.
_PROVENANCE = {"dtype", "torch_dtype", "transformers_version", "_name_or_path"}


class Fields:
    """The fields of one draft. Every method raises ModelError, naming the draft, for what is not as
    it should be."""

    def __init__(self, values: Mapping[str, Any], name: str) -> None:
        self.values = values
        self._name = name

    def refuse(self, reason: str) -> NoReturn:
        raise ModelError(f"{self._name}: {reason}")

    def check_kind(self, model_type: str, what: str) -> None:
        found = self.values.get("model_type")
        if found != model_type:
            self.refuse(f"model_type of {what} is {model_type!r}, got {found!r}")

    def check_known(self, known: Collection[str]) -> None:
        """A field that is null states nothing, and may be any."""
        stated = {key for key, value in self.values.items() if value is not None}
        unknown = sorted(stated - set(known) - _PROVENANCE)
        if unknown:
            self.refuse(f"{unknown[0]!r} is not known and may change what the draft computes")

    def count(self, key: str, *, most: int | None = None, default: int | None = None) -> int:
        """A whole number of at least 1. default: where it is not stated; None: it must be."""
        value: Any = self.values.get(key)
        if value is None:
            value = default
        if not is_integer(value) or value < 1 or (most is not None and value > most):
            limit = "of at least 1" if most is None else f"from 1 to {most}"
            self.refuse(f"{key} must be a whole number {limit}, got {value!r}")
        number: int = value
        return number

    def flag(self, key: str, *, default: bool) -> bool:
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            self.refuse(f"{key} must be true or false, got {value!r}")
        return value

    def positive(self, key: str) -> float:
        value = self.values.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            self.refuse(f"{key} must be a positive number, got {value!r}")
        return float(value)
