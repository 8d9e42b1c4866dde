"""Command-line options for the fields of SamplingParams."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from typing import Any, get_type_hints

import click

from outpace.cli.options import flag_of, help_from_docstring, option_of
from outpace.errors import OptionError
from outpace.params import SamplingParams

# Where the command line differs from the library: an answer to read, the same at every run.
DEFAULTS = {"max_tokens": 256, "temperature": 0.0}
# Functions, which only a program can give.
_PYTHON_ONLY = ("logits_processors",)


class _TokenBias(click.ParamType):  # type: ignore[type-arg]
    """ID=NUMBER, one entry of logit_bias."""

    name = "ID=NUMBER"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        token_id, _, bias = str(value).partition("=")
        try:
            return int(token_id), float(bias)
        except ValueError:
            return self.fail(f"{value!r} is not a token id and a number, like 50=-1.5", param, ctx)


def sampling_options(left_out: Collection[str] = ()) -> Callable[[Any], Any]:
    """Add one option per field of SamplingParams but for those `left_out`."""
    help_texts = help_from_docstring(SamplingParams)
    hints = get_type_hints(SamplingParams)

    def decorate(function: Any) -> Any:
        for field in reversed(_fields(left_out)):
            text = help_texts.get(field.name, "")
            if field.name == "logit_bias":
                option = click.option(
                    "--logit-bias", multiple=True, type=_TokenBias(), help=_sentence(text)
                )
            else:
                default = DEFAULTS.get(field.name, field.default)
                option = option_of(field.name, flag_of(field.name), hints[field.name], text)(
                    default if default not in (None, ()) else ""
                )
            function = option(function)
        return function

    return decorate


def build_sampling(values: dict[str, Any], left_out: Collection[str] = ()) -> SamplingParams:
    """SamplingParams from the options given; raises OptionError for values out of range."""
    given = {
        field.name: values[field.name]
        for field in _fields(left_out)
        if values[field.name] not in (None, ())
    }
    if "logit_bias" in given:
        given["logit_bias"] = _without_duplicates(given["logit_bias"])
    return SamplingParams(**{**DEFAULTS, **given})


def _fields(left_out: Collection[str]) -> list[dataclasses.Field[Any]]:
    hidden = {*left_out, *_PYTHON_ONLY}
    return [field for field in dataclasses.fields(SamplingParams) if field.name not in hidden]


def _without_duplicates(pairs: tuple[tuple[int, float], ...]) -> dict[int, float]:
    bias = dict(pairs)
    if len(bias) < len(pairs):
        raise OptionError("--logit-bias names a token id twice; give each once")
    return bias


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
