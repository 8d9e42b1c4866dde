"""`outpace serve`: answer OpenAI's clients over HTTP."""

from __future__ import annotations

import dataclasses
import logging
import traceback
from typing import TYPE_CHECKING, Any, get_type_hints

import click

from outpace.cli.options import (
    build_speculative_config,
    engine_options,
    flag_of,
    help_from_docstring,
    open_llm,
    option_of,
)

if TYPE_CHECKING:
    from outpace import LLM
    from outpace.serving.settings import ServerSettings

# Given more than once, one at a time: settings that hold several.
_REPEATED = {
    "api_keys": "--api-key",
    "allowed_hosts": "--allowed-host",
    "served_model_names": "--served-model-name",
}
KEYS_VARIABLE = "OUTPACE_API_KEY"
REQUEST_METHODS = ("ngram", "suffix", "recycling")
"""Offered to requests unless told otherwise: they need no weights, next to no memory, and no more
of a model than any has."""


def server_options(function: Any) -> Any:
    """Add one option per field of ServerSettings."""
    from outpace.serving.settings import ServerSettings

    help_texts = help_from_docstring(ServerSettings)
    hints = get_type_hints(ServerSettings)
    for field in reversed(dataclasses.fields(ServerSettings)):
        text = help_texts[field.name]
        if field.name == "api_keys":
            option = click.option(
                "--api-key",
                "api_keys",
                multiple=True,
                envvar=KEYS_VARIABLE,
                help=f"{_sentence(text)} May be repeated. {KEYS_VARIABLE} in the environment takes "
                "them too, with spaces between, and keeps them out of the list of processes.",
            )
        else:
            flag = _REPEATED.get(field.name) or flag_of(field.name)
            more = " May be repeated." if field.name in _REPEATED else ""
            shown = "" if field.default == () else field.default
            option = option_of(field.name, flag, hints[field.name], text + more)(shown)
        function = option(function)
    return function


class WithoutTexts(logging.Formatter):
    """Shows where an error came from and its class. Its message may quote what a user wrote."""

    def formatException(self, ei: Any) -> str:  # noqa: N802
        kind, _, where = ei
        return "".join(traceback.format_tb(where)) + (kind.__name__ if kind else "")


def _set_up_logging() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(WithoutTexts("%(asctime)s %(levelname)s: %(message)s"))
    logging.basicConfig(handlers=[handler])


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


@click.command()
@server_options
@click.option(
    "--max-num-seqs",
    type=click.IntRange(min=1),
    default=8,
    show_default=True,
    help="Most answers decoded together; fewer if their caches do not fit in memory.",
)
@click.option(
    "--request-method",
    "request_methods",
    multiple=True,
    metavar="NAME",
    help="A drafting method that a request may name besides the server's own; may be repeated, and "
    f"'none' offers no other.  [default: {', '.join(REQUEST_METHODS)}]",
)
@engine_options
def serve(**values: Any) -> None:
    """Answer OpenAI's clients over HTTP, and show a page at /.

    The model is loaded first, then the port opens and the URL is printed. SIGTERM or Ctrl-C ends
    gracefully, a second one at once.
    """
    settings = build_settings(values)

    from outpace.serving.run import end_process, open_socket, run_server

    _set_up_logging()
    # Before the model is loaded, which takes long: the port may be taken.
    with open_socket(settings) as sock, _open(values) as llm:
        name = (*settings.served_model_names, llm.model_name)[0]
        ended = run_server(
            llm, settings, sock, on_ready=lambda url: click.echo(f"{name} is served at {url}")
        )
    if not ended:
        end_process()


def _open(values: dict[str, Any]) -> LLM:
    """The engine, with the methods that requests may choose from."""
    from outpace.engine.speculative_config import parse_speculative_config

    own = parse_speculative_config(build_speculative_config(values)).method
    named = [name for name in values["request_methods"] if name != "none"]
    if not values["request_methods"]:
        named = [name for name in REQUEST_METHODS if name != own]
    return open_llm(values, request_methods=named)


def build_settings(values: dict[str, Any]) -> ServerSettings:
    """The settings that the options give; raises OptionError for those that make no sense."""
    from outpace.serving.settings import ServerSettings

    given = {field.name: values[field.name] for field in dataclasses.fields(ServerSettings)}
    return ServerSettings(**{name: value for name, value in given.items() if value is not None})
