"""The command line that may settle what `outpace advise` could not."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

if TYPE_CHECKING:
    from outpace.measure.advise.options import AdviseOptions
    from outpace.measure.advise.verdict import Verdict

_REPLACED = ("quick", "minutes", "candidates", "as_json")
_TIMES_LONGER = 3


def next_command(verdict: Verdict, options: AdviseOptions) -> str | None:
    """The options that were given, with more time for the one method in question, or with the same
    time where the machine was busy; None where the verdict is sure."""
    from outpace.measure.advise.options import DEFAULT_MINUTES, MOST_MINUTES
    from outpace.measure.advise.verdict import BUSY, NOT_SURE

    if verdict.kind != NOT_SURE:
        return None
    words = _given()
    if verdict.reason == BUSY:
        minutes = options.minutes
    else:
        minutes = max(DEFAULT_MINUTES, _TIMES_LONGER * options.minutes)
    candidate = None if verdict.candidate is None else _spec(verdict.candidate.config)
    if candidate is not None and verdict.reason != BUSY:
        words += ["--candidates", candidate]
    else:
        words += _given(("candidates",))
    words += ["--minutes", f"{min(minutes, MOST_MINUTES):g}"]
    return shlex.join(["outpace", "advise", *words])


def _given(names: tuple[str, ...] = ()) -> list[str]:
    """The words of these options as far as they were given; of none named, of all that stay."""
    context = click.get_current_context()
    words: list[str] = []
    for parameter in context.command.params:
        name = parameter.name or ""
        is_wanted = name in names if names else name not in _REPLACED
        source = context.get_parameter_source(name)
        if not is_wanted or source is not ParameterSource.COMMANDLINE:
            continue
        value = context.params[name]
        for each in value if isinstance(value, tuple) else (value,):
            words += [max(parameter.opts, key=len), str(each)]
    return words


def _spec(config: object) -> str | None:
    """A configuration as --candidates takes it; None where words cannot say it."""
    assert isinstance(config, dict)
    if config.keys() - {"method", "model", "num_speculative_tokens", "shape"}:
        return None
    words = [config["method"]]
    if "num_speculative_tokens" in config:
        words.append(str(config["num_speculative_tokens"]))
        words += [config["shape"]] if "shape" in config else []
    return ":".join(words)
