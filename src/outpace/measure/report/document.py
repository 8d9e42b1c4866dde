"""A report as values, before it is written as a page or as Markdown.

One document says everything once, so that the page and the file cannot differ:
`html_of(document)` and `markdown.markdown_of(document)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outpace.measure.report import page as html
from outpace.measure.report.markup import Html
from outpace.measure.report.table import Table


@dataclass(frozen=True)
class Text:
    """A paragraph. `**words**` are strong, `` `words` `` are code."""

    text: str


@dataclass(frozen=True)
class Bullets:
    """A list of texts."""

    items: Sequence[str]


@dataclass(frozen=True)
class Subheading:
    """Names the blocks up to the next one."""

    text: str


@dataclass(frozen=True)
class Finding:
    """The result in a sentence, and sentences that say more."""

    text: str
    details: Sequence[str] = ()


@dataclass(frozen=True)
class Warning:
    """A sentence that must not be overlooked."""

    text: str


@dataclass(frozen=True)
class Facts:
    """Names and their values."""

    pairs: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Chart:
    """A chart and its figures; Markdown shows the table alone."""

    chart: Html
    table: Table
    caption: str = ""


@dataclass(frozen=True)
class Cells:
    """Groups of blocks that stand beside each other where there is room."""

    cells: Sequence[Sequence[Block]]


@dataclass(frozen=True)
class Folded:
    """Blocks behind a line that opens them."""

    summary: str
    blocks: Sequence[Block]


Block = Text | Bullets | Subheading | Finding | Warning | Facts | Table | Chart | Cells | Folded


@dataclass(frozen=True)
class Part:
    """A heading and the blocks below it."""

    heading: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Document:
    """`lead` comes before the first heading."""

    title: str
    lead: Sequence[Block]
    parts: Sequence[Part]


def html_of(document: Document) -> str:
    """The document as one HTML file."""
    sections = [
        html.Section(part.heading, [_html_block(block) for block in part.blocks])
        for part in document.parts
    ]
    lead = [_html_block(block) for block in document.lead]
    return html.page(document.title, sections, lead=lead)


def _html_block(block: Block) -> Html:
    match block:
        case Text(text):
            return html.paragraph(text)
        case Bullets(items):
            return html.bullets(items)
        case Subheading(text):
            return html.subheading(text)
        case Finding(text, details):
            return html.headline(text, *details)
        case Warning(text):
            return html.warning(text)
        case Facts(pairs):
            return html.facts(pairs)
        case Table():
            return html.table_of(block)
        case Chart(chart, table, caption):
            return html.figure(chart, table, caption=caption)
        case Cells(cells):
            return html.side_by_side([[_html_block(each) for each in cell] for cell in cells])
        case Folded(summary, blocks):
            return html.folded(summary, *(_html_block(each) for each in blocks))
