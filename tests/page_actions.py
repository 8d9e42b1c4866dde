"""What tests do with the page, and what they read off it."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import Locator, Page


def fill(page: Page, **fields: Any) -> None:
    """Fill in fields by id, "_" for "-"."""
    for name, value in fields.items():
        page.fill(f"#{name.replace('_', '-')}", str(value))


def wait_until_done(page: Page) -> None:
    page.wait_for_selector("#send:enabled")


def send(page: Page) -> None:
    """Send the form and wait until the answer has ended, well or badly."""
    page.click("#send")
    wait_until_done(page)


def open_table(page: Page) -> Locator:
    """Unfold the table of an answer's steps; its rows."""
    page.click("text=The steps as a table")
    rows = page.locator(".as-table tbody tr")
    rows.first.wait_for()
    return rows


def shown_tokens(page: Page, run: int = 0) -> list[tuple[str, str]]:
    """(text, kind) of every token of an answer."""
    tokens = page.locator(".run").nth(run).locator(".answer .token")
    found: list[list[str]] = tokens.evaluate_all(
        "all => all.map(each => [each.textContent, each.className.replace('token ', '')])"
    )
    return [(text, kind) for text, kind in found]


def shown_steps(page: Page, run: int = 0) -> list[dict[str, Any]]:
    """Each column of the timeline: drafted [(text, held)], own (text, kind) or None; texts with
    visible spaces."""
    columns = page.locator(".run").nth(run).locator(".timeline .step")
    read = """all => all.map(column => {
      const text = piece => piece.querySelector(".piece-text").textContent;
      const own = column.querySelector(".own");
      return {
        drafted: [...column.querySelectorAll(".held, .dropped")].map(
          piece => [text(piece), piece.classList.contains("held")]),
        own: own && [text(own), own.className.replace("piece own ", "")],
      };
    })"""
    found: list[dict[str, Any]] = columns.evaluate_all(read)
    return found


def visible(text: str) -> str:
    """As the page writes a token that stands alone."""
    return text.replace("\n", "↵").replace("\t", "⇥").replace(" ", "␣") or "∅"


def measure(page: Page, name: str, run: int = 0) -> str:
    return page.locator(".run").nth(run).locator(f"[data-measure={name}]").inner_text()
