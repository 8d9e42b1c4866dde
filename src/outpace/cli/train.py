"""`outpace train`: make a draft that fits a model, from prompts."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from outpace.cli.answers import dump_json
from outpace.cli.model_options import Decorator
from outpace.cli.train_options import (
    DEFAULT_EPOCHS,
    DRAFT_MODEL,
    EAGLE,
    EARLY_EXIT,
    MEDUSA,
    common_options,
)
from outpace.errors import OptionError

if TYPE_CHECKING:
    from outpace.cli.training_progress import TrainingProgress
    from outpace.measure.generator import EngineGenerator
    from outpace.models.load import LoadedModel
    from outpace.training.recipe import Outcome, Recipe

ENGINE_ROWS = 16
"""Answers that are generated together."""


@click.group()
def train() -> None:
    """Make a draft for a model.

    The model answers prompts, what its layers compute is kept, and a draft is trained on it:
    `outpace train eagle3 --prompts prompts.jsonl --out my-draft`. Interrupted, it goes on when the
    same command is given again.
    """


def _add_command(kind: str, text: str, own: tuple[Decorator, ...]) -> None:
    """A subcommand that trains `kind`; `own`: options that others do not have."""

    def run(**values: Any) -> None:
        _run(kind, values)

    train.command(kind.replace("_", "-"), help=text)(common_options(*own)(run))


for _kind, _text, _own in (
    ("eagle3", "Train an EAGLE-3 head: one layer over several of the target's layers.", EAGLE),
    ("eagle", "Train an EAGLE head: one layer over the target's last layer.", EAGLE),
    ("medusa", "Train Medusa heads: each guesses one token further ahead.", MEDUSA),
    ("draft_model", "Train a small Llama with the target's tokenizer.", DRAFT_MODEL),
    ("early_exit", "Train an exit behind the target's first layers.", EARLY_EXIT),
):
    _add_command(_kind, _text, _own)


def _run(kind: str, values: dict[str, Any]) -> None:
    from outpace import __version__
    from outpace.cli.training_progress import TrainingProgress
    from outpace.training.card import write_card

    if values["general"] and values["init"] is None:
        raise click.UsageError("--general-prompts only has a meaning with --init.")
    record: dict[str, Any] = {}

    def finish(draft: Path, outcome: Outcome) -> None:
        command = ["outpace", *sys.argv[1:]]
        record.update(write_card(draft, recipe, outcome, version=__version__, command=command))

    with TrainingProgress(quiet=values["as_json"]) as progress:
        recipe = _recipe(kind, values, progress)
        try:
            recipe.run(finish)
        except KeyboardInterrupt:
            progress.interrupted()
            raise
    if values["as_json"]:
        click.echo(dump_json({"out": str(values["out"]), **record}))
    else:
        show_result(values["out"], values["model"], record)


def _recipe(kind: str, values: dict[str, Any], progress: TrainingProgress) -> Recipe:
    from outpace.training.answers import SamplingMix
    from outpace.training.options import TrainingOptions
    from outpace.training.recipe import DataPlan, Recipe
    from outpace.training.trainees import DraftSettings

    own = DraftSettings.__dataclass_fields__.keys() & values.keys()
    settings = DraftSettings(kind=kind, **{name: values[name] for name in own})
    plan = DataPlan(
        sampling=SamplingMix.parse(values["sampling"]),
        limits=parse_limits(values["limits"]),
        **{
            name: values[name]
            for name in DataPlan.__dataclass_fields__.keys() & values.keys()
            if name not in ("sampling", "limits")
        },
    )
    lengths = {name: values[name] for name in ("minutes", "steps", "epochs")}
    if all(value is None for value in lengths.values()):
        lengths["epochs"] = DEFAULT_EPOCHS
    training = TrainingOptions(
        **lengths,
        lr_scale=values["lr_scale"],
        tokens_per_step=values["tokens_per_step"],
        patience=values["patience"] or None,
        checkpoint_minutes=values["checkpoint_minutes"],
        seed=values["seed"],
        threads=values["threads"],
    )
    target = _load_target(values)
    return Recipe(
        settings=settings,
        data=plan,
        training=training,
        target=target,
        out=values["out"],
        engine=lambda context: _engine(target, context),
        observer=progress,
        keep_data=values["keep_data"],
    )


def _load_target(values: dict[str, Any]) -> LoadedModel:
    from outpace.cli.progress import DownloadProgress
    from outpace.models.load import load_model

    with DownloadProgress(f"loading {values['model']}") as progress:
        return load_model(
            values["model"],
            dtype=values["dtype"],
            model_impl=values["model_impl"],
            threads=values["threads"],
            download_progress=progress,
            packing_progress=progress,
        )


@contextmanager
def _engine(target: LoadedModel, context: int) -> Iterator[EngineGenerator]:
    from outpace import LLM
    from outpace.measure.generator import EngineGenerator

    # What `auto` drafts depends on the clock, and on targets that are not row-invariant a near tie
    # could depend on that: a run that is repeated shall get the same answers.
    plain = {"method": "none"}
    with LLM(
        target, speculative_config=plain, max_model_len=context, max_num_seqs=ENGINE_ROWS
    ) as llm:
        yield EngineGenerator(llm)


def parse_limits(texts: tuple[str, ...]) -> dict[str, int]:
    """From SOURCE=N each. Raises OptionError for anything else and for a source given twice."""
    limits: dict[str, int] = {}
    for text in texts:
        source, equals, number = text.rpartition("=")
        if not equals or not source or not number.isdecimal():
            raise OptionError(f"--limit is SOURCE=N, such as gsm8k=500, got {text!r}")
        if source in limits:
            raise OptionError(f"--limit gives {source!r} twice")
        limits[source] = int(number)
    return limits


def show_result(out: Path, model: str, record: dict[str, Any]) -> None:
    """Print what the draft is worth on what it was not trained on, and how it is used."""
    from rich.console import Console
    from rich.table import Table

    from outpace.training.recipe import BY_SOURCE

    if record["after"]:
        first = next(iter(record["after"].values()))
        table = Table(title="output tokens per target pass, on held-out prompts")
        table.add_column("", overflow="fold")
        for k in range(1, len(first["tokens_per_cycle"]) + 1):
            table.add_column(f"K = {k}", justify="right", no_wrap=True)
        for name in record["after"]:
            for when in ("before", "after"):
                if (found := record[when].get(name)) is not None:
                    label = name.replace(BY_SOURCE, "  ")
                    label += f", {when}" if record["before"] else ""
                    table.add_row(label, *(f"{v:.2f}" for v in found["tokens_per_cycle"]))
        Console().print(table)
    training, data = record["training"], record["data"]
    click.echo(
        f"{data['answer_tokens']:,} answer tokens, {training['steps']:,} steps, "
        f"{training['seconds'] / 60:.1f} minutes of training."
    )
    click.echo(
        f"Written to {out}. Try it: outpace evaluate-draft {out} --model {model} --prompts FILE"
    )
