"""`outpace generate`: answer one prompt, or measure plain against speculative on it."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from outpace.cli.answers import (
    Prompt,
    answer_json,
    dump_json,
    logprob_lines,
    run_request,
    summary_line,
)
from outpace.cli.compare import compare_methods, comparison_json, show_comparison
from outpace.cli.explain import decisions_json, decisions_of, show_on_stderr
from outpace.cli.options import check_stdin, engine_options, open_llm
from outpace.cli.sampling import (
    build_sampling,
    sampling_options,
    structured_options,
    structured_outputs,
)
from outpace.errors import OptionError
from outpace.outputs import Event
from outpace.params import SamplingParams

if TYPE_CHECKING:
    from outpace import LLM


@click.command()
@click.argument("prompt", required=False)
@click.option(
    "--prompt-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Read the prompt from a file.",
)
@click.option("--raw", is_flag=True, help="Continue the prompt as it is, without chat template.")
@click.option(
    "--compare",
    is_flag=True,
    help="Time plain and speculative decoding in turn.",
)
@click.option(
    "--repeats",
    type=click.IntRange(min=1),
    help="With --compare: timed runs of each.  [default: 3]",
)
@click.option(
    "--explain",
    is_flag=True,
    help="Say what auto decided, what it expected, and what came of it.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@structured_options
@sampling_options()
@engine_options
def generate(
    prompt: str | None,
    prompt_file: Path | None,
    raw: bool,
    compare: bool,
    repeats: int | None,
    explain: bool,
    as_json: bool,
    **values: Any,
) -> None:
    """Answer PROMPT (- reads standard input).

    The answer is printed as it comes; statistics go to standard error.
    """
    if repeats is not None and not compare:
        raise click.UsageError("--repeats only has a meaning with --compare.")
    text = read_prompt(prompt, prompt_file)
    request: Prompt = text if raw else [{"role": "user", "content": text}]
    params = replace(build_sampling(values), structured_outputs=structured_outputs(values))
    with open_llm(values) as llm:
        log = decisions_of(llm) if explain else None
        found: dict[str, Any] = {}
        if compare:
            comparison = compare_methods(llm, request, params, repeats or 3)
            if as_json:
                found = comparison_json(comparison)
            else:
                show_comparison(comparison)
        elif as_json:
            found = answer_json(llm, run_request(llm, request, params))
        else:
            show_answers(llm, request, params)
        if as_json:
            click.echo(dump_json(found | ({"decisions": decisions_json(log)} if log else {})))
        elif log:
            show_on_stderr(log)


def show_answers(llm: LLM, request: Prompt, params: SamplingParams) -> None:
    """Print one answer as it comes, or several one after the other when all are there."""

    def show(event: Event) -> None:
        if params.n == 1:
            click.echo(event.text, nl=False)

    answer = run_request(llm, request, params, show=show)
    if params.n == 1:
        click.echo()
    else:
        for completion in answer.output.outputs:
            click.echo(f"--- answer {completion.index + 1} of {params.n} ---")
            click.echo(completion.text)
    for line in logprob_lines(answer):
        click.echo(line, err=True)
    click.echo(summary_line(llm, answer), err=True)


def read_prompt(prompt: str | None, prompt_file: Path | None) -> str:
    """The prompt from wherever it was given; raises OptionError if it is empty or not UTF-8."""
    if (prompt is None) == (prompt_file is None):
        raise click.UsageError("Give either PROMPT (- for standard input) or --prompt-file.")
    if prompt_file is not None:
        source, data = str(prompt_file), prompt_file.read_bytes()
    elif prompt == "-":
        check_stdin()
        source, data = "standard input", sys.stdin.buffer.read()
    else:
        # Arguments that are not UTF-8 arrive with surrogates, which no tokenizer accepts.
        source, data = "the prompt", (prompt or "").encode("utf-8", "surrogateescape")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise OptionError(f"{source} is not valid UTF-8: {error}") from error
    if not text:
        raise OptionError(f"{source} is empty; give at least one character to continue from")
    return text
