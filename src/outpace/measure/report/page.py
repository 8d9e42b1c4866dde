"""One-file HTML pages: no scripts, no outside assets, readable in light and dark, on phones and on
paper.

    page("Title", [Section("Heading", [paragraph("Text"), figure(chart, table)])])

Every function but `page` returns a piece for a section. All of them take plain text and escape it;
only what is `Html` already (charts, other pieces) goes in as it is.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from outpace.measure.report.drawing import patterns
from outpace.measure.report.markup import Html, element, escape, join
from outpace.measure.report.table import Table

_INLINE = re.compile(r"(`[^`]+`|\*\*[^*]+\*\*)")
_CONTENTS_FROM = 4  # sections


@dataclass(frozen=True)
class Section:
    """A heading and the pieces below it."""

    heading: str
    pieces: Sequence[Html]


def page(
    title: str, sections: Sequence[Section], *, lead: Sequence[Html] = (), style: str = ""
) -> str:
    """The whole document: `title` as its heading, then `lead`, then the sections with a list of
    contents where there are four or more. A policy in it forbids scripts and every request.
    style: rules of this page's own, after those that all pages share."""
    style = _style() + style
    body = join(
        [
            patterns(),
            element("h1", escape(title)),
            *lead,
            _contents(sections),
            *(_section(number, section) for number, section in enumerate(sections, 1)),
        ]
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_policy(style))}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>{style}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def paragraph(text: str) -> Html:
    """A paragraph. `**words**` are strong and `` `words` `` are code."""
    return element("p", _inline(text))


def bullets(items: Sequence[str]) -> Html:
    """A list; its items may have `**strong**` words and `` `code` `` as paragraphs may."""
    return element("ul", *(element("li", _inline(item)) for item in items))


def subheading(text: str) -> Html:
    """Names the pieces up to the next one."""
    return element("h3", escape(text))


def facts(pairs: Sequence[tuple[str, str]]) -> Html:
    """Names and their values, such as a provenance."""
    rows = [
        element("div", element("dt", escape(name)), element("dd", escape(value)))
        for name, value in pairs
    ]
    return element("dl", *rows, class_="facts")


def table_of(table: Table) -> Html:
    """A table that scrolls by itself where it is wider than the page."""
    caption = [element("caption", _inline(table.caption))] if table.caption else []
    names = ["name" if index < table.num_names else None for index in range(len(table.headings))]
    head = [
        element("th", escape(heading), scope="col", class_=kind)
        for heading, kind in zip(table.headings, names, strict=True)
    ]
    body = [element("tr", *_cells(row, names)) for row in table.rows]
    shown = element(
        "table", *caption, element("thead", element("tr", *head)), element("tbody", *body)
    )
    # Reachable by keyboard, because what scrolls must be.
    label = table.caption or ", ".join(table.headings)
    return element("div", shown, class_="scroll", tabindex="0", role="group", aria_label=label)


def side_by_side(cells: Sequence[Sequence[Html]]) -> Html:
    """Cells of pieces, beside each other where the page is wide enough for that."""
    return element("div", *(element("div", *cell) for cell in cells), class_="cells")


def folded(summary: str, *pieces: Html) -> Html:
    """Pieces behind a line that opens them."""
    return element("details", element("summary", _inline(summary)), *pieces)


def figure(chart: Html, table: Table, *, caption: str = "") -> Html:
    """A chart, what it says in words, and the same figures as a table behind a line."""
    said = [element("figcaption", _inline(caption))] if caption else []
    return element("figure", chart, *said, folded("These figures as a table", table_of(table)))


def headline(text: str, *details: str) -> Html:
    """The finding, set large, with smaller sentences below it."""
    found = element("p", _inline(text), class_="finding")
    return element("div", found, *(paragraph(each) for each in details), class_="headline")


def warning(text: str) -> Html:
    """A sentence that must not be overlooked, such as that a run was interrupted."""
    return element("p", _inline(text), class_="warning", role="note")


def _inline(text: str) -> Html:
    pieces = []
    for piece in _INLINE.split(text):
        if piece.startswith("`") and len(piece) > 2:
            pieces.append(element("code", escape(piece[1:-1])))
        elif piece.startswith("**") and len(piece) > 4:
            pieces.append(element("strong", escape(piece[2:-2])))
        else:
            pieces.append(escape(piece))
    return join(pieces)


def _cells(row: Sequence[str], kinds: Sequence[str | None]) -> list[Html]:
    return [
        element("th" if index == 0 else "td", escape(cell), class_=kind, scope=scope)
        for index, (cell, kind) in enumerate(zip(row, kinds, strict=True))
        for scope in ["row" if index == 0 else None]
    ]


def _contents(sections: Sequence[Section]) -> Html:
    if len(sections) < _CONTENTS_FROM:
        return Html("")
    links = [
        element("li", element("a", escape(section.heading), href=f"#section-{number}"))
        for number, section in enumerate(sections, 1)
    ]
    return element("nav", element("ul", *links), aria_label="Contents")


def _section(number: int, section: Section) -> Html:
    name = f"section-{number}"
    heading = element("h2", escape(section.heading), id=name)
    return element("section", heading, *section.pieces, aria_labelledby=name)


def _style() -> str:
    text = Path(__file__).with_name("style.css").read_text(encoding="utf-8")
    assert "<" not in text, "the style must not be able to end its element"
    return text


def _policy(style: str) -> str:
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
