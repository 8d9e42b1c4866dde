"""The closing table of `make demo`."""

from __future__ import annotations

import io
import re
import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from outpace.cli.compare import Comparison

ROOT = Path(__file__).parents[2]
PROGRAM = str(ROOT / "examples" / "demo.py")
DEMO = runpy.run_path(PROGRAM)
WIDTH = 80


def found(
    plain: float,
    auto: float,
    length: float = 2.0,
    ids_equal: bool | None = True,
    shares: Mapping[str, float] | None = None,
) -> Comparison:
    return Comparison("auto", 1, 96, ids_equal, None, [plain], [auto], length, None, shares)


def shown(sections: list[tuple[str, list[Any]]]) -> str:
    text = io.StringIO()
    Console(file=text, width=WIDTH).print(DEMO["closing_table"](sections))
    return text.getvalue()


def rows_of(text: str) -> dict[str, list[str]]:
    """The cells of each row by its task, whose names are one word here."""
    rows = (re.sub(r"(\d) %", r"\1%", line).split() for line in text.splitlines())
    return {cells[0]: cells[1:] for cells in rows if cells}


def test_the_table_fits_a_terminal_and_says_what_was_found() -> None:
    tasks = {
        "copying": found(100, 180, 2.5, shares={"suffix": 0.93, "plain": 0.07}),
        "question": found(100, 98, 1.1, shares={"plain": 0.7, "eagle3": 0.3}),
    }
    rows = [DEMO["Row"](task, comparison) for task, comparison in tasks.items()]
    text = shown([("q4_1 (default)", rows), ("bfloat16", rows)])
    assert max(map(len, text.splitlines())) <= WIDTH
    assert "…" not in text
    cells = rows_of(text)
    assert cells["task"] == ["tok/s", "tok/s", "ratio", "/", "pass", "ids", *["steps"] * 3]
    assert cells["plain"] == ["auto", "tokens", "same", "suffix", "eagle3", "plain"]
    assert cells["copying"] == ["100", "180", "1.80", "2.50", "yes", "93%", "0%", "7%"]
    assert cells["question"] == ["100", "98", "0.98", "1.10", "yes", "0%", "30%", "70%"]
    assert "busy" not in text


def test_a_source_of_two_drafters_leaves_room_for_the_rest() -> None:
    shares = {"suffix": 0.25, "eagle3": 0.12, "suffix+eagle3": 0.13, "plain": 0.5}
    text = shown([("q4_1 (default)", [DEMO["Row"]("copying", found(100, 180, shares=shares))])])
    assert max(map(len, text.splitlines())) <= WIDTH
    assert "q4_1 (default)" in text
    assert "…" not in text
    assert rows_of(text)["copying"][-4:] == ["25%", "12%", "13%", "50%"]


def test_what_went_wrong_is_not_hidden() -> None:
    odd = {
        "differing": found(100, 150, ids_equal=False),
        "slower": found(100, 50),
        "unreliable": found(100, 300),  # three times as fast with two tokens per pass
        "short": Comparison("auto", 1, 1, True, None, [], [], 1.0),
    }
    rows = [DEMO["Row"](task, comparison) for task, comparison in odd.items()]
    text = shown([("bfloat16", rows)])
    cells = rows_of(text)
    assert cells["differing"][-1] == "NO"
    assert cells["slower"][2] == "0.50"
    assert cells["unreliable"][2] == "3.00?"
    assert cells["short"][:3] == ["-", "-", "-"]
    assert "the machine was busy" in " ".join(text.split())
    assert DEMO["_ratio_cell"](odd["slower"]) == "[bold red]0.50[/]"
    assert DEMO["_ratio_cell"](odd["differing"]) == "[bold green]1.50[/]"
    assert DEMO["_ratio_cell"](found(100, 96)) == "0.96"


@pytest.mark.model
@pytest.mark.usefixtures("default_model_in_memory", "unchecked_shapes")
def test_the_demo_runs(capsys: pytest.CaptureFixture[str]) -> None:
    demo = runpy.run_path(PROGRAM)  # which imports the `LLM` that the fixture has set
    demo["main"](["--dtypes", "auto", "--max-tokens", "12", "--repeats", "1"])
    text = capsys.readouterr().out
    assert "(default)" in text
    for task in DEMO["TASKS"]:
        (line,) = (line for line in text.splitlines() if task.name in line)
        assert " yes " in line
