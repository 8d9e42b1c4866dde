"""The report of `outpace bench`: one document from its summary, as a page or as Markdown."""

from __future__ import annotations

from collections.abc import Iterator

from outpace.measure.report import bench_charts as charts
from outpace.measure.report import bench_tables as tables
from outpace.measure.report import bench_texts as texts
from outpace.measure.report import bench_words as words
from outpace.measure.report.bench_views import Values, ours, place_name, singles, tones
from outpace.measure.report.document import (
    Block,
    Bullets,
    Cells,
    Chart,
    Document,
    Facts,
    Finding,
    Folded,
    Part,
    Subheading,
    Text,
    Warning,
    html_of,
)
from outpace.measure.report.markdown import markdown_of
from outpace.measure.report.numbers import counted


def bench_html(summary: Values) -> str:
    """One HTML file that shows the summary of `outpace bench`, whatever there is of it."""
    return html_of(bench_document(summary))


def bench_markdown(summary: Values) -> str:
    """The same as GitHub Markdown, the same bytes for the same summary. A comment at its top says
    which command wrote it."""
    command = summary["provenance"].get("command") or "outpace bench"
    comment = f"Written by this command, not by hand; to change it, run it again: {command}"
    return markdown_of(bench_document(summary), comment=comment)


def bench_document(summary: Values) -> Document:
    """What the page and the Markdown file say. Parts of which nothing was measured are left out."""
    lead: list[Block] = [] if summary["complete"] else [Warning(texts.INTERRUPTED)]
    lead.append(Finding(words.finding(summary), words.case_findings(summary)))
    parts = [
        Part(
            "How this was measured",
            [Text(texts.METHOD), Facts(tables.provenance_facts(summary))],
        ),
        Part("Speed-up by column", _told(texts.SPEEDUP, _speedups(summary))),
        Part("Acceptance by position", _told(texts.ACCEPTANCE, _acceptance(summary))),
        Part("Where a step's time goes", _told(texts.STEPS, _steps(summary))),
        Part("What a pass over n rows costs", _told(texts.PASSES, _passes(summary))),
        Part("Speed-up by batch", _told(texts.CROSSOVER, _crossover(summary))),
        Part("Other engines", _peers(summary)),
        Part("Are the texts the same?", _sameness(summary)),
        Part("Every figure", _figures(summary)),
        Part("Notes", [Bullets(summary["notes"])] if summary["notes"] else []),
        Part("How to read this", [Bullets(texts.READING)]),
    ]
    title = f"Speculative decoding measured: {summary['model']['name']}"
    return Document(title, lead, [part for part in parts if part.blocks])


def _told(text: str, cells: list[list[Block]]) -> list[Block]:
    """The cells with what they show before them; nothing where there is none."""
    return [Text(text), Cells(cells)] if cells else []


def _speedups(summary: Values) -> list[list[Block]]:
    cells: list[list[Block]] = []
    for path, setting in singles(summary):
        if ours(setting):
            place = place_name(summary, path, setting["temperature"])
            chart = charts.speedup_chart(setting, tones(summary), place)
            cells.append([Subheading(place), Chart(chart, tables.speedup_table(setting))])
    return cells


def _acceptance(summary: Values) -> list[list[Block]]:
    cells: list[list[Block]] = []
    for path, setting in singles(summary):
        table = tables.acceptance_table(setting)
        if len(table.headings) > 2:
            place = place_name(summary, path, setting["temperature"])
            chart = charts.acceptance_chart(setting, tones(summary), place)
            cells.append([Subheading(place), Chart(chart, table)])
    return cells


def _steps(summary: Values) -> list[list[Block]]:
    cells: list[list[Block]] = []
    for path, setting in singles(summary):
        place = place_name(summary, path, setting["temperature"])
        table = tables.steps_table(setting)
        steps = [Chart(charts.steps_chart(setting, place), table)] if table.rows else []
        shown = [*steps, *_timelines(path, setting["temperature"], place)]
        if shown:
            cells.append([Subheading(place), *shown])
    return cells


def _timelines(path: Values, temperature: float, place: str) -> Iterator[Chart]:
    found = [
        each for each in path["timelines"] if each["temperature"] == temperature and each["steps"]
    ]
    for prompt in dict.fromkeys(each["prompt"] for each in found):
        shown = [each for each in found if each["prompt"] == prompt]
        yield Chart(
            charts.timeline_chart(shown, f"{place}, {prompt}"),
            tables.timelines_table(shown),
            caption=f"The answer to prompt {words.quoted(prompt)}, step by step.",
        )


def _passes(summary: Values) -> list[list[Block]]:
    return [
        [Subheading(path["path"]), Chart(charts.passes_chart(path), tables.passes_table(path))]
        for path in summary["paths"]
        if path["passes"]
    ]


def _crossover(summary: Values) -> list[list[Block]]:
    entries = [entry for entry in summary["crossover"] if len(entry["ratios"]) > 1]
    cells: list[list[Block]] = []
    for key in dict.fromkeys((entry["path"], entry["temperature"]) for entry in entries):
        shown = [entry for entry in entries if (entry["path"], entry["temperature"]) == key]
        place = f"{key[0]}, temperature {key[1]:g}"
        chart = charts.crossover_chart(shown, tones(summary), place)
        said = words.crossover_sentence(shown)
        cells.append([Subheading(place), Chart(chart, tables.crossover_table(shown), caption=said)])
    return cells


def _peers(summary: Values) -> list[Block]:
    blocks: list[Block] = []
    for path, setting in singles(summary):
        if any(method["is_peer"] for method in setting["methods"]):
            place = place_name(summary, path, setting["temperature"])
            blocks.extend([Subheading(place), tables.peers_table(setting)])
    return [Text(texts.PEERS), *blocks] if blocks else []


def _sameness(summary: Values) -> list[Block]:
    settings = [
        (f"{path['path']}, batch {setting['batch']}", setting)
        for path in summary["paths"]
        for setting in path["settings"]
        if setting["temperature"] == 0
    ]
    table = tables.sameness_table(settings)
    blocks: list[Block] = [Text(words.sameness_sentence(summary))]
    return [*blocks, table] if table.rows else blocks


def _figures(summary: Values) -> list[Block]:
    return [
        Folded(
            f"{path['path']}, temperature {setting['temperature']:g}, batch {setting['batch']}: "
            f"{counted(setting['num_prompts'], 'prompt')}, "
            f"{counted(setting['num_rounds'], 'round')}",
            [tables.figures_table(setting)],
        )
        for path in summary["paths"]
        for setting in path["settings"]
        if setting["methods"]
    ]
