"""`outpace bench`: methods against plain decoding and other engines, in one run."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from outpace.cli.answers import dump_json
from outpace.cli.bench_progress import BenchBar
from outpace.cli.given import flags_given
from outpace.cli.model_options import DTYPES, model_options
from outpace.errors import OptionError, OutpaceError
from outpace.files import check_writable, write_whole

if TYPE_CHECKING:
    from outpace.measure.bench.options import BenchOptions
    from outpace.measure.bench.results import BenchResults

T = TypeVar("T")

INTERRUPTED, FAILED = 130, 1
PLAIN_WIDTH = 200
_STDOUT = "-"
_FULL: dict[str, Any] = {
    "temperature": ("0,0.8",),
    "batch": ("1,2,4,8",),
    "per_column": 8,
    "max_tokens": 128,
    "minutes": 5.0,
    "repeats": 5,
}
_QUICK: dict[str, Any] = {
    "temperature": ("0",),
    "batch": ("1,2",),
    "per_column": 1,
    "max_tokens": 32,
    "minutes": 0.5,
    "repeats": 1,
}


@click.command()
@model_options("model")
@click.option(
    "--dtype",
    "dtypes",
    multiple=True,
    metavar="D,...",
    help=f"What weights are held in, each measured in turn: {', '.join(DTYPES)}; may be repeated.  "
    "[default: auto]",
)
@click.option(
    "--method",
    "methods",
    multiple=True,
    metavar="SPEC",
    help="auto, suffix:4, ngram:1-4, eagle3:8:tree, several with commas, or a JSON object as "
    "--speculative-config takes it; may be repeated. Plain decoding is always measured.  "
    "[default: auto,suffix,ngram, and eagle3 where a head for the model is shipped]",
)
@click.option(
    "--temperature",
    multiple=True,
    metavar="T,...",
    help=f"Of the answers; may be repeated.  [default: {_FULL['temperature'][0]}]",
)
@click.option(
    "--batch",
    multiple=True,
    metavar="N,...",
    help=f"Requests decoded together; may be repeated.  [default: {_FULL['batch'][0]}]",
)
@click.option(
    "--prompts",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="JSON lines with turns, prompt or messages, and perhaps category, or a text (.txt, .md) "
    "that is one prompt; may be repeated.  [default: a small built-in set]",
)
@click.option(
    "--per-column",
    type=click.IntRange(min=1),
    help=f"Most prompts of each category.  [default: {_FULL['per_column']}]",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(min=2),
    help=f"Most tokens of an answer.  [default: {_FULL['max_tokens']}]",
)
@click.option(
    "--max-prompt-tokens",
    type=click.IntRange(min=1),
    default=1000,
    show_default=True,
    help="Longer prompts are left out.",
)
@click.option(
    "--peer",
    "peers",
    multiple=True,
    metavar="NAME",
    help="Another engine on the same weights, if installed: transformers, llama.cpp, openvino or "
    "vllm; may be repeated.",
)
@click.option(
    "--minutes",
    type=click.FloatRange(min=0),
    help="Time to measure in. One prompt of each category is measured whatever it takes.  "
    f"[default: {_FULL['minutes']:g}]",
)
@click.option(
    "--repeats",
    type=click.IntRange(min=1),
    help=f"Most rounds over all prompts.  [default: {_FULL['repeats']}]",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the choice of prompts.")
@click.option(
    "--quick",
    is_flag=True,
    help="Half a minute: one short answer for each category. Options that are given still hold.",
)
@model_options("model_impl", "kv_cache_dtype", "activations", "threads")
@click.option(
    "--json",
    "json_to",
    metavar="FILE|-",
    help="Write everything that is shown as one JSON document; - prints it instead of the tables.",
)
@click.option("--html", "html_to", type=click.Path(path_type=Path), help="Write a report to read.")
@click.option(
    "--markdown", "markdown_to", type=click.Path(path_type=Path), help="Write it as Markdown."
)
@click.option(
    "--show",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="RESULTS.json",
    help="Measure nothing; show or convert what an earlier --json wrote.",
)
def bench(
    json_to: str | None,
    html_to: Path | None,
    markdown_to: Path | None,
    show: Path | None,
    **values: Any,
) -> int:
    """Measure drafting methods against plain decoding, all in one run.

    Speed by kind of prompt and batch, acceptance, costs, and whether the answers are the same.
    """
    _check_places([json_to, html_to, markdown_to], show)
    status = 0
    if show is not None:
        from outpace.measure.bench.summary import read_summary

        _refuse_measuring()
        summary = read_summary(show)
    else:
        summary, status = _measured(values)
    _write(summary, json_to, html_to, markdown_to)
    return status


def build_options(values: dict[str, Any]) -> BenchOptions:
    """What the options of the command line ask for. Raises OptionError for what none could mean."""
    from outpace.measure.bench.options import BenchOptions
    from outpace.measure.methods import parse_methods
    from outpace.measure.prompts import BUILT_IN

    defaults = _QUICK if values.pop("quick") else _FULL
    # Values that were not given are None, or empty where an option may be repeated.
    values = {
        name: defaults[name] if name in defaults and value in (None, ()) else value
        for name, value in values.items()
    }
    return BenchOptions(
        dtypes=_choices(values.pop("dtypes") or ("auto",)),
        methods=tuple(c for text in values.pop("methods") for c in parse_methods(text)),
        temperatures=_numbers("temperature", values.pop("temperature"), float),
        batches=_numbers("batch", values.pop("batch"), int),
        prompts=values.pop("prompts") or (BUILT_IN,),
        **values,
    )


def _measured(values: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """(the summary, the exit status); what was measured is not lost to what ended it."""
    from outpace.measure.bench.results import BenchResults
    from outpace.measure.bench.run import run_bench
    from outpace.measure.bench.summary import summarise

    options, results, status = build_options(values), BenchResults(), 0
    if options.threads is not None:
        import torch

        torch.set_num_threads(options.threads)
    with BenchBar(f"loading {options.model}", options.minutes) as bar:
        try:
            run_bench(options, bar, results)
        except KeyboardInterrupt:
            status = INTERRUPTED
            results.note("interrupted: these are the results up to then")
        except OutpaceError as error:
            if not _has_runs(results):
                raise
            status = FAILED
            results.note(f"FAILED: {error}; these are the results up to then")
        except Exception as error:
            if not _has_runs(results):
                raise
            traceback.print_exc()
            status = FAILED
            results.note(f"FAILED: {type(error).__name__}: {error}; the results up to then")
    if status and not _has_runs(results):
        raise click.Abort
    return summarise(results), status


def _has_runs(results: BenchResults) -> bool:
    return any(found.runs for found in results.paths)


def _write(
    summary: dict[str, Any], json_to: str | None, html_to: Path | None, markdown_to: Path | None
) -> None:
    """Raises OptionError for files that could not be written, once everything else is done."""
    from outpace.measure.report.bench_report import bench_html, bench_markdown

    failures = []
    # First what the others can be made from again.
    for place, text_of in (
        (None if json_to == _STDOUT else json_to, lambda found: dump_json(found) + "\n"),
        (html_to, bench_html),
        (markdown_to, bench_markdown),
    ):
        try:
            if place is not None:
                write_whole(Path(place), text_of(summary))
        except OptionError as error:
            failures.append(str(error))
    if json_to == _STDOUT:
        click.echo(dump_json(summary))
    else:
        from rich.console import Console

        from outpace.cli.bench_tables import show_summary

        show_summary(summary, Console(width=None if _is_in_terminal() else PLAIN_WIDTH))
    if failures:
        raise OptionError("; ".join(failures))


def _is_in_terminal() -> bool:
    return bool(sys.stdout and sys.stdout.isatty())  # there is none where it was closed


def _check_places(places: Sequence[str | Path | None], show: Path | None) -> None:
    """Raise OptionError now where after minutes it would turn out that a file cannot be written, or
    that it would overwrite another."""
    taken = [] if show is None else [show.resolve()]
    for place in places:
        if place in (None, _STDOUT):
            continue
        target = Path(place).resolve()
        check_writable(Path(place))
        if target in taken:
            raise OptionError(f"{place} is named twice; each file needs a name of its own")
        taken.append(target)


def _refuse_measuring() -> None:
    """Raise OptionError for options that say what to measure, beside --show."""
    output = {"json_to", "html_to", "markdown_to", "show"}
    for name, flag in flags_given().items():
        if name not in output:
            raise OptionError(f"--show measures nothing, so {flag} has no meaning")


def _choices(given: Sequence[str]) -> tuple[str, ...]:
    found = _split(given)
    for dtype in found:
        if dtype not in DTYPES:
            raise OptionError(f"--dtype must be {', '.join(DTYPES)}, got {dtype!r}")
    return found


def _numbers(name: str, given: Sequence[str], convert: Callable[[str], T]) -> tuple[T, ...]:
    try:
        return tuple(convert(part) for part in _split(given))
    except ValueError as error:
        raise OptionError(
            f"--{name} takes numbers separated by commas, got {','.join(given)!r}"
        ) from error


def _split(given: Sequence[str]) -> tuple[str, ...]:
    return tuple(part.strip() for text in given for part in text.split(","))
