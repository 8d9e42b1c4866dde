"""Documents as GitHub Markdown, the same bytes for the same document."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

from outpace.measure.report.document import (
    Block,
    Bullets,
    Cells,
    Chart,
    Document,
    Facts,
    Finding,
    Folded,
    Subheading,
    Text,
    Warning,
)
from outpace.measure.report.markup import escape
from outpace.measure.report.table import Table

_LINE_LENGTH = 120
_CODE = re.compile(r"(`[^`]+`)")
# Underscores between letters are no emphasis, and code names would be full of backslashes.
_SPECIAL = re.compile(r"([\\`*<>|\[\]~]|&(?=#?\w+;)|(?<![^\W_])_|_(?![^\W_]))")
_BLOCK_START = re.compile(r"^([-+#>=]|\d+(?=[.)](?:\s|$)))")


def markdown_of(document: Document, *, comment: str = "") -> str:
    """The document as Markdown; `comment` stands at the top, hidden where it is rendered."""
    hidden = comment.replace("-->", "-- >")
    pieces = [f"<!-- {hidden} -->"] if comment else []
    pieces.append(f"# {_prose(document.title)}")
    pieces.extend(_block(block) for block in document.lead)
    for part in document.parts:
        pieces.append(f"## {_prose(part.heading)}")
        pieces.extend(_block(block) for block in part.blocks)
    return "\n\n".join(pieces) + "\n"


def table_text(table: Table) -> str:
    """The table alone: names to the left, figures to the right, its caption above it."""
    rules = ["---" if index < table.num_names else "---:" for index in range(len(table.headings))]
    rows = [[cell_text(cell) for cell in row] for row in (table.headings, *table.rows)]
    lines = [_row(rows[0]), _row(rules), *(_row(row) for row in rows[1:])]
    caption = [_wrapped(table.caption), ""] if table.caption else []
    return "\n".join([*caption, *lines])


def cell_text(text: str) -> str:
    """`text` as a cell that shows it as it is."""
    return _escaped(" ".join(text.split()))


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _prose(text: str) -> str:
    """Escaped but for `**strong**` and `` `code` ``, which mean here what they mean in Markdown."""
    pieces = _CODE.split(" ".join(text.split()))
    return "".join(
        piece if _CODE.fullmatch(piece) else "**".join(map(_escaped, piece.split("**")))
        for piece in pieces
    )


def _escaped(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", text)


def _wrapped(text: str, indent: str = "") -> str:
    lines = textwrap.wrap(
        _prose(text),
        _LINE_LENGTH - len(indent),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return f"\n{indent}".join(_BLOCK_START.sub(_unlike_a_block, line) for line in lines)


def _unlike_a_block(start: re.Match[str]) -> str:
    return f"{start[0]}\\" if start[0][0].isdigit() else f"\\{start[0]}"


def _bullets(items: Sequence[str]) -> str:
    return "\n".join(f"- {_wrapped(item, '  ')}" for item in items)


def _block(block: Block) -> str:
    match block:
        case Text(text):
            return _wrapped(text)
        case Bullets(items):
            return _bullets(items)
        case Subheading(text):
            return f"### {_prose(text)}"
        case Finding(text, details):
            return "\n\n".join([_wrapped(text), *([_bullets(details)] if details else [])])
        case Warning(text):
            return f"> {_wrapped(f'**Note:** {text}', '> ')}"
        case Facts(pairs):
            return table_text(Table(("", ""), pairs, num_names=2))
        case Table():
            return table_text(block)
        case Chart(_, table, caption):
            return "\n\n".join([*([_wrapped(caption)] if caption else []), table_text(table)])
        case Cells(cells):
            return "\n\n".join(_block(each) for cell in cells for each in cell)
        case Folded(summary, blocks):
            inside = "\n\n".join(_block(each) for each in blocks)
            # Inside of HTML, Markdown's own marks mean nothing.
            shown = escape(summary.replace("`", ""))
            return f"<details><summary>{shown}</summary>\n\n{inside}\n\n</details>"
