"""docs/performance.md is what `outpace bench` wrote, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from outpace.cli.main import cli

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "performance.md"
RESULTS = sorted((ROOT / "benchmarks" / "results").glob("bench-*.json"))


def rendered(results: Path, folder: Path) -> str:
    written = folder / "performance.md"
    outcome = CliRunner().invoke(cli, ["bench", "--show", str(results), "--markdown", str(written)])
    assert outcome.exit_code == 0, outcome.output
    return written.read_text(encoding="utf-8")


def test_the_page_is_what_bench_makes_of_the_published_figures(tmp_path: Path) -> None:
    assert rendered(RESULTS[-1], tmp_path) == PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("word", ["/work", "/home", "/tmp", "/root"])
def test_nothing_published_tells_of_folders(word: str) -> None:
    assert word not in PAGE.read_text(encoding="utf-8")
    assert not any(word in results.read_text(encoding="utf-8") for results in RESULTS)
