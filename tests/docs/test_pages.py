"""What the pages point to exists, and the source they quote is the source."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from doc_blocks import DOCS, python_blocks

ROOT = DOCS.parent
PACKAGE = ROOT / "src" / "outpace"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.glob("*.md"))]
# [text](target) and [label]: target
LINK = re.compile(r"\]\(([^)\s]+)\)|^\[[^\]]+\]: (\S+)$", re.MULTILINE)
PATH = re.compile(r"`((?:[\w.-]+/)+[\w.-]*)`")
ROOTS = (PACKAGE, PACKAGE.parent, ROOT)


def links(text: str) -> list[str]:
    """The link targets of a page, fenced blocks left out."""
    return [a or b for a, b in LINK.findall(re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, spelled as GitHub does."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken(page: Path, text: str) -> list[str]:
    found = []
    for link in links(text):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    assert broken(page, page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_exist(page: Path) -> None:
    named = set(PATH.findall(page.read_text(encoding="utf-8")))
    files = {name for name in named if re.search(r"(\.(py|md|toml|sh|txt)|/)$", name)}
    assert [name for name in sorted(files) if not any((r / name).exists() for r in ROOTS)] == []


def test_the_architecture_quotes_the_step() -> None:
    (block,) = python_blocks(DOCS / "architecture.md")
    assert block.code in (PACKAGE / "engine" / "engine.py").read_text(encoding="utf-8")


def test_the_checks_can_fail() -> None:
    page = DOCS / "architecture.md"
    text = (
        "[a](log.md) [b](nowhere.md) [c](log.md#nothing)\n```\n[d](in-a-block.md)\n```\n[e]: no\n"
    )
    assert broken(page, text) == ["nowhere.md", "log.md#nothing", "no"]
    assert PATH.findall("`engine/llm.py` and `plain.py`") == ["engine/llm.py"]
