"""The entry point. Subcommands are imported when they run: `outpace --help` stays light."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import NoReturn

import click

from outpace import __version__
from outpace.errors import OutpaceError

EXIT_ERROR = 1
EXIT_INTERRUPTED = 130

# command: (attribute's home, help line shown without importing it)
COMMANDS = {
    "generate": ("outpace.cli.generate:generate", "Answer one prompt, or compare two ways of it."),
    "chat": ("outpace.cli.chat:chat", "Talk with a model; accepted draft tokens are coloured."),
    "serve": ("outpace.cli.serve:serve", "Answer OpenAI's clients over HTTP; a page shows how."),
    "models": ("outpace.cli.models:models", "List, fetch and describe models."),
    "train": ("outpace.cli.train:train", "Make a draft that fits a model, from prompts."),
    "evaluate-draft": (
        "outpace.cli.evaluate_draft:evaluate_draft",
        "What a draft is worth: acceptance, and speed here.",
    ),
    "measure-quality": (
        "outpace.cli.measure_quality:measure_quality",
        "What bfloat16 or packed weights change, against float32.",
    ),
    "bench": ("outpace.cli.bench:bench", "Methods against plain decoding and other engines."),
    "advise": ("outpace.cli.advise:advise", "Which method pays here, how far to draft, or none."),
    "trace": ("outpace.cli.trace:trace", "Every step of one answer: drafts, p, q and times."),
    "audit": ("outpace.cli.audit:audit", "Whether this installation is lossless, put to the test."),
    "experiment": (
        "outpace.cli.experiment:experiment",
        "The published study of unaligned drafts, and what a trained one changes.",
    ),
    "plan": ("outpace.cli.plan:plan", "What a model and its draft take in memory, and if it fits."),
    "info": ("outpace.cli.info:info", "Versions, processor and cache folder."),
}


class LazyGroup(click.Group):
    """A group whose commands are named in COMMANDS and imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module_name, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module_name), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@click.group(
    cls=LazyGroup,
    context_settings={
        "token_normalize_func": lambda name: name.replace("_", "-"),
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
    },
)
@click.version_option(__version__, prog_name="outpace")
def cli() -> None:
    """Lossless speculative decoding: the same answers, faster where it pays.

    Options may be spelled with - or _.
    """


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit: 0 done, 1 error, 2 wrong usage, 130 interrupted."""
    _tolerate_narrow_encodings()
    try:
        status = cli.main(args=args, prog_name="outpace", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(EXIT_INTERRUPTED)
    except OutpaceError as error:
        click.echo(f"error: {' '.join(str(error).split())}", err=True)
        sys.exit(EXIT_ERROR)
    except OSError as error:
        _report_os_error(error)
        sys.exit(EXIT_ERROR)
    sys.exit(status if isinstance(status, int) else 0)


def _report_os_error(error: OSError) -> None:
    """One line about a full disk and its like. (A broken pipe never gets here: click is silent
    about a reader that has seen enough.)"""
    where = f"{error.filename}: " if error.filename is not None else ""
    with suppress(OSError):
        click.echo(f"error: {where}{error.strerror or error}", err=True)
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except OSError:
            # What cannot be written would otherwise be tried, and complained about, at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _tolerate_narrow_encodings() -> None:
    """A terminal that cannot show a character shows a substitute; the answer goes on."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
