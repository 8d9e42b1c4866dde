"""docs/losslessness.md: its examples run, and every test it names exists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from doc_blocks import DOCS, python_blocks, run_block

ROOT = DOCS.parent
PAGE = DOCS / "losslessness.md"
_NAMED = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


def named_tests(text: str) -> list[tuple[str, str]]:
    return _NAMED.findall(text)


def is_there(path: str, test: str) -> bool:
    file = ROOT / path
    return file.exists() and (not test or f"def {test}(" in file.read_text(encoding="utf-8"))


def test_every_block_runs_in_order() -> None:
    namespace: dict[str, Any] = {}
    for block in python_blocks(PAGE):
        run_block(PAGE, block, namespace)


def test_the_page_names_its_proofs() -> None:
    assert len(named_tests(PAGE.read_text(encoding="utf-8"))) > 15


@pytest.mark.parametrize(("path", "test"), sorted(set(named_tests(PAGE.read_text("utf-8")))))
def test_named_tests_exist(path: str, test: str) -> None:
    assert is_there(path, test)


def test_a_test_that_is_gone_would_be_noticed() -> None:
    this = Path(__file__).relative_to(ROOT).as_posix()
    assert is_there(this, "test_named_tests_exist")
    assert not is_there(this, "test_that_" + "was_renamed")
    assert not is_there("tests/docs/gone.py", "")
    assert named_tests("as `tests/a/b.py::test_c` shows") == [("tests/a/b.py", "test_c")]
