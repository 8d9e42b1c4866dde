"""`outpace evaluate-draft`: what a draft is worth, on prompts and on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from outpace.cli.answers import dump_json
from outpace.cli.draft_directory import DraftDirectory
from outpace.cli.model_options import load_target, model_options
from outpace.cli.options import parse_json_object
from outpace.errors import OptionError
from outpace.params import SamplingParams

if TYPE_CHECKING:
    from outpace.measure.draft_quality import DraftQuality, Question
    from outpace.models.load import LoadedModel

_MOST_LENGTH = 64


@click.command("evaluate-draft")
@click.argument("directory", metavar="DIR", type=DraftDirectory())
@model_options("model")
@click.option(
    "--prompts",
    required=True,
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Prompts, one on each line, or JSON lines with prompt, turns or messages; their category "
    "(or source) makes the rows of the table; may be repeated.",
)
@click.option(
    "--num-speculative-tokens",
    "lengths",
    default="1,2,3,4",
    show_default=True,
    metavar="K,K,...",
    help="Draft lengths to try.",
)
@click.option(
    "--num-prompts",
    type=click.IntRange(min=1),
    default=24,
    show_default=True,
    help="Most prompts to answer, spread over the categories.",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(min=2),
    default=128,
    show_default=True,
    help="Most tokens of an answer.",
)
@click.option(
    "--temperature",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    help="Of the answers; 0 is greedy.",
)
@click.option("--seed", type=int, help="With --temperature: of all draws.")
@click.option(
    "--speculative-config",
    metavar="JSON",
    help='Further options of the method, such as {"shape": "tree"}.',
)
@model_options("dtype", "model_impl", "kv_cache_dtype", "activations", "threads")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def evaluate_draft(
    directory: Path,
    prompts: tuple[Path, ...],
    lengths: str,
    num_prompts: int,
    max_tokens: int,
    temperature: float,
    seed: int | None,
    speculative_config: str | None,
    as_json: bool,
    **values: Any,
) -> None:
    """Measure the draft in DIR: how much of it is accepted, and how fast that is here.

    DIR may also be the name of a draft that comes with this package, smollm2-135m-eagle3. Every
    prompt is answered plainly and with each draft length, in turn. The kind of draft is read from
    its config.json. `outpace evaluate-draft my-draft --prompts prompts.jsonl`
    """
    from outpace.measure.draft_quality import measure_draft
    from outpace.training.prompts import read_prompts

    options = {} if speculative_config is None else parse_json_object(speculative_config)
    if taken := options.keys() & {"method", "model", "num_speculative_tokens"}:
        raise OptionError(f"--speculative-config gives {min(taken)!r}, which this command chooses")
    params = SamplingParams(temperature=temperature, max_tokens=max_tokens, seed=seed)
    chosen = spread(read_prompts(prompts), num_prompts)
    tried = parse_lengths(lengths)
    target = load_target(values)
    with _progress_bar() as bar:
        task = bar.add_task("measuring", total=None)
        found = measure_draft(
            target,
            directory,
            chosen,
            tried,
            params,
            options=options,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    if as_json:
        click.echo(dump_json(_as_json(directory, target, params, found)))
    else:
        _show(target, found)


def parse_lengths(text: str) -> list[int]:
    """Draft lengths from "1,2,4" or "1-4". Raises OptionError for anything else."""
    lengths: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        ends = [first, last] if dash else [first, first]
        if not all(end.isdecimal() and 1 <= int(end) <= _MOST_LENGTH for end in ends):
            raise OptionError(
                f"draft lengths are numbers from 1 to {_MOST_LENGTH}, such as 1,2,4 or 1-4; "
                f"got {text!r}"
            )
        lengths.update(range(int(ends[0]), int(ends[1]) + 1))
    if not lengths:
        raise OptionError(f"{text!r} names no draft length; a range goes from small to large")
    return sorted(lengths)


def spread(prompts: Sequence[Any], most: int) -> list[Question]:
    """At most `most` prompts, category by category in turn, so that all have about as many."""
    from outpace.measure.draft_quality import Question

    by_category: dict[str, list[Question]] = {}
    for prompt in prompts:
        category = prompt.category or prompt.source
        by_category.setdefault(category, []).append(Question(category, prompt.messages))
    rounds = zip_longest(*by_category.values())
    return [question for row in rounds for question in row if question is not None][:most]


def _progress_bar() -> Any:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )


def _as_json(
    directory: Path, target: LoadedModel, params: SamplingParams, found: DraftQuality
) -> dict[str, Any]:
    return {
        "draft": str(directory),
        "model": target.name,
        "dtype": target.dtype,
        "runs_on": target.runs_on,
        "temperature": params.temperature,
        "max_tokens": params.max_tokens,
        **asdict(found),
        "best_num_speculative_tokens": found.best.num_speculative_tokens,
    }


def _show(target: LoadedModel, found: DraftQuality) -> None:
    from rich.console import Console

    console = Console()
    console.print(_speed_table(found))
    if len(found.acceptance_by_category) > 1:
        console.print(_category_table(found))
    console.print(_position_table(found))
    click.echo(_verdict(found))
    click.echo(
        f"{found.num_questions} prompts, {target.name} in {target.dtype} on the {target.runs_on}; "
        f"plain decoding {found.plain_tokens_per_s:.1f} tokens/s, a pass over one row "
        f"{1000 * found.plain_pass_s:.2f} ms. c: cost of a draft token, v: of a pass over K + 1 "
        "rows, in such passes. Predicted: tokens/pass over (K c + v). Shares accepted are of the "
        "drafts whose tokens before were all accepted.",
        err=True,
    )
    if found.num_left_out:
        click.echo(f"{found.num_left_out} prompts did not fit in the context.", err=True)
    if found.num_different:
        click.echo(
            f"{found.num_different} of {found.num_questions * len(found.lengths)} answers differ "
            "from plain decoding's: rounding where two tokens are nearly tied; --dtype float64 "
            "tells it from a bug.",
            err=True,
        )


def _speed_table(found: DraftQuality) -> Any:
    from rich.table import Table

    table = Table(title=f"{found.method}, by draft length K")
    for name in ("K", "tokens/pass", "c", "v", "predicted", "measured", "tokens/s"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_row("0", "1.00", "", "1.00", "1.00x", "1.00x", f"{found.plain_tokens_per_s:.1f}")
    for row in found.lengths:
        table.add_row(
            str(row.num_speculative_tokens),
            f"{row.acceptance_length:.2f}",
            f"{row.draft_cost:.3f}",
            f"{row.pass_cost:.2f}",
            f"{row.predicted_ratio:.2f}x",
            f"{row.measured_ratio:.2f}x",
            f"{row.tokens_per_s:.1f}",
        )
    return table


def _category_table(found: DraftQuality) -> Any:
    from rich.table import Table

    table = Table(title="tokens/pass by category")
    table.add_column("", overflow="fold")
    for row in found.lengths:
        table.add_column(f"K = {row.num_speculative_tokens}", justify="right", no_wrap=True)
    for category in sorted(found.acceptance_by_category):
        table.add_row(category, *(f"{row.by_category[category]:.2f}" for row in found.lengths))
    return table


def _position_table(found: DraftQuality) -> Any:
    from rich.table import Table

    longest = found.lengths[-1]
    table = Table(title="share accepted at each position")
    table.add_column("", overflow="fold")
    for position in range(1, len(longest.conditional_acceptance) + 1):
        table.add_column(str(position), justify="right", no_wrap=True)
    table.add_row("all", *(f"{rate:.3f}" for rate in longest.conditional_acceptance))
    if len(found.acceptance_by_category) > 1:
        for category, rates in sorted(found.acceptance_by_category.items()):
            table.add_row(category, *(f"{rate:.3f}" for rate in rates))
    return table


def _verdict(found: DraftQuality) -> str:
    best = found.best
    if best.measured_ratio <= 1:
        return (
            f"Not worth it here: at best {best.measured_ratio:.2f} times plain decoding "
            f"(K = {best.num_speculative_tokens})."
        )
    return (
        f"Fastest here: K = {best.num_speculative_tokens}, {best.measured_ratio:.2f} times plain "
        "decoding."
    )
