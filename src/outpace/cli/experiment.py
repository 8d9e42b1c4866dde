"""`outpace experiment`: the published study of unaligned drafts, and what a trained one changes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from outpace.cli.answers import dump_json
from outpace.cli.draft_directory import DraftDirectory
from outpace.cli.evaluate_draft import parse_lengths
from outpace.cli.interrupts import terminate_as_interrupt
from outpace.cli.model_options import DEFAULT_MODEL, model_options
from outpace.files import check_writable, write_whole

if TYPE_CHECKING:
    from rich.console import Console

    from outpace.measure.experiment.options import ExperimentOptions
    from outpace.measure.report.table import Table

EXIT_INTERRUPTED = 130
_BAR_WIDTH = 40


@click.command()
@click.option(
    "--target",
    default=DEFAULT_MODEL,
    show_default=True,
    metavar="NAME",
    help="Alias, GGUF file, Hugging Face folder or hub id.",
)
@click.option(
    "--draft",
    metavar="NAME",
    help="A small model with the target's tokenizer that drafts.  [default: one with random "
    "weights, made for the target]",
)
@click.option(
    "--trained",
    type=DraftDirectory(),
    metavar="DIR",
    help="A trained draft for the second table.  [default: the bundled one]",
)
@click.option("--k", "lengths", metavar="K,K,...", help="Draft lengths.  [default: 1,2,3,5]")
@click.option(
    "--temperature", type=float, default=0.8, show_default=True, help="Of the answers, above 0."
)
@click.option(
    "--minutes", type=float, help="How long it may take, once models are loaded.  [default: 3.5]"
)
@click.option("--max-tokens", type=int, help="Most tokens of an answer.  [default: 64]")
@click.option(
    "--prompts",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file of prompts; may be repeated.  [default: built-in ones]",
)
@click.option(
    "--quick", is_flag=True, help="About half a minute: k 1 and 3, 32 tokens, wide intervals."
)
@click.option(
    "--seed",
    type=int,
    default=0,
    show_default=True,
    help="Of the random draft and the order of runs; answers are sampled without one.",
)
@model_options("dtype", "model_impl", "kv_cache_dtype", "activations", "threads")
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="Write a page too.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def experiment(**values: Any) -> int:
    """Measure drafts that were not made for a model, and show where the speed goes.

    A random draft model and two early exits against plain decoding, for several draft lengths k:
    acceptance (alpha), draft cost (c), cost of verifying (v), what formulas predict, what is
    measured, and what the difference was lost to; then the same with the bundled draft. On the
    default model offline; `outpace experiment --target gpt2 --draft sshleifer/tiny-gpt2` repeats
    the original pair where the Hugging Face Hub can be reached.
    """
    options = _options(values)
    if values["html"] is not None:
        check_writable(values["html"])
    with terminate_as_interrupt():
        summary = _measured(values, options)
    if values["as_json"]:
        click.echo(dump_json(summary))
    else:
        from rich.console import Console

        show(summary, Console())
    if values["html"] is not None:
        from outpace.measure.experiment.report import experiment_html

        # Last of all: a full disk must not cost the tables too.
        write_whole(values["html"], experiment_html(summary))
    return 0 if summary["complete"] else EXIT_INTERRUPTED


def _options(values: dict[str, Any]) -> ExperimentOptions:
    from outpace.measure.experiment.options import QUICK, ExperimentOptions

    given = {
        name: values[name]
        for name in ("draft", "trained", "temperature", "seed", "prompts", "minutes", "max_tokens")
        if values[name] is not None
    }
    if values["lengths"] is not None:
        given["lengths"] = tuple(parse_lengths(values["lengths"]))
    return ExperimentOptions(**({**QUICK} if values["quick"] else {}) | given)


def _measured(values: dict[str, Any], options: ExperimentOptions) -> dict[str, Any]:
    """Load, measure and sum up; after Ctrl-C what there is."""
    from outpace.cli.progress import DownloadProgress
    from outpace.engine.setup import EngineOptions
    from outpace.measure.experiment.drafts import hub_name, studied_drafts
    from outpace.measure.experiment.results import ExperimentResults
    from outpace.measure.experiment.run import run_experiment
    from outpace.measure.experiment.summary import summarise

    names = ("dtype", "model_impl", "kv_cache_dtype", "activations", "threads")
    with DownloadProgress(f"loading {values['target']}") as progress:
        engine = EngineOptions(
            **{name: values[name] for name in names},
            device="auto",
            max_model_len=None,
            max_num_seqs=1,
            kv_cache_bytes=None,
            progress=progress,
        )
        target = engine.load(hub_name(values["target"]))
        drafts, notes = studied_drafts(target, options, engine)
    results = ExperimentResults(notes=notes)
    with _Progress() as bar:
        try:
            run_experiment(target, drafts, options, results, bar)
        except KeyboardInterrupt:
            if not results.num_rounds:
                raise
    return summarise(results)


class _Progress:
    """A bar on stderr for the share of the promised time. Use as a context manager."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._bar.add_task("starting", total=1.0)

    def __enter__(self) -> _Progress:
        self._bar.start()
        return self

    def __exit__(self, *args: object) -> None:
        self._bar.stop()

    def __call__(self, doing: str, share: float) -> None:
        self._bar.update(self._task, description=doing, completed=share)


def show(summary: dict[str, Any], console: Console) -> None:
    """Print tables, the chart in characters, and the conclusion."""
    from outpace.measure.experiment import tables
    from outpace.measure.experiment.words import conclusion

    def say(text: str, **options: Any) -> None:
        console.print(text, highlight=False, markup=False, **options)

    for draft in summary["drafts"]:
        say(f"{draft['label']}: {draft['description']}.")
    for found, legend in (
        (tables.speed_tables(summary), tables.speeds_legend(summary)),
        (tables.loss_tables(summary), tables.LOSSES_LEGEND),
    ):
        for table in found:
            console.print(_rich(table))
        if found:
            say(legend)
    if summary["drafts"]:
        say("\nTimes plain decoding. Light: what the simple formula promises beyond it.")
        lines = list(tables.bar_lines(summary, _BAR_WIDTH))
        longest = max(len(name) for name, _, _ in lines)
        for name, bar, figures in lines:
            say(f"{name:<{longest}}  {bar} {figures}", soft_wrap=True)
    for paragraph in [*conclusion(summary), *summary["notes"], *_run_facts(summary)]:
        say(f"\n{paragraph}")


def _rich(table: Table) -> Any:
    from rich import box
    from rich.table import Table as RichTable

    shown = RichTable(title=table.caption, box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    for index, heading in enumerate(table.headings):
        justify: Any = "left" if index < table.num_names else "right"
        shown.add_column(heading, justify=justify, no_wrap=True)
    previous = None
    for row in table.rows:
        if previous not in (None, row[0]):
            shown.add_section()
        shown.add_row("" if row[0] == previous else row[0], *row[1:])
        previous = row[0]
    return shown


def _run_facts(summary: dict[str, Any]) -> list[str]:
    target, plain = summary["target"], summary["plain"]
    if plain is None:
        return []
    ended = "" if summary["complete"] else "Interrupted; "
    return [
        f"{ended}{_counted(summary['num_rounds'], 'round')} over "
        f"{_counted(summary['num_prompts'], 'prompt')} in {summary['elapsed_s']:.0f} s; "
        f"{target['name']} in {target['dtype']} on the {target['runs_on']}, plain "
        f"decoding {plain['tokens_per_s']:.1f} tokens/s, a plain pass {plain['pass_ms']:.2f} ms."
    ]


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
