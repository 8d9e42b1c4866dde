"""docs/misconceptions.md runs from top to bottom, and leaves no mistake without numbers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from doc_blocks import DOCS, Block, python_blocks, run_block

PAGE = DOCS / "misconceptions.md"
NUM_MISTAKES = 15
GOLDEN = json.loads((DOCS.parent / "tests" / "vectors" / "golden.json").read_text())


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """The names that the page defines once all of its blocks have run in order."""
    namespace: dict[str, Any] = {}
    for block in python_blocks(PAGE):
        run_block(PAGE, block, namespace)
    return namespace


def test_every_block_runs_in_order(page: dict[str, Any]) -> None:
    assert len(python_blocks(PAGE)) > NUM_MISTAKES
    assert "law_of_two" in page  # defined by the last block


def test_the_formulas_reproduce_the_published_tables(page: dict[str, Any]) -> None:
    tokens_per_pass, speedup = page["tokens_per_pass"], page["speedup"]
    for alpha, by_length in GOLDEN["E[tokens per step] (1-a^(K+1))/(1-a)"].items():
        for K, expected in by_length.items():
            assert tokens_per_pass(float(alpha), int(K)) == pytest.approx(expected, abs=1e-6)
    best = GOLDEN["optimal gamma and speedup (alpha -> c -> [gamma*,speedup])"]
    for alpha, by_cost in best.items():
        for c, (_, expected) in by_cost.items():
            found = max(speedup(float(alpha), K, float(c)) for K in range(65))
            assert found == pytest.approx(expected, abs=1e-4)


def test_every_mistake_is_shown_by_numbers_that_could_be_wrong() -> None:
    sections = re.split(r"^## (?=\d+\. )", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    numbers = [int(section.split(".")[0]) for section in sections]
    assert numbers == list(range(1, NUM_MISTAKES + 1))
    for number, section in zip(numbers, sections, strict=True):
        assert "```python" in section, f"mistake {number} is not shown"
        assert re.search(r"^assert ", section, re.MULTILINE), f"mistake {number} asserts nothing"


def test_a_wrong_number_on_the_page_would_fail(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("text\n\n```python\nx = 1\n```\n\n```python\nassert x == 2\n```\n")
    first, second = python_blocks(page)
    assert second == Block(8, "assert x == 2\n")
    namespace: dict[str, Any] = {}
    run_block(page, first, namespace)
    with pytest.raises(AssertionError) as caught:
        run_block(page, second, namespace)
    assert caught.traceback[-1].lineno + 1 == 8
