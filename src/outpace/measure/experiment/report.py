"""The study as a page: tables, bar charts, and what they say in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outpace.measure.experiment.tables import (
    LOSSES_LEGEND,
    loss_tables,
    speed_tables,
    speeds_legend,
)
from outpace.measure.experiment.words import conclusion
from outpace.measure.report.document import (
    Block,
    Bullets,
    Chart,
    Document,
    Facts,
    Part,
    Text,
    html_of,
)
from outpace.measure.report.document import Warning as Caution
from outpace.measure.report.numbers import decimals, milliseconds
from outpace.measure.report.svg import (
    PLAIN,
    Bar,
    Estimate,
    Group,
    Stack,
    grouped_bars,
    stacked_bars,
)
from outpace.measure.report.table import Table

TITLE = "Unaligned drafts: where the speed goes"
PARTS = ("drafting", "one plain pass", "more rows", "rest of the engine")

Row = Mapping[str, Any]


def experiment_html(summary: Row) -> str:
    """The whole report as one HTML file."""
    return html_of(experiment_document(summary))


def experiment_document(summary: Row) -> Document:
    lead: list[Block] = []
    if not summary["complete"]:
        lead.append(Caution("The run was interrupted; this is what was measured until then."))
    lead += [Text(text) for text in conclusion(summary)]
    return Document(TITLE, lead, _parts(summary))


def _parts(summary: Row) -> list[Part]:
    parts = [Part("How it was run", [Facts(_facts(summary)), Bullets(_descriptions(summary))])]
    if not summary["drafts"]:
        return parts
    figures: list[Block] = [
        *speed_tables(summary),
        Text(speeds_legend(summary)),
        *loss_tables(summary),
        Text(LOSSES_LEGEND),
    ]
    return [
        Part("Speed against plain decoding", [_speeds(summary)]),
        Part("What a step costs", [_steps(summary)]),
        Part("All figures", figures),
        Part("Passes over several rows", [_passes(summary)]),
        *parts,
    ]


def _speeds(summary: Row) -> Chart:
    groups, rows = [], []
    for tone, draft in enumerate(summary["drafts"]):
        bars = []
        for row in draft["rows"]:
            measured = row["measured"] or {"mean": None, "low": None, "high": None}
            k = row["k"]
            bars += [
                Bar(
                    f"k = {k}",
                    Estimate(measured["mean"], measured["low"], measured["high"]),
                    tone,
                ),
                Bar("simple formula", Estimate(row["simple_ratio"]), PLAIN),
            ]
            rows.append(
                (
                    draft["label"],
                    str(k),
                    decimals(measured["mean"]),
                    decimals(row["simple_ratio"]),
                    decimals(row["predicted_ratio"]),
                )
            )
        groups.append(Group(draft["label"], bars))
    return Chart(
        grouped_bars(
            "Speed against plain decoding, measured and by the simple formula",
            groups,
            axis="times plain decoding",
            description="For every draft and k one bar of the measured speed-up with its interval "
            "and one of what (1 + k alpha) / (1 + k c) promises.",
        ),
        Table(("draft", "k", "measured", "simple", "exact"), rows),
        caption="Grey: what the formula in circulation promises.",
    )


def _steps(summary: Row) -> Chart:
    stacks, rows = [], []
    for draft in summary["drafts"]:
        for row in draft["rows"]:
            step = row["step"]
            parts = (step["draft"], 1.0, max(0.0, step["pass"] - 1), step["rest"])
            tokens = decimals(row["expected_tokens"])
            name = f"{draft['label']}, k = {row['k']}"
            stacks.append(Stack(name, parts, f"yields {tokens}"))
            rows.append((name, *map(decimals, parts), tokens))
    plain = summary["plain"]
    of_plain = 1 + plain["rest_ms"] / plain["pass_ms"]
    return Chart(
        stacked_bars(
            "The time of a step, in plain passes, and the tokens it yields",
            PARTS,
            stacks,
            axis="plain passes",
            description="A draft pays where a step yields more tokens than plain steps take for "
            "the same time.",
        ),
        Table(("draft", *PARTS, "tokens"), rows),
        caption=f"A plain step takes {of_plain:.2f} plain passes and yields one token. Medians.",
    )


def _passes(summary: Row) -> Table:
    return Table(
        ("rows", "median", "v"),
        [
            (str(each["num_rows"]), milliseconds(each["median_ms"]), decimals(each["v"]))
            for each in summary["passes"]
        ],
        caption="A target pass over several rows, alone, after "
        f"{summary['passes'][0]['context_len']} cached tokens",
    )


def _descriptions(summary: Row) -> list[str]:
    """What the drafts are, and what is missing."""
    said = []
    for draft in summary["drafts"]:
        found = draft["acceptance"]
        said.append(
            f"**{draft['label']}**: {draft['description']}. p and q recorded for "
            f"{found['num_drafts']:,} drafts: {found['num_accepted']:,} tokens accepted, "
            f"{found['num_expected']:,.1f} expected."
        )
    return [*said, *summary["notes"]]


def _facts(summary: Row) -> list[tuple[str, str]]:
    target, origin, options = summary["target"], summary["provenance"], summary["options"]
    facts = [
        ("target", f"{target['name']} in {target['dtype']} on the {target['runs_on']}"),
        ("temperature", f"{options['temperature']:g}"),
        ("rounds", f"{summary['num_rounds']}, {summary['num_prompts']} prompts"),
        ("took", f"{summary['elapsed_s'] / 60:.1f} minutes"),
    ]
    known = ("command", "date", "outpace", "commit", "cpu", "cores_usable", "load_average")
    return facts + [(name, str(origin[name])) for name in known if origin.get(name) is not None]
