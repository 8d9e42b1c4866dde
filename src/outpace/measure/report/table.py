"""A table of texts, as pages and Markdown files show it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """`headings` name the columns; every row has one cell for each of them.

    Cells are plain text: whoever writes the table out escapes them. The first `num_names` columns
    hold names and are set to the left, the others figures and are set to the right.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    num_names: int = 1

    def __post_init__(self) -> None:
        assert all(len(row) == len(self.headings) for row in self.rows), "ragged table"
