"""Documents as Markdown: what GitHub would show is what the document says."""

from __future__ import annotations

from outpace.measure.report.document import (
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
from outpace.measure.report.markdown import cell_text, markdown_of, table_text
from outpace.measure.report.svg import Stack, stacked_bars
from outpace.measure.report.table import Table

TABLE = Table(["method", "ratio"], [["a|b", "1.00"], ["draft_model *x*", "2.00"]])
CHART = Chart(stacked_bars("T", ["p"], [Stack("s", [1.0])], axis="ms"), TABLE, "Said of it.")


def body(*blocks: object) -> str:
    """What a document of these blocks alone has below its headings."""
    written = markdown_of(Document("T", [], [Part("P", blocks)]))  # type: ignore[arg-type]
    return written.removeprefix("# T\n\n## P\n\n").removesuffix("\n")


def test_tables_keep_their_columns_whatever_their_cells_hold() -> None:
    assert table_text(TABLE).splitlines() == [
        "| method | ratio |",
        "| --- | ---: |",
        "| a\\|b | 1.00 |",
        "| draft_model \\*x\\* | 2.00 |",
    ]


def test_cells_show_marks_as_they_are() -> None:
    assert cell_text("<script>\n`x` [a](b) __y__ a_b ~z~ &amp; \\") == (
        "\\<script\\> \\`x\\` \\[a\\](b) \\_\\_y\\_\\_ a_b \\~z\\~ \\&amp; \\\\"
    )
    assert cell_text("a & b") == "a & b"


def test_paragraphs_are_wrapped_and_never_turn_into_other_blocks() -> None:
    words = ["word"] * 23 + ["1.", "- x", "# y", "> z", "+ w"] + ["word"] * 23
    for start in range(len(words)):
        lines = body(Text(" ".join(words[start:] + words[:start]))).splitlines()
        assert all(len(line) <= 121 for line in lines)
        assert not any(line.startswith(("1. ", "- ", "# ", "> ", "+ ")) for line in lines)
    assert body(Text("2. two")) == "2\\. two"
    assert body(Text("-1 is less")) == "\\-1 is less"


def test_strong_words_and_code_are_kept() -> None:
    assert body(Text("**a** `b_*c*` d*e <f>")) == "**a** `b_*c*` d\\*e \\<f\\>"


def test_every_block_is_written() -> None:
    assert body(Bullets(["a", "b"])) == "- a\n- b"
    assert body(Subheading("S <b>")) == "### S \\<b\\>"
    assert body(Finding("F", ["d"])) == "F\n\n- d"
    assert body(Warning("w")) == "> **Note:** w"
    assert body(Facts([("a", "b")])) == "|  |  |\n| --- | --- |\n| a | b |"
    assert body(CHART) == f"Said of it.\n\n{table_text(TABLE)}"
    assert body(Cells([[Text("a")], [Text("b")]])) == "a\n\nb"
    assert body(Folded("s <b> `c`", [Text("a")])) == (
        "<details><summary>s &lt;b&gt; c</summary>\n\na\n\n</details>"
    )
    assert body(Table(["a"], [["b"]], "Caption.")) == "Caption.\n\n| a |\n| --- |\n| b |"


def test_a_comment_stands_at_the_top_and_cannot_end_early() -> None:
    written = markdown_of(Document("T", [Text("lead")], []), comment="by --> me --html x")
    assert written == "<!-- by -- > me --html x -->\n\n# T\n\nlead\n"


def test_the_page_shows_the_same_blocks() -> None:
    blocks = [
        Text("text 1"),
        Bullets(["text 2"]),
        Subheading("text 3"),
        Finding("text 4", ["text 5"]),
        Warning("text 6"),
        Facts([("text 7", "text 8")]),
        CHART,
        Cells([[Text("text 9")]]),
        Folded("text 10", [TABLE]),
    ]
    document = Document("title", [Text("text 0")], [Part("part", blocks)])
    page, markdown = html_of(document), markdown_of(document)
    for said in [*(f"text {n}" for n in range(11)), "title", "part", "Said of it.", "draft_model"]:
        assert said in page
        assert said in markdown
    assert page.count("<table>") == 2
