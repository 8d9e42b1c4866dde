"""Pages: one file that asks for nothing, runs nothing and shows texts as they are."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser

import pytest

from outpace.measure.report import page as pieces
from outpace.measure.report.markup import Html, element, escape
from outpace.measure.report.numbers import (
    count,
    decimals,
    interval,
    milliseconds,
    percent,
    significant,
)
from outpace.measure.report.page import Section, page
from outpace.measure.report.svg import Stack, stacked_bars
from outpace.measure.report.table import Table

HOSTILE = "\"'><script>alert(1)</script><b>\ud800\x00"
VOID = {"meta", "link", "br"}


class Checker(HTMLParser):
    """Collects elements, ids and the text of elements; fails where they do not nest."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.text += data

    def names(self) -> set[str]:
        return {name for name, _ in self.seen}


def full_page(text: str) -> str:
    table = Table([text, text], [[text, text]], text)
    chart = stacked_bars(text, [text], [Stack(text, [1.0], text)], axis=text)
    shown = [
        pieces.headline(text, text),
        pieces.warning(text),
        pieces.paragraph(text),
        pieces.bullets([text]),
        pieces.facts([(text, text)]),
        pieces.subheading(text),
        pieces.table_of(table),
        pieces.figure(chart, table, caption=text),
        pieces.folded(text, pieces.paragraph(text)),
        pieces.side_by_side([[pieces.paragraph(text)]]),
    ]
    return page(text, [Section(text, shown)] * 4, lead=shown)


def test_no_text_becomes_markup_wherever_it_stands() -> None:
    written = full_page(HOSTILE)
    written.encode()
    read = Checker(written)
    assert not {"script", "b"} & read.names()
    assert HOSTILE.replace("\ud800", "\ufffd").replace("\x00", "\u2400") in read.text
    for _, attributes in read.seen:
        assert not any(name.startswith("on") for name in attributes)


def test_the_page_asks_for_nothing_and_its_policy_allows_nothing_but_its_style() -> None:
    written = full_page("text")
    read = Checker(written)
    assert not {"script", "link", "img", "iframe", "object", "form"} & read.names()
    addresses = [a[k] for _, a in read.seen for k in ("src", "href", "action") if k in a]
    assert addresses
    assert all(address and address.startswith("#section-") for address in addresses)
    assert not any("style" in attributes for _, attributes in read.seen)
    (style,) = re.findall(r"<style>(.*?)</style>", written, re.DOTALL)
    assert "@import" not in style
    assert set(re.findall(r"url\(([^)]*)\)", style)) <= {f"#pattern-{n}" for n in range(8)}
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    (policy,) = [a["content"] for n, a in read.seen if a.get("http-equiv")]
    assert policy is not None
    assert policy.startswith("default-src 'none';")
    assert f"style-src 'sha256-{digest}'" in policy
    assert "unsafe" not in policy


def test_ids_are_unique_and_links_lead_somewhere() -> None:
    read = Checker(full_page("text"))
    ids = [attributes["id"] for _, attributes in read.seen if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = {a["href"] for n, a in read.seen if n == "a"}
    assert len(targets) == 4
    assert targets <= {f"#{name}" for name in ids}
    used = {a["aria-labelledby"] for _, a in read.seen if "aria-labelledby" in a}
    assert used <= set(ids)


def test_every_chart_has_its_figures_as_a_table_beside_it() -> None:
    read = Checker(full_page("text"))
    names = [name for name, _ in read.seen]
    assert names.count("figure") == 5
    assert names.count("table") == 10


def test_a_short_page_has_no_list_of_contents() -> None:
    assert "nav" not in Checker(page("t", [Section("s", [])])).names()


def test_strong_words_and_code_within_sentences() -> None:
    shown = pieces.paragraph("a **b** `c**d**` <e> * `")
    assert shown == "<p>a <strong>b</strong> <code>c**d**</code> &lt;e&gt; * `</p>"


def test_cells_know_whether_they_are_names_or_figures() -> None:
    shown = pieces.table_of(Table(["method", "column", "ratio"], [["a", "b", "1"]], num_names=2))
    assert '<th class="name" scope="row">a</th><td class="name">b</td><td>1</td>' in shown


def test_ragged_tables_are_refused() -> None:
    with pytest.raises(AssertionError):
        Table(["a", "b"], [["only one"]])


def test_only_what_was_escaped_is_markup() -> None:
    assert isinstance(escape("<"), Html)
    assert element("p", escape("<"), class_="a", aria_label='"', hidden=None) == (
        '<p class="a" aria-label="&quot;">&lt;</p>'
    )
    assert escape("a\tb\nc\x1b\x85") == "a\tb\nc\u241b\ufffd"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.02134, "0.0213"),
        (3.4729, "3.47"),
        (48.12, "48.1"),
        (9.996, "10.0"),
        (999.6, "1,000"),
        (12345.6, "12,346"),
        (-2.5, "-2.50"),
        (None, "-"),
        (float("inf"), "-"),
    ],
)
def test_three_significant_figures(value: float | None, text: str) -> None:
    assert significant(value) == text
    assert milliseconds(value) == (text if text == "-" else f"{text} ms")


def test_figures_are_written_alike_everywhere() -> None:
    assert count(12345) == "12,345"
    assert decimals(1.8371) == "1.84"
    assert percent(0.873) == "87 %"
    assert interval(1.8371, 1.7149, 1.98) == "1.84 (1.71 to 1.98)"
    assert interval(1.8371, None, 1.98) == "1.84"
    unknown = [count(None), decimals(None), percent(None), percent(float("nan"))]
    assert unknown == ["-"] * 4
