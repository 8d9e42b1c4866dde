"""`outpace audit`: whether this installation is lossless, with this model, method and sampling."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from outpace.cli.advised import advised, with_advised_model
from outpace.cli.given import flags_given
from outpace.cli.interrupts import terminate_as_interrupt
from outpace.cli.main import EXIT_INTERRUPTED
from outpace.cli.model_options import load_target
from outpace.cli.options import build_speculative_config, engine_options
from outpace.cli.sampling import build_sampling, sampling_options
from outpace.errors import OptionError
from outpace.files import check_writable, write_whole

if TYPE_CHECKING:
    from outpace.measure.audit.run import AuditOptions
    from outpace.measure.audit.subject import AuditPrompt, Subject

EXIT_VIOLATION = 3
_STDOUT = "-"
# What the audit chooses itself: lengths, ends, seeds and numbers of answers.
_CHOSEN = (
    "n",
    "seed",
    "temperature",
    "max_tokens",
    "min_tokens",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "logprobs",
    "prompt_logprobs",
    "include_stop_str_in_output",
    "skip_special_tokens",
)
# What says which checks are made, and how many.
_CHECKS = ("prompts", "quick", "minutes", "num_texts", "max_tokens", "num_seeds")
_MAX_PROMPT_TOKENS = 1024
_MOST_PROMPTS = 1000


@click.command()
@click.option(
    "--prompts",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Prompts in place of the built-in ones: JSON lines with prompt, turns or messages, or one "
    "prompt in a .txt or .md file; may be repeated. The texts take --num-texts of them, the "
    "chi-square test up to 4.",
)
@click.option(
    "--quick",
    is_flag=True,
    help="About 20 seconds on an idle machine, and larger biases only.",
)
@click.option(
    "--minutes",
    type=click.FloatRange(min=0, min_open=True),
    help="Time for all of it; checks it does not take are left out.  [default: 2.5, quick: 0.3]",
)
@click.option(
    "--samples",
    type=click.IntRange(min=1),
    help="Answers to draw for the chi-square test, whatever time that takes; with --self-test the "
    "most for each fault.  [default: what fits; 4096 with --self-test]",
)
@click.option(
    "--num-texts",
    type=click.IntRange(min=1),
    help="Prompts to answer for the comparison of texts.  [default: 8, quick: 3]",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(min=2),
    help="Tokens of a greedy answer.  [default: 64, quick: 32]",
)
@click.option(
    "--num-seeds",
    type=click.IntRange(min=0),
    help="Seeds to answer the prompts with.  [default: 3, quick: 1]",
)
@click.option(
    "--batch", type=click.IntRange(min=1), default=16, show_default=True, help="Most at a time."
)
@click.option(
    "--level",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.001,
    show_default=True,
    help="How likely chance alone may make the chi-square tests call a violation.",
)
@click.option(
    "--self-test",
    is_flag=True,
    help="Plant faults in the engine, and see after how many samples the audit catches each; takes "
    "two to three minutes.",
)
@click.option(
    "--json",
    "json_file",
    metavar="FILE",
    help="Write the result as JSON as well; - prints it instead of the table.",
)
@click.option(
    "--temperature",
    type=click.FloatRange(min=0),
    default=1.0,
    show_default=True,
    help="Divides the logits; 0 leaves only the greedy comparison.",
)
@sampling_options(_CHOSEN)
@engine_options
def audit(**values: Any) -> int:
    """Test whether drafted answers are the model's own, on this machine.

    By enumeration of the rules on tiny models, token for token against plain decoding, and by
    chi-square on the model itself. Ends with status 0 where nothing was found, 3 where something
    was.
    """
    if values["self_test"]:
        _refuse_checks()
    params = replace(build_sampling(values, _CHOSEN), temperature=values["temperature"])
    config, file = build_speculative_config(values) or {"method": "auto"}, advised(values)
    if config.get("method") == "none":
        raise OptionError("method 'none' drafts nothing, so there is nothing to audit")
    if values["json_file"] not in (None, _STDOUT):
        check_writable(Path(values["json_file"]))

    from outpace.measure.audit.subject import Subject

    if file is not None:
        values = with_advised_model(values, file)
    loaded = load_target(values)
    if file is not None:
        file.check(loaded.fingerprint, loaded.name, str(values["config"]))
    subject = Subject(
        loaded, config, params, values["batch"], max_model_len=values["max_model_len"]
    )
    with terminate_as_interrupt():
        return _self_test(subject, values) if values["self_test"] else _audit(subject, values)


def _refuse_checks() -> None:
    """Raise OptionError for options that say what to check, beside --self-test."""
    for name, flag in flags_given().items():
        if name in _CHECKS:
            raise OptionError(
                f"--self-test has checks of its own, so {flag} has no meaning; leave one of the "
                "two out"
            )


def _audit(subject: Subject, values: dict[str, Any]) -> int:
    from outpace.cli.audit_tables import show_audit
    from outpace.measure.audit.results import VIOLATION
    from outpace.measure.audit.run import run_audit

    options = _options(values)
    texts = _texts(subject, values["prompts"])
    with _Progress() as progress:
        own = bool(values["prompts"])
        result = run_audit(subject, options, progress, texts=texts, own_prompts=own)
    if values["json_file"] != _STDOUT:
        show_audit(result)
    _write(result.to_json(), values["json_file"])
    if result.verdict == VIOLATION:
        return EXIT_VIOLATION
    return 0 if result.complete else EXIT_INTERRUPTED


def _self_test(subject: Subject, values: dict[str, Any]) -> int:
    from outpace.cli.audit_tables import show_self_test
    from outpace.measure.audit.self_test import NUM_SAMPLES, run_self_test

    with _Progress() as progress:
        samples = values["samples"] or NUM_SAMPLES
        result = run_self_test(subject, progress, samples=samples, level=values["level"])
    if values["json_file"] != _STDOUT:
        show_self_test(result)
    _write(result.to_json(), values["json_file"])
    if not result.complete:
        return EXIT_INTERRUPTED
    return 0 if result.passed else EXIT_VIOLATION


def _options(values: dict[str, Any]) -> AuditOptions:
    from outpace.measure.audit.run import QUICK, AuditOptions

    names = ("minutes", "samples", "num_texts", "max_tokens", "num_seeds", "level")
    given = {name: values[name] for name in names if values[name] is not None}
    return replace(QUICK if values["quick"] else AuditOptions(), **given)


def _texts(subject: Subject, files: tuple[Path, ...]) -> list[AuditPrompt]:
    """The prompts that fit, of all categories in turn."""
    from outpace.measure.audit.subject import AuditPrompt
    from outpace.measure.prompts import BUILT_IN, pick_questions

    questions = pick_questions(
        files or [BUILT_IN],
        subject.loaded.tokenizer,
        per_category=_MOST_PROMPTS,
        max_tokens=min(subject.max_len // 2, _MAX_PROMPT_TOKENS),
        seed=0,
    )
    places: dict[str, int] = {}
    ranked = []
    for question in questions:
        place = places[question.category] = places.get(question.category, -1) + 1
        ranked.append((place, question))
    ranked.sort(key=lambda pair: pair[0])
    prompts = [question.prompt(subject.loaded.tokenizer) for _, question in ranked]
    return [AuditPrompt(prompt.label, prompt.token_ids) for prompt in prompts]


def _write(document: dict[str, Any], file: str | None) -> None:
    """Write JSON where it is wanted. Last of all: a full disk must not cost the table too.

    Raises OptionError for a file that cannot be written.
    """
    from outpace.cli.answers import dump_json

    if file == _STDOUT:
        click.echo(dump_json(document))
    elif file is not None:
        write_whole(Path(file), dump_json(document) + "\n")


class _Progress:
    """One bar for each stage, on standard error, gone at the end."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task: Any = None

    def stage(self, name: str, total: int) -> None:
        if self._task is None:
            # Only now: an error that comes before leaves no empty line.
            self._bar.start()
        else:
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task(name, total=total)

    def tick(self, count: int = 1) -> None:
        self._bar.advance(self._task, count)

    def say(self, text: str) -> None:
        self._bar.console.print(text, markup=False, highlight=False)

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._task is not None:
            self._bar.stop()
