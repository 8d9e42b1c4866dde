"""`outpace trace`: an answer with every step that made it."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from outpace.cli.answers import Prompt, dump_json
from outpace.cli.generate import read_prompt
from outpace.cli.given import is_given
from outpace.cli.interrupts import interrupt_flag
from outpace.cli.options import build_speculative_config, engine_options, flag_of, open_llm
from outpace.cli.sampling import (
    build_sampling,
    sampling_options,
    structured_options,
    structured_outputs,
)

if TYPE_CHECKING:
    from rich.console import Console

    from outpace.measure.trace.records import Step, Trace

EXIT_INTERRUPTED = 130
_OF_SHOWING = {"prompt", "show", "html", "steps", "color", "as_json"}
_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.argument("prompt", required=False)
@click.option(
    "--prompt-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Read the prompt from a file.",
)
@click.option("--raw", is_flag=True, help="Continue the prompt as it is, without chat template.")
@click.option("--out", type=_FILE, help="Write the trace to this file, one JSON object a line.")
@click.option("--html", type=_FILE, help="Write a page that shows the trace to this file.")
@click.option(
    "--show",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Show a trace that was written earlier; runs nothing.",
)
@click.option(
    "--steps",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    help="Most steps in the table; 0 leaves it out.",
)
@click.option(
    "--color/--no-color",
    default=None,
    help="Colour the text whatever it is printed to, or never.  [default: in a terminal]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the trace as one JSON object.")
@structured_options
@sampling_options()
@engine_options
def trace(prompt: str | None, **values: Any) -> int:
    """Answer PROMPT (- reads standard input), and show every step that made the answer.

    Each step's draft tokens with p and q, which of them were accepted, the target's own token, and
    times. A trace holds the prompt and the answer: the files of --out and --html can be read by
    their owner alone. Recording takes time, which is told and left out of all figures.
    """
    html, show = values["html"], values["show"]
    if show is not None:
        _refuse_what_runs(prompt)
    if html is not None:
        from outpace.files import check_writable

        for name in ("out", "show"):
            if values[name] is not None and html.resolve() == values[name].resolve():
                raise click.UsageError(f"--{name} and --html name the same file.")
        check_writable(html, regular=True)
    if show is not None:
        from outpace.measure.trace.files import read_trace

        found, is_interrupted = read_trace(show), False
    else:
        found, is_interrupted = _traced(prompt, values)
    _show(found, values)
    if html is not None:
        from outpace.measure.trace.files import write_private
        from outpace.measure.trace.html import trace_html

        write_private(html, trace_html(found))
    return EXIT_INTERRUPTED if is_interrupted else 0


def _refuse_what_runs(prompt: str | None) -> None:
    """Raise UsageError for options that concern a generation: --show has one already."""
    context = click.get_current_context()
    given = [flag_of(name) for name in context.params if name not in _OF_SHOWING and is_given(name)]
    if prompt is not None:
        given.insert(0, "PROMPT")
    if given:
        raise click.UsageError(f"--show runs nothing; leave out {', '.join(given)}.")


def _traced(prompt: str | None, values: dict[str, Any]) -> tuple[Trace, bool]:
    """The trace of a generation, and whether it was interrupted."""
    text = read_prompt(prompt, values["prompt_file"])
    request: Prompt = text if values["raw"] else [{"role": "user", "content": text}]
    params = replace(build_sampling(values), structured_outputs=structured_outputs(values))
    config = build_speculative_config(values)

    from outpace.measure.trace.run import trace_generation

    with _Progress() as progress, interrupt_flag() as interrupted:
        found = trace_generation(
            lambda instruments: open_llm(values, instruments=instruments),
            request,
            params,
            speculative_config=config,
            path=values["out"],
            on_step=progress.step,
            stopped=interrupted.is_set,
        )
    return found, interrupted.is_set()


def _show(found: Trace, values: dict[str, Any]) -> None:
    if values["as_json"]:
        click.echo(dump_json(asdict(found)))
        return
    from outpace.cli.trace_view import show_trace

    show_trace(found, _console(values["color"]), num_steps=values["steps"])


def _console(color: bool | None) -> Console:
    from rich.console import Console

    if color is False:
        return Console(color_system=None)
    return Console(force_terminal=True) if color else Console()


class _Progress:
    """A line on standard error that counts tokens, in a terminal only."""

    def __init__(self) -> None:
        self._num_steps = self._num_tokens = 0
        # There is no stderr where it was closed.
        self._is_shown = bool(sys.stderr and sys.stderr.isatty())

    def step(self, step: Step) -> None:
        self._num_steps += 1
        self._num_tokens += step.num_tokens
        self._write(f"\r{self._num_tokens} tokens in {self._num_steps} steps")

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._num_steps:
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        if self._is_shown:
            click.echo(text, err=True, nl=False)
