"""What `outpace audit` shows: tables of the checks, and at last a sentence to rely on."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Literal

import click

from outpace.measure.audit.results import (
    INCOMPLETE,
    LOSSLESS,
    SAYS_LITTLE,
    VIOLATION,
    AuditResult,
    Check,
    Planted,
    SelfTest,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_KINDS = {"exact": "rule", "greedy": "greedy", "seeded": "seeded", "sampled": "law"}
_TABLES = (
    (
        "Rules, enumerated over tiny models",
        ("rule", "models", "drafts", "biased", "verdict"),
        ("exact",),
    ),
    (
        "Texts against plain decoding's",
        ("method", "texts", "compared", "drafted", "drafts", "wrong", "ties", "verdict"),
        ("greedy", "seeded"),
    ),
    (
        "The law of sampled answers, by chi-square",
        ("method", "prompt", "answers", "drafts", "impossible", "p", "detectable", "verdict"),
        ("sampled",),
    ),
)
_NAMES = ("rule", "method", "texts", "prompt", "verdict")
_LEGEND = (
    "drafted: texts in which a draft was judged. p: of what came or worse by chance, adjusted for "
    "the tests of the same method; all together call chance a violation with probability {level:g}."
    " detectable: the bias, in total variation, found with 90 % probability by chi-square's "
    "approximation; with few hundred answers it takes a somewhat larger one."
)


def show_audit(result: AuditResult) -> None:
    """The tables, what differed, notes, and the sentence."""
    from rich.console import Console

    console = Console()
    for title, headings, kinds in _TABLES:
        checks = [check for check in result.checks if check.kind in kinds]
        if checks:
            console.print(_table(title, headings, checks))
    for check in result.checks:
        for difference in check.differences:
            click.echo(f"  {_name(check)}: {difference}")
    for note in result.notes:
        click.echo(f"Note: {note}.")
    click.echo(conclusion(result))
    click.echo(
        f"{result.model} in {result.dtype} on the {result.runs_on}, method {result.method}, "
        f"{_sampling(result)}; {result.elapsed_s:.0f} s. {_LEGEND.format(level=result.level)}",
        err=True,
    )


def conclusion(result: AuditResult) -> str:
    """What a user can rely on, and what not."""
    verdict = result.verdict
    if verdict == VIOLATION:
        wrong = [check for check in result.checks if check.verdict == VIOLATION]
        return (
            f"NOT LOSSLESS: {'; '.join(map(_name, wrong))}. Run it again, with another --method "
            "too: a violation that comes back is a bug, and the JSON of --json is what its report "
            "needs."
        )
    tested = "; ".join(_tested(result))
    found = f"Found in order: {tested}." if tested else "Nothing was tested to the end."
    if verdict == INCOMPLETE:
        return f"INTERRUPTED, so there is no verdict; nothing wrong was found until then. {found}"
    if verdict == SAYS_LITTLE:
        what = "greedy texts" if result.sampling.get("temperature") == 0 else "sampled answers"
        return (
            f"Says little: nothing wrong was found, but hardly a draft was judged in {what}, too "
            "few to call this method lossless on this model: name one that drafts here with "
            f"--method. {found}"
        )
    return f"Lossless as far as tested: {tested}. {_limits(result)}"


def _limits(result: AuditResult) -> str:
    sampled = (
        "smaller biases, tokens of sampled answers after the third, and "
        if result.sampled_overall
        else "anything sampled, and "
    )
    return f"Not proved: {sampled}other prompts, parameters and methods than these."


def _tested(result: AuditResult) -> list[str]:
    """What was found in order, in words. Where no draft was judged, nothing was."""
    said = []
    if exact := result.of_kind("exact"):
        models = min(check.num_samples for check in exact)
        said.append(
            f"{_counted(len(exact), 'rules')} keep the law of {_counted(models, 'tiny models')}"
        )
    texts = [*result.of_kind("greedy"), *result.of_kind("seeded")]
    if drafted := sum(check.num_drafted or 0 for check in texts):
        num_ties = sum(check.num_ties for check in texts)
        but = f" but for {_counted(num_ties, 'rounding ties')}" if num_ties else ""
        of = (
            f"of {_counted(sum(check.num_samples for check in texts), 'texts')} "
            f"({_counted(len(result.text_prompts), 'prompts')}, {_counted(len(texts), 'checks')})"
        )
        said.append(f"{of} {drafted:,} had drafts judged, and equal plain decoding's{but}")
    for overall in result.sampled_overall:
        if overall.verdict != LOSSLESS:
            continue
        found = f"{overall.num_samples:,} answers sampled with {overall.method} show no bias"
        if overall.detectable_bias is not None:
            found += f" (one of {overall.detectable_bias:.1%} would have shown)"
        said.append(found)
    return said


def _counted(count: int, plural: str) -> str:
    """1 and "tiny models" -> "1 tiny model"."""
    return f"{count:,} {plural.removesuffix('s') if count == 1 else plural}"


def _sampling(result: AuditResult) -> str:
    return ", ".join(f"{name} {value}" for name, value in result.sampling.items())


def _table(title: str, headings: Sequence[str], checks: Sequence[Check]) -> Table:
    """Columns that say nothing of any of the checks are left out; a method is named once."""
    rows = [_cells(check) for check in checks]
    shown = [name for name in headings if any(row[name] for row in rows)]
    table = _empty_table(title, shown)
    for _, group in groupby(rows, key=lambda row: row["method"]):
        for i, row in enumerate(group):
            table.add_row(*("" if i and name == "method" else row[name] for name in shown))
        table.add_section()
    return table


def _empty_table(title: str, headings: Sequence[str]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(title=title, box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    for name in headings:
        is_name = name in _NAMES
        # Only words that may be long give way where a line is too short.
        table.add_column(
            name,
            justify="left" if is_name else "right",
            overflow="fold",
            no_wrap=not is_name or name == "verdict",
        )
    return table


def _name(check: Check) -> str:
    method = f"{check.method}, " if check.method else ""
    return f"{_KINDS[check.kind]}: {method}{check.name}"


def _cells(check: Check) -> dict[str, str]:
    """All that can be told of a check, by the name of the column."""
    name = f"{check.kind}, {check.name}" if check.kind in ("greedy", "seeded") else check.name
    count = f"{check.num_samples:,}"
    wrong = f"{check.num_wrong:,}"
    return {
        "rule": name,
        "texts": name,
        "prompt": name,
        "method": check.method or "",
        "models": count,
        "compared": count,
        "answers": count,
        "drafted": "" if check.num_drafted is None else f"{check.num_drafted:,}",
        "drafts": "" if check.num_drafts is None else f"{check.num_drafts:,}",
        "biased": wrong,
        "wrong": wrong,
        "impossible": wrong if check.num_wrong else "",
        "ties": f"{check.num_ties:,}" if check.num_ties else "",
        "p": "" if check.p_value is None else f"{check.p_value:.2g}",
        "detectable": "" if check.detectable_bias is None else f"{check.detectable_bias:.1%}",
        "verdict": check.verdict,
    }


def show_self_test(result: SelfTest) -> None:
    """Which fault was caught after how many samples, and the sentence."""
    from rich.console import Console

    console = Console()
    for title, is_control in (("Planted faults", False), ("Controls: nothing is planted", True)):
        planted = [each for each in result.planted if each.is_control == is_control]
        if planted:
            _print_planted(console, title, planted)
    for note in result.notes:
        click.echo(f"Note: {note}.")
    click.echo(_self_test_sentence(result))


def _print_planted(console: Console, title: str, planted: Sequence[Planted]) -> None:
    from rich import box
    from rich.table import Table

    table = Table(title=title, box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("control" if planted[0].is_control else "fault", overflow="fold")
    for name in ("check", "looked at", "p", "outcome"):
        justify: Literal["left", "right"] = "right" if name in ("looked at", "p") else "left"
        table.add_column(name, justify=justify, no_wrap=True)
    for each in planted:
        table.add_row(
            each.fault,
            each.check,
            _counted(each.num_samples, each.unit),
            "" if each.p_value is None else f"{each.p_value:.2g}",
            _outcome(each),
        )
    console.print(table)


def _outcome(planted: Planted) -> str:
    if planted.is_control:
        return "FALSE ALARM" if planted.caught else "nothing found"
    return "caught" if planted.caught else "MISSED"


def _self_test_sentence(result: SelfTest) -> str:
    faults = [each for each in result.planted if not each.is_control]
    if not result.complete:
        caught = _counted(sum(each.caught for each in faults), "faults")
        return f"INTERRUPTED: {caught} caught until then."
    if result.passed:
        return (
            f"All {len(faults)} planted faults were caught, and nothing was found where nothing "
            "was planted. Smaller faults need more samples."
        )
    wrong = ", ".join(
        f"{each.fault} ({each.check})" for each in result.planted if not each.is_right
    )
    return f"FAILED: {wrong}. More --samples may be needed; otherwise the audit cannot be trusted."
