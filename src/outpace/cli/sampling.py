"""Command-line options for the fields of SamplingParams."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, get_type_hints

import click

from outpace.cli.options import flag_of, help_from_docstring, option_of
from outpace.errors import OptionError
from outpace.params import SamplingParams, StructuredOutputsParams

# Where the command line differs from the library: an answer to read, the same at every run.
DEFAULTS = {"max_tokens": 256, "temperature": 0.0}
# Functions, which only a program can give, and what has options of its own (`structured_options`).
_NOT_DERIVED = ("logits_processors", "structured_outputs")


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


class _TextOrFile(click.ParamType):  # type: ignore[type-arg]
    """A text as it is, or @FILE for what stands in a file. only_file: @FILE alone."""

    def __init__(self, *, only_file: bool = False) -> None:
        self._only_file = only_file
        self.name = "@FILE" if only_file else "TEXT|@FILE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        text = str(value)
        if not text.startswith("@"):
            if self._only_file:
                self.fail(f"{text!r:.80} is not @FILE, a file's name after an @", param, ctx)
            return text
        try:
            return Path(text[1:]).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            return self.fail(f"{text[1:]} cannot be read: {error}", param, ctx)


def structured_options(function: Any) -> Any:
    """Add the options that say what an answer must be a word of; see `structured_outputs`."""
    options = (
        click.option(
            "--json-schema", type=_TextOrFile(), help="A JSON schema that the answer keeps to."
        ),
        click.option(
            "--regex", metavar="TEXT", help="A regular expression that matches the whole answer."
        ),
        click.option(
            "--choice",
            multiple=True,
            metavar="TEXT",
            help="A text that may be the answer; give one option for each.",
        ),
        click.option(
            "--grammar",
            type=_TextOrFile(only_file=True),
            help="A grammar that the answer keeps to, in Lark's syntax or GBNF.",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def structured_outputs(values: dict[str, Any]) -> StructuredOutputsParams | None:
    """From the options of `structured_options`; None if none was given. Raises UsageError for
    several."""
    kinds = {
        "--json-schema": ("json", values["json_schema"]),
        "--regex": ("regex", values["regex"]),
        "--choice": ("choice", values["choice"] or None),
        "--grammar": ("grammar", values["grammar"]),
    }
    given = {flag: pair for flag, pair in kinds.items() if pair[1] is not None}
    if len(given) > 1:
        raise click.UsageError(f"Give one of {' and '.join(given)}.")
    return StructuredOutputsParams.from_dict(dict(given.values())) if given else None


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
    hidden = {*left_out, *_NOT_DERIVED}
    return [field for field in dataclasses.fields(SamplingParams) if field.name not in hidden]


def _without_duplicates(pairs: tuple[tuple[int, float], ...]) -> dict[int, float]:
    bias = dict(pairs)
    if len(bias) < len(pairs):
        raise OptionError("--logit-bias names a token id twice; give each once")
    return bias


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
