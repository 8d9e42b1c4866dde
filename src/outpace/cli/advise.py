"""`outpace advise`: which method, how far, or none, for a model, prompts and this machine."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from outpace.cli.advise_next import next_command
from outpace.cli.advise_tables import show, show_notes
from outpace.cli.answers import dump_json
from outpace.cli.model_options import load_target, model_options
from outpace.errors import OptionError
from outpace.files import check_writable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from outpace.measure.advise.findings import Findings
    from outpace.measure.advise.options import AdviseOptions, Progress
    from outpace.measure.advise.verdict import Verdict
    from outpace.measure.prompts import BenchPrompt
    from outpace.models.load import LoadedModel

_MOST_OF_CATEGORY = 48


@click.command()
@model_options("model")
@click.option(
    "--prompts",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Prompts like those to come: JSON lines with prompt, turns or messages, or a text file "
    "for each; may be repeated.  [default: a few built-in ones]",
)
@click.option(
    "--candidates",
    metavar="METHOD[:K[:SHAPE]],...",
    help="What to consider, such as suffix:1-8,eagle3:1-4,eagle3:8:tree,auto.  [default: auto, "
    "suffix, ngram and the model's trained draft]",
)
@click.option(
    "--speculative-model",
    metavar="NAME",
    help="A trained draft's folder, or a smaller model, to consider.",
)
@click.option("--temperature", type=float, default=0.0, show_default=True, help="Of the answers.")
@click.option(
    "--seed", type=int, help="Of the answers' sampling.  [default: none, other draws every time]"
)
@click.option(
    "--max-tokens",
    type=int,
    default=96,
    show_default=True,
    help="Most tokens of an answer, at least 8.",
)
@click.option(
    "--batch",
    type=int,
    default=1,
    show_default=True,
    help="Requests decoded together, from 1 to 64.",
)
@click.option("--minutes", type=float, help="How long it may take, up to 600.  [default: 3]")
@click.option(
    "--quick", is_flag=True, help="Fewer candidates and at most 4 prompts, in about 40 seconds."
)
@click.option(
    "--write",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write what is advised, for --config of generate, chat and serve.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@model_options("dtype", "model_impl", "kv_cache_dtype", "activations", "threads")
def advise(
    prompts: tuple[Path, ...],
    candidates: str | None,
    write: Path | None,
    as_json: bool,
    **values: Any,
) -> int:
    """Say which way of drafting pays here, or that none does and why.

    Every candidate is scored on the same recorded answers of the model; its speed is predicted
    from that and from what passes cost on this machine; the best are then run beside plain
    decoding. Ctrl-C ends it with what is known by then.
    """
    options = _options(values, candidates)
    if write is not None:
        check_writable(write)
    target = load_target(values)
    chosen, notes = _prompts(prompts, target)
    findings, was_interrupted = _run(target, values["model"], chosen, options, notes)
    from outpace.measure.advise.verdict import decide

    verdict = decide(findings)
    again = None if verdict is None else next_command(verdict, options)
    if as_json:
        from outpace.measure.advise.as_json import findings_json
        from outpace.measure.provenance import describe

        facts = findings_json(findings, verdict)
        click.echo(dump_json(facts | {"next_command": again, "provenance": describe()}))
    else:
        show(findings, verdict, again)
    show_notes(findings)
    if write is not None:
        _write(write, target, values["model"], findings, verdict)
    return 130 if was_interrupted else 0


def _options(values: dict[str, Any], candidates: str | None) -> AdviseOptions:
    from outpace.measure.advise.options import DEFAULT_MINUTES, QUICK_MINUTES, AdviseOptions
    from outpace.measure.methods import parse_methods

    quick, minutes = values["quick"], values["minutes"]
    if minutes is None:
        minutes = QUICK_MINUTES if quick else DEFAULT_MINUTES
    return AdviseOptions(
        configs=None if candidates is None else tuple(parse_methods(candidates)),
        draft=values["speculative_model"],
        temperature=values["temperature"],
        seed=values["seed"],
        max_tokens=values["max_tokens"],
        batch=values["batch"],
        minutes=minutes,
        quick=quick,
    )


def _prompts(paths: tuple[Path, ...], target: LoadedModel) -> tuple[list[BenchPrompt], list[str]]:
    """(the prompts, what is to be noted of those that were left out)."""
    from outpace.measure.advise.options import MAX_PROMPT_TOKENS
    from outpace.measure.prompts import default_files, fitting, read_questions

    most = min(MAX_PROMPT_TOKENS, target.max_len // 2)
    given = read_questions(paths or default_files())
    questions = fitting(
        given, target.tokenizer, per_category=_MOST_OF_CATEGORY, max_tokens=most, seed=0
    )
    notes = []
    if paths and len(questions) < len(given):
        notes.append(
            f"{len(given) - len(questions)} of {len(given)} prompts in the files were not "
            f"considered: over {most} tokens, or more than {_MOST_OF_CATEGORY} of a category."
        )
    return [question.prompt(target.tokenizer) for question in questions], notes


def _run(
    target: LoadedModel,
    name: str,
    prompts: list[BenchPrompt],
    options: AdviseOptions,
    notes: list[str],
) -> tuple[Findings, bool]:
    """(what was found, whether it was interrupted)."""
    from outpace.measure.advise.findings import Findings
    from outpace.measure.advise.run import advise as run_advice

    model = {
        "name": name,
        "fingerprint": target.fingerprint,
        "dtype": target.dtype,
        "runs_on": target.runs_on,
    }
    findings = Findings(model, options.temperature, options.batch, notes=notes)
    with _shown_progress() as progress:
        try:
            run_advice(target, prompts, options, progress, findings)
        except KeyboardInterrupt:
            return findings, True
    return findings, False


@contextmanager
def _shown_progress() -> Iterator[Progress]:
    """A bar of the time promised, on standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[left]}", markup=False),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task("starting", total=1.0, left="")

        def progress(stage: str, elapsed: float, promised: float) -> None:
            left = f"{max(promised - elapsed, 0):.0f} s left"
            bar.update(task, description=stage, completed=elapsed, total=promised, left=left)

        yield progress


def _write(
    path: Path, target: LoadedModel, name: str, findings: Findings, verdict: Verdict | None
) -> None:
    from outpace.measure.advise.as_json import findings_json
    from outpace.measure.advise.configuration import AdvisedConfig, portable_name, write_config
    from outpace.measure.provenance import describe

    if verdict is None:
        raise OptionError(f"{path} was not written: it was interrupted before anything was known")
    config = AdvisedConfig(
        model=portable_name(name),
        fingerprint=target.fingerprint,
        dtype=target.dtype,
        speculative_config=verdict.speculative_config,
        advice=findings_json(findings, verdict) | {"provenance": describe()},
    )
    write_config(path, config)
    click.echo(f"{path} written; --config {path} of generate, chat and serve follows it", err=True)
