"""What `outpace advise` prints for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from outpace.cli.plan import size

if TYPE_CHECKING:
    from rich.table import Table

    from outpace.measure.advise.findings import Findings
    from outpace.measure.advise.verdict import Verdict

_FAR_OFF = 0.1
_MOST_LABELS = 3


def show(findings: Findings, verdict: Verdict | None, again: str | None) -> None:
    """Print what was found, and the advice below it. again: the command line that may settle it."""
    from rich.console import Console

    from outpace.measure.advise.verdict import v_words

    console = Console()
    if findings.predictions:
        console.print(_predicted_table(findings))
    if findings.measured:
        console.print(_measured_table(findings))
    if findings.batches:
        console.print(_batch_table(findings))
    lines = [] if findings.machine is None else [_costs(findings), v_words(findings.machine)]
    lines += [*_memory(findings), *_unreliable(findings), *_errors(findings)]
    lines += [] if verdict is None else ["", verdict.text]
    lines += [] if again is None else [f"Next: {again}"]
    for line in lines:
        click.echo(line)


def show_notes(findings: Findings) -> None:
    """Print how the run went, on standard error."""
    for note in findings.notes:
        click.echo(note, err=True)
    if not findings.is_complete:
        click.echo("It ended early: this is what is known so far.", err=True)


def _predicted_table(findings: Findings) -> Table:
    from rich.table import Table

    table = Table(title=f"Predicted, for {_of(len(findings.recorded), findings.num_prompts)}")
    table.add_column("method", no_wrap=True)
    for name in ("tokens/step", "alpha", "rows", "draft ms", "pass ms", "ratio"):
        table.add_column(name, justify="right", no_wrap=True)
    machine = findings.machine
    if machine is not None:
        table.add_row("plain", "1.00", "", "1.0", "", f"{machine.plain_pass_ms:.2f}", "1.00x")
    for prediction in findings.predictions:
        acceptance = prediction.acceptance
        table.add_row(
            prediction.candidate.name,
            f"{acceptance.expected:.2f}",
            "" if acceptance.alpha is None else f"{acceptance.alpha:.2f}",
            f"{acceptance.num_rows:.1f}",
            f"{prediction.draft_ms:.2f}",
            f"{prediction.pass_ms:.2f}",
            f"{prediction.ratio:.2f}x",
        )
    if findings.auto is not None:
        table.add_row(findings.auto.candidate.name, *[""] * 5, f"{findings.auto.ratio:.2f}x")
    return table


def _measured_table(findings: Findings) -> Table:
    from rich.table import Table

    places = {place for measured in findings.measured for place in measured.places}
    ran = _of(len(places), len(findings.recorded))
    labels = [findings.recorded[place].label for place in sorted(places)]
    few = f" ({', '.join(labels)})" if len(labels) <= _MOST_LABELS else ""
    table = Table(
        title=f"Measured, in turn with plain decoding, on {ran}{few}",
        caption="predicted: for the prompts that ran, not for all that are predicted above",
    )
    table.add_column("method", no_wrap=True)
    for name in ("tokens/s", "plain", "ratio", "95 %", "predicted", "off by"):
        table.add_column(name, justify="right", no_wrap=True)
    for measured in findings.measured:
        ratio, predicted = measured.ratio, findings.predicted_for(measured)
        has_interval = ratio.low is not None and ratio.high is not None
        error = findings.errors.get(measured.candidate.name)
        table.add_row(
            measured.candidate.name,
            f"{measured.tokens_per_s:.1f}",
            f"{measured.plain_tokens_per_s:.1f}",
            f"{ratio.mean:.2f}x",
            f"{ratio.low:.2f} to {ratio.high:.2f}" if has_interval else "",
            "" if predicted is None else f"{predicted:.2f}x",
            "unreliable" if not measured.is_reliable else "" if error is None else f"{error:+.0%}",
        )
    return table


def _batch_table(findings: Findings) -> Table:
    from rich.table import Table

    table = Table(title=f"{findings.batches_of} by batch, to plain decoding of as many")
    for name in ("batch", "predicted", "measured"):
        table.add_column(name, justify="right", no_wrap=True)
    for at in findings.batches:
        measured = "" if at.measured is None else f"{at.measured:.2f}x"
        measured += "" if at.is_reliable else " (unreliable)"
        table.add_row(str(at.batch), f"{at.predicted:.2f}x", measured)
    return table


def _of(count: int, total: int) -> str:
    """ "4 of 10 prompts"."""
    of = f" of {total}" if total > count else ""
    return f"{count}{of} prompt{'' if max(count, total) == 1 else 's'}"


def _costs(findings: Findings) -> str:
    machine = findings.machine
    assert machine is not None
    return (
        f"A plain step takes {machine.plain_step_ms:.2f} ms, {machine.plain_pass_ms:.2f} of it in "
        "the model. Predicted: tokens a step times that, over drafting, pass and the rest."
    )


def _memory(findings: Findings) -> list[str]:
    return [
        f"{name} takes {size(memory.weights)} of weights and {size(memory.per_sequence)} for each "
        "request of full length."
        for name, memory in findings.memory.items()
        if memory.weights or memory.per_sequence
    ]


def _unreliable(findings: Findings) -> list[str]:
    """What cannot have been measured rightly."""
    return [
        f"{m.candidate.name} cannot be {m.ratio.mean:.2f} times as fast with {m.expected:.2f} "
        "tokens a step: this measurement is unreliable, the machine was busy with something else."
        for m in findings.measured
        if not m.is_reliable
    ]


def _errors(findings: Findings) -> list[str]:
    """How far predictions were off."""
    errors = findings.errors
    if not errors:
        return []
    lines = []
    far_off = [name for name, error in errors.items() if abs(error) > _FAR_OFF]
    if far_off:
        lines.append(
            f"The prediction for {', '.join(far_off)} is more than {_FAR_OFF:.0%} off; what was "
            "measured counts."
        )
    differing = [
        f"{m.candidate.name} {m.num_compared - m.num_equal} of {m.num_compared}"
        for m in findings.measured
        if m.num_equal < m.num_compared
    ]
    if differing:
        lines.append(
            f"Answers that differ from plain decoding's: {', '.join(differing)}. `outpace audit` "
            "tells rounding from a bug."
        )
    return lines
