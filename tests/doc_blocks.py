"""Reading the documentation's fenced blocks, and running its Python."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

DOCS = Path(__file__).parents[1] / "docs"

_FENCE = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```\s*$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A fenced block: the line of its first statement, and its content."""

    line: int
    code: str


def python_blocks(page: Path) -> list[Block]:
    """The page's ```python blocks in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(text.count("\n", 0, match.start(2)) + 1, match[2])
        for match in _FENCE.finditer(text)
        if match[1] == "python"
    ]


def run_block(page: Path, block: Block, namespace: dict[str, Any]) -> None:
    """Run one block in a namespace that the page's blocks share; errors name the page's lines."""
    padding = "\n" * (block.line - 1)
    exec(compile(padding + block.code, str(page), "exec"), namespace)
