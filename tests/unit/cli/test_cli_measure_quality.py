"""`outpace measure-quality`: what it prints, as table and as JSON, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny import tiny_model

Run = Callable[..., tuple[int, str, str]]
TEXT = "a text of some forty letters to predict."


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Models are tiny: the weights are rounded in bfloat16, others in q4_1. Returns all calls."""
    calls: list[dict[str, Any]] = []
    seeds = {"float32": 0, "bfloat16": 0, "q4_1": 1, "auto": 1}

    def load(name: str, **options: Any) -> Any:
        calls.append({"name": name, **options})
        dtype = options["dtype"] if options["dtype"] in ("float32", "bfloat16") else "float32"
        return tiny_model(seed=seeds[options["dtype"]], dtype=dtype)

    monkeypatch.setattr("outpace.measure.configurations.load_model", load)
    return calls


@pytest.fixture
def text(tmp_path: Path) -> str:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return str(path)


def test_json_holds_every_figure(run_cli: Run, loads: list, text: str) -> None:
    ways = ["--compare", "bfloat16", "--compare", "q4_1,activations=int8", "--compare", "float32"]
    status, out, _ = run_cli("measure-quality", text, *ways, "--window", "16", "--json")
    assert status == 0
    found = json.loads(out)
    assert (found["model"], found["reference"], found["window"]) == ("smollm2-135m", "float32", 16)
    assert found["num_tokens"] == len(TEXT) - 3  # three windows, whose first tokens are given
    rows = {row["configuration"]: row for row in found["configurations"]}
    assert list(rows) == ["bfloat16", "q4_1,activations=int8", "float32"]
    assert rows["float32"]["mean_kl"] == 0.0
    assert rows["float32"]["perplexity"] == found["reference_perplexity"]
    assert 0.0 < rows["bfloat16"]["mean_kl"] < 0.01
    assert rows["q4_1,activations=int8"]["mean_kl"] > 0.1
    for row in rows.values():
        low, high = row["same_choice_interval"]
        assert low <= row["same_choice_share"] <= high
    assert [(call["dtype"], call["activations"]) for call in loads] == [
        ("float32", "auto"),
        ("bfloat16", "auto"),
        ("q4_1", "int8"),
        ("float32", "auto"),
    ]


def test_table_names_every_way(run_cli: Run, loads: list, text: str) -> None:
    status, out, err = run_cli("measure-quality", text, "--max-tokens", "20", "--threads", "1")
    assert status == 0
    assert "float32" in out
    assert "auto" in out
    assert "19 positions" in err
    assert {call["threads"] for call in loads} == {1}


def test_the_reference_can_be_another(run_cli: Run, loads: list, text: str) -> None:
    args = ["--reference", "q4_1", "--compare", "auto", "--model", "M", "--json"]
    found = json.loads(run_cli("measure-quality", text, *args)[1])
    assert found["reference"] == "q4_1"
    assert found["configurations"][0]["same_choice_share"] == 1.0
    assert [call["name"] for call in loads] == ["M", "M"]


@pytest.mark.parametrize(
    ("args", "status", "words"),
    [
        ([], 2, "Missing argument 'TEXT...'"),
        (["nowhere.txt"], 2, "does not exist"),
        (["TEXT", "--compare", "int3"], 1, "dtype must be auto"),
        (["TEXT", "--compare", "bfloat16,acts=int8"], 1, "is no setting"),
        (["TEXT", "--compare", "auto", "--compare", "auto"], 1, "compared twice"),
        (["TEXT", "--reference", "nonsense"], 1, "dtype must be auto"),
        (["TEXT", "--window", "1"], 2, "--window"),
        (["TEXT", "--window", "999"], 0, ""),
        (["EMPTY"], 1, "holds no text"),
        (["SHORT"], 1, "too short"),
    ],
)
def test_errors(
    run_cli: Run, loads: list, text: str, tmp_path: Path, args: list, status: int, words: str
) -> None:
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "short.txt").write_text("a")
    files = {"TEXT": text, "EMPTY": tmp_path / "empty.txt", "SHORT": tmp_path / "short.txt"}
    found, out, err = run_cli("measure-quality", *[str(files.get(arg, arg)) for arg in args])
    assert found == status, err
    assert words in err
    assert (out == "") == (status != 0)
    assert "Traceback" not in err
