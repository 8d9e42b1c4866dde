"""Headless Chromium for the page. Without it these tests are skipped, and the summary says so; with
OUTPACE_REQUIRE_BROWSER=1 they fail instead."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Request, sync_playwright
from servers import RunningServer, serving

OpenPage = Callable[..., Page]


def _chromium() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found:
        return found
    reason = "no chromium on this machine; on Debian: apt-get install chromium"
    if os.environ.get("OUTPACE_REQUIRE_BROWSER") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="module", autouse=True)
def _unchecked_shapes(unchecked_shapes_in_module: None) -> None:
    """The engine behind the page has its own tests."""


# Of a module, not of the session: while it lives playwright has an event loop of its own in this
# thread, and asynchronous tests of other folders could not have theirs.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = _chromium()
    with sync_playwright() as playwright:
        # Containers often lack what the sandbox needs; only our own page is opened.
        launched = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-gpu"]
        )
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def server(browser: Browser) -> Iterator[RunningServer]:
    """One server with a tiny model for all tests of a module; not started without a browser."""
    with serving() as running:
        yield running


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """`open_page(url, noise=(), **context)`: a page in a context of its own, once it knows the
    server.

    At the end of the test nothing may have been said in the console, unless a part of it is in
    `noise`, and no request may have gone to another origin.
    """
    contexts: list[BrowserContext] = []
    checks: list[Callable[[], None]] = []

    def open_one(url: str, *, noise: tuple[str, ...] = (), **options: Any) -> Page:
        context = browser.new_context(**options)
        context.set_default_timeout(10_000)
        contexts.append(context)
        page = context.new_page()
        said: list[str] = []
        asked: list[Request] = []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request))

        def check() -> None:
            unexpected = [text for text in said if not any(part in text for part in noise)]
            assert unexpected == []
            assert [each.url for each in asked if not each.url.startswith(url)] == []

        checks.append(check)
        page.goto(url)
        page.wait_for_selector("#model:not(:empty), #error:not([hidden])")
        return page

    yield open_one
    for check in checks:
        check()
    for context in contexts:
        context.close()
