"""`outpace measure-quality`: what a cheaper way of computing a model changes in what it says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from outpace.cli.answers import dump_json
from outpace.cli.model_options import model_options

if TYPE_CHECKING:
    from outpace.measure.configurations import Comparison, Configuration

REFERENCE = "float32"


@click.command("measure-quality")
@click.argument(
    "texts",
    nargs=-1,
    required=True,
    metavar="TEXT...",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)
@model_options("model")
@click.option(
    "--compare",
    "compared",
    multiple=True,
    metavar="SETTINGS",
    help="A way to compute the model; may be repeated. A dtype, then other settings with commas: "
    "activations=, kv_cache_dtype=, model_impl=, model=.  [default: auto]",
)
@click.option(
    "--reference",
    default=REFERENCE,
    show_default=True,
    metavar="SETTINGS",
    help="What to compare with, named in the same way.",
)
@click.option(
    "--window",
    type=click.IntRange(min=2),
    default=512,
    show_default=True,
    help="Tokens that are read together; each window starts anew.",
)
@click.option(
    "--max-tokens", type=click.IntRange(min=2), help="Leave out what is beyond that many tokens."
)
@model_options("threads")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def measure_quality(
    texts: tuple[Path, ...],
    model: str,
    compared: tuple[str, ...],
    reference: str,
    window: int,
    max_tokens: int | None,
    threads: int | None,
    as_json: bool,
) -> None:
    """Compare ways of computing a model with float32, on the text of the files TEXT.

    Files are prose, or prompts as JSON lines (.jsonl). For each way, the perplexity of the text,
    how often it chooses the same next token as float32, and the Kullback-Leibler divergence from
    float32 in nats. `outpace measure-quality notes.txt --compare bfloat16 --compare
    q4_1,activations=int8`
    """
    from outpace.measure.configurations import (
        Configuration,
        compare_configurations,
        comparison_json,
    )
    from outpace.measure.texts import read_texts

    ways = [Configuration.parse(way) for way in compared or ("auto",)]
    base = Configuration.parse(reference)
    contents = read_texts(texts)
    _set_torch_threads(threads)
    with _progress_bar() as bar:
        task = bar.add_task(f"loading {model}", total=None)
        found = compare_configurations(
            model,
            base,
            ways,
            contents,
            window_len=window,
            max_tokens=max_tokens,
            threads=threads,
            progress=lambda what, done, total: bar.update(
                task, description=what, completed=done, total=total
            ),
        )
    if as_json:
        settings = {"model": model, "texts": list(map(str, texts)), "window": window}
        click.echo(dump_json({**settings, "reference": base.label, **comparison_json(found)}))
    else:
        _show(base, found)


def _set_torch_threads(threads: int | None) -> None:
    if threads is not None:
        import torch

        from outpace.models.threads import check_threads

        check_threads(threads)
        torch.set_num_threads(threads)


def _progress_bar() -> Any:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )


def _show(base: Configuration, found: Sequence[Comparison]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table()
    table.add_column("computed in", overflow="fold")
    for column in ("perplexity", "same choice, %", "mean KL", "largest KL"):
        table.add_column(column, justify="right", no_wrap=True)
    first = found[0].quality
    table.add_row(base.label, f"{first.reference_perplexity:.4f}")
    for comparison in found:
        row = comparison.quality
        low, high = row.same_choice_interval
        table.add_row(
            comparison.label.replace(",", ", "),  # wraps where there is a space
            f"{row.perplexity:.4f}",
            f"{100 * row.same_choice_share:.2f} ({100 * low:.1f}-{100 * high:.1f})",
            f"{row.mean_kl:.6f}",
            f"{row.max_kl:.4f}",
        )
    Console().print(table)
    click.echo(
        f"{first.num_tokens} positions. Same choice: positions with the same most probable next "
        f"token as in {base.label}, with the 95 % interval. KL: divergence from it, in nats.",
        err=True,
    )
