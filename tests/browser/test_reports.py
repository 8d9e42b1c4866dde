"""The benchmark's report in a browser: nothing runs, nothing is asked for, all is in sight."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bench_summaries import Summary, interrupted, one_method, summary
from playwright.sync_api import Browser, BrowserContext, Page

from outpace.measure.report.bench_report import bench_html
from outpace.measure.report.page import Section, page, paragraph

OpenReport = Callable[..., Page]

# Texts of charts that leave their chart, or that lie over one another.
CLASHES = """() => [...document.querySelectorAll("svg.chart")].flatMap(svg => {
    const chart = svg.getBoundingClientRect();
    const texts = [...svg.querySelectorAll("text")].map(t => [t, t.getBoundingClientRect()]);
    const out = texts.filter(([, b]) =>
        b.left < chart.left - 1 || b.right > chart.right + 1 ||
        b.top < chart.top - 1 || b.bottom > chart.bottom + 1);
    const over = texts.filter(([, a], i) => texts.slice(i + 1).some(([, b]) =>
        a.left < b.right - 2 && b.left < a.right - 2 &&
        a.top < b.bottom - 4 && b.top < a.bottom - 4));
    return [...out, ...over].map(([t]) => `${svg.getAttribute("aria-label")}: ${t.textContent}`);
})"""


@pytest.fixture
def open_report(browser: Browser, tmp_path: Path) -> Iterator[OpenReport]:
    """`open_report(html, **context)`: the page as a file. At the end nothing may have been said in
    the console, and nothing asked for but the file itself."""
    contexts: list[BrowserContext] = []
    said: list[str] = []
    asked: list[str] = []

    def open_one(html: str, **options: Any) -> Page:
        file = tmp_path / f"{len(contexts)}.html"
        file.write_text(html, encoding="utf-8")
        context = browser.new_context(**options)
        contexts.append(context)
        opened = context.new_page()
        opened.on("console", lambda message: said.append(message.text))
        opened.on("pageerror", lambda error: said.append(str(error)))
        opened.on("dialog", lambda dialog: said.append(dialog.message))
        opened.on("request", lambda request: asked.append(request.url))
        opened.goto(file.as_uri())
        return opened

    yield open_one
    assert said == []
    assert [url for url in asked if not url.endswith(".html")] == []
    for context in contexts:
        context.close()


@pytest.mark.parametrize("width", [380, 1100])
@pytest.mark.parametrize("make", [summary, one_method, interrupted])
def test_nothing_is_cut_off_or_lies_over_another(
    open_report: OpenReport, make: Callable[[], Summary], width: int
) -> None:
    shown = open_report(bench_html(make()), viewport={"width": width, "height": 800})
    assert shown.evaluate("document.documentElement.scrollWidth") <= width
    assert shown.evaluate(CLASHES) == []
    sizes = shown.evaluate(
        """[...document.querySelectorAll("svg.chart text")].map(t =>
           parseFloat(getComputedStyle(t).fontSize) * t.getScreenCTM().a)"""
    )
    assert all(size >= 8 for size in sizes)


def test_the_check_for_clashes_finds_them(open_report: OpenReport) -> None:
    shown = open_report(bench_html(one_method()))
    shown.evaluate(
        """document.querySelector("svg.chart text").setAttribute("x", "-40");
           const names = document.querySelectorAll("svg.chart text[text-anchor=end]");
           names[1].setAttribute("y", names[0].getAttribute("y"))"""
    )
    assert shown.evaluate(CLASHES)


def test_wide_tables_scroll_by_themselves(open_report: OpenReport) -> None:
    shown = open_report(bench_html(summary()), viewport={"width": 380, "height": 800})
    shown.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert shown.evaluate("document.documentElement.scrollWidth") <= 380
    inner = shown.evaluate(
        "[...document.querySelectorAll('.scroll')].map(d => d.scrollWidth - d.clientWidth)"
    )
    assert max(inner) > 100


def test_figures_open_by_keyboard(open_report: OpenReport) -> None:
    shown = open_report(bench_html(one_method()))
    table = shown.locator("figure table").first
    assert not table.is_visible()
    shown.locator("figure summary").first.focus()
    shown.keyboard.press("Enter")
    assert table.is_visible()
    assert shown.get_by_role("img").first.get_attribute("aria-label")


def luminance(colour: str) -> float:
    """Relative luminance of rgb(r, g, b), as WCAG defines it."""
    channels = [int(part) / 255 for part in colour[4:-1].split(",")]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first: str, second: str) -> float:
    low, high = sorted([luminance(first), luminance(second)])
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_and_tones_stand_out_in_light_and_dark(open_report: OpenReport, scheme: str) -> None:
    shown = open_report(bench_html(summary()), color_scheme=scheme)
    surface = shown.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (luminance(surface) < 0.1) == (scheme == "dark")
    texts = shown.evaluate(
        """["p", "a", "h2", "caption, dt", "summary", "thead th"].map(s =>
           getComputedStyle(document.querySelector(s)).color)"""
    )
    chart_texts = shown.evaluate(
        "[...document.querySelectorAll('.chart text')].map(t => getComputedStyle(t).fill)"
    )
    assert all(contrast(surface, each) >= 4.5 for each in {*texts, *chart_texts})
    tones = shown.evaluate(
        """[...document.querySelectorAll(".patterns [class^=base]")].map(r =>
           getComputedStyle(r).fill)"""
    )
    assert len(tones) == 7
    assert all(contrast(surface, each) >= 3 for each in tones)


def test_patterns_are_found(open_report: OpenReport) -> None:
    """A bar whose pattern is missing would not be drawn at all."""
    shown = open_report(bench_html(summary()))
    missing = shown.evaluate(
        """[...document.querySelectorAll(".chart rect")].map(r => getComputedStyle(r).fill)
           .filter(f => f.startsWith("url"))
           .filter(f => !document.querySelector(f.match(/#[\\w-]+/)[0]))"""
    )
    used = shown.evaluate("document.querySelectorAll('.chart .fill-1').length")
    assert missing == []
    assert used > 0


def test_printed_pages_show_what_is_folded_in_light_colours(open_report: OpenReport) -> None:
    shown = open_report(bench_html(one_method()), color_scheme="dark")
    shown.emulate_media(media="print")
    surface = shown.evaluate("getComputedStyle(document.body).backgroundColor")
    assert luminance(surface) > 0.9
    assert shown.locator("figure table").first.is_visible()
    assert not shown.locator("nav").is_visible()


def test_scripts_could_not_run_even_as_markup(browser: Browser) -> None:
    """The policy holds where escaping would have failed."""
    html = page("t", [Section("s", [paragraph("x")])])
    broken = html.replace("<p>x</p>", "<p>x</p><script>document.title = 'ran'</script>")
    assert broken != html
    said: list[str] = []
    with browser.new_context() as context:
        opened = context.new_page()
        opened.on("console", lambda message: said.append(message.text))
        opened.set_content(broken)
        assert opened.title() == "t"
    assert any("Content Security Policy" in text for text in said)
