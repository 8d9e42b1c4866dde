"""Which options of a command were given, as against their defaults."""

from __future__ import annotations

import click
from click.core import ParameterSource


def is_given(name: str) -> bool:
    """Whether an option of the running command was given, be it by an environment variable."""
    source = click.get_current_context().get_parameter_source(name)
    return source in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)


def flags_given() -> dict[str, str]:
    """What stands on the command line of the running command: the option's flag by its name."""
    context = click.get_current_context()
    return {
        parameter.name: parameter.opts[0]
        for parameter in context.command.params
        if parameter.name is not None
        and context.get_parameter_source(parameter.name) == ParameterSource.COMMANDLINE
    }
