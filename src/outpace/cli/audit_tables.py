"""What `outpace audit` shows: a line for each check, and at last a sentence to rely on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from outpace.measure.audit.results import VIOLATION, AuditResult, Check, SelfTest

if TYPE_CHECKING:
    from rich.table import Table

_KINDS = {"exact": "rule", "greedy": "greedy", "seeded": "seeded", "sampled": "law"}
_LIMITS = (
    "Not proved: biases smaller than that, tokens of sampled answers after the third, and other "
    "prompts, parameters and methods than these."
)


def show_audit(result: AuditResult) -> None:
    """The table, what differed, notes, and the sentence."""
    from rich.console import Console

    Console().print(_checks_table(result))
    for check in result.checks:
        for difference in check.differences:
            click.echo(f"  {_name(check)}: {difference}")
    for note in result.notes:
        click.echo(f"Note: {note}.")
    click.echo(conclusion(result))
    click.echo(
        f"{result.model} in {result.dtype} on the {result.runs_on}, method {result.method}, "
        f"{_sampling(result)}; {result.elapsed_s:.0f} s. Drafts: judged in that check. p: of what "
        "came or worse by chance, adjusted for the tests of the same method; all together call "
        f"chance a violation with probability {result.level:g}. Detectable: the bias, in total "
        "variation, found with 90 % probability.",
        err=True,
    )


def conclusion(result: AuditResult) -> str:
    """What a user can rely on, and what not."""
    wrong = [check for check in result.checks if check.verdict == VIOLATION]
    if wrong:
        named = "; ".join(map(_name, wrong))
        return (
            f"NOT LOSSLESS: {named}. Run it again, with another --method too: a violation that "
            "comes back is a bug, and the JSON of --json is what its report needs."
        )
    begun = "" if result.complete else "INTERRUPTED; what was tested until then: "
    if result.verdict != "lossless":
        return (
            f"{begun}Nothing wrong was found, but too few drafts were judged on this model to say "
            "that this method is lossless: name one that drafts here with --method."
        )
    return f"{begun}Lossless as far as tested: {', '.join(_tested(result))}. {_LIMITS}"


def _tested(result: AuditResult) -> list[str]:
    """What was found in order, in words."""
    said = []
    if exact := result.of_kind("exact"):
        said.append(f"{len(exact)} rules keep the law of {exact[0].num_samples} tiny models")
    texts = [*result.of_kind("greedy"), *result.of_kind("seeded")]
    if texts:
        num_ties = sum(check.num_ties for check in texts)
        but = f" but for {num_ties} rounding ties" if num_ties else ""
        num_texts = sum(check.num_samples for check in texts)
        said.append(f"{num_texts} texts equal plain decoding's{but}")
    for overall in result.sampled_overall:
        found = f"{overall.num_samples:,} answers sampled with {overall.method} show no bias"
        if overall.detectable_bias is not None:
            found += f" (one of {overall.detectable_bias:.1%} would have shown)"
        said.append(found)
    return said


def _sampling(result: AuditResult) -> str:
    return ", ".join(f"{name} {value}" for name, value in result.sampling.items())


def _checks_table(result: AuditResult) -> Table:
    from rich.table import Table

    table = Table(title="Audit")
    table.add_column("check", overflow="fold")
    for name in ("tested", "drafts", "wrong", "p", "detectable", "verdict"):
        table.add_column(name, justify="right" if name != "verdict" else "left", no_wrap=True)
    before: tuple[str | None, bool] | None = None
    for check in result.checks:
        group = check.method, check.kind == "sampled"
        if before not in (None, group):
            table.add_section()
        before = group
        table.add_row(*_cells(check))
    return table


def _name(check: Check) -> str:
    method = f"{check.method}, " if check.method else ""
    return f"{_KINDS[check.kind]}: {method}{check.name}"


def _cells(check: Check) -> list[str]:
    ties = f", {check.num_ties} ties" if check.num_ties else ""
    return [
        _name(check),
        f"{check.num_samples:,} {check.unit}",
        "" if check.num_drafts is None else f"{check.num_drafts:,}",
        f"{check.num_wrong:,}",
        "" if check.p_value is None else f"{check.p_value:.2g}",
        "" if check.detectable_bias is None else f"{check.detectable_bias:.1%}",
        f"{check.verdict}{ties}",
    ]


def show_self_test(result: SelfTest) -> None:
    """Which fault was caught after how many samples, and the sentence."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Planted faults")
    table.add_column("fault", overflow="fold")
    for name in ("check", "samples", "p", "caught", ""):
        table.add_column(name, justify="right" if name in ("samples", "p") else "left")
    for each in result.planted:
        table.add_row(
            each.fault,
            each.check,
            f"{each.num_samples:,} {each.unit}",
            "" if each.p_value is None else f"{each.p_value:.2g}",
            "yes" if each.caught else "no",
            "as it should" if each.is_right else "WRONG",
        )
    Console().print(table)
    for note in result.notes:
        click.echo(f"Note: {note}.")
    click.echo(_self_test_sentence(result))


def _self_test_sentence(result: SelfTest) -> str:
    faults = [each for each in result.planted if not each.is_control]
    if not result.complete:
        return f"INTERRUPTED: {sum(each.caught for each in faults)} faults were caught until then."
    if result.passed:
        return (
            f"All {len(faults)} planted faults were caught, and nothing was found where nothing "
            "was planted. Smaller faults need more samples."
        )
    wrong: Any = ", ".join(
        f"{each.fault} ({each.check})" for each in result.planted if not each.is_right
    )
    return f"FAILED: {wrong}. More --samples may be needed; otherwise the audit cannot be trusted."
