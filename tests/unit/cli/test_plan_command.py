"""`outpace plan`: the table, the JSON, and errors in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from plan_cases import written

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    return written(tmp_path / "tiny")


def test_json_adds_up(run_cli: Run, tiny: str) -> None:
    command = ("plan", "--target", tiny, "--draft", tiny, "--devices", "2x24GB", "--json")
    status, out, _ = run_cli(*command, "--batch", "3", "--num_speculative_tokens", "5")
    assert status == 0
    found = json.loads(out)
    terms = found["terms"]
    assert found["device_bytes"] == sum(term["device_bytes"] for term in terms)
    assert found["num_bytes"] == sum(term["num_bytes"] for term in terms)
    assert {term["group"] for term in terms} == {"weights", "caches", "workspace"}
    assert (found["target"], found["method"]) == (tiny, "draft_model")
    assert (found["tensor_parallel"], found["num_copies"]) == (2, 1)
    assert (found["batch"], found["context"], found["num_speculative_tokens"]) == (3, 128, 5)
    [first, second] = found["devices"]
    assert first == second
    assert first["usable_bytes"] == 21_600_000_000
    assert first["needed_bytes"] == found["device_bytes"]
    assert found["fits"] is first["fits"] is True
    assert found["largest_context"] == 128


def test_formulas_give_their_numbers(run_cli: Run, tiny: str) -> None:
    """Every formula without units and words is the arithmetic of its bytes."""
    words = ("layers", "layer", "KV heads", "tokens", "rows", "batch", "B")
    out = run_cli("plan", "--target", tiny, "--draft", tiny, "--dtype", "q4_0", "--json")[1]
    for term in json.loads(out)["terms"]:
        formula = term["formula"].partition(" (q")[0].partition(" (f")[0].partition(" (b")[0]
        for word in words:
            formula = formula.replace(f" {word}", "")
        value = eval(formula.replace("×", "*").replace(",", ""))
        assert value == term["num_bytes"], term


def test_the_table(run_cli: Run, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    status, out, _ = run_cli("plan", "--target", tiny, "--method", "ngram", "--devices", "1GB")
    assert status == 0
    text = " ".join(out.replace("│", " ").split())
    assert "61,440 × 2 B (bfloat16)" in text
    assert "2 × 2 layers × 2 KV heads × 16 × 256 tokens" in text
    assert "Fits in 1GB" in text
    assert "900.00 MB usable (10 % of 1.00 GB left alone)" in text
    assert "Largest batch at 128 tokens: " in text
    assert "Largest context at batch 1: 128 tokens (what the model was made for)." in text
    assert "each device" not in text


def test_what_does_not_fit(run_cli: Run, tiny: str) -> None:
    command = ("plan", "--target", tiny, "--method", "none", "--devices", "4x0.5MB")
    status, out, _ = run_cli(*command, "--tensor-parallel", "2", "--reserve", "20")
    assert status == 0
    assert "Does NOT fit in each of 4 × 0.5MB" in out
    assert "400.00 kB usable (20 % of 500.00 kB left alone)" in out
    assert "each device" in out
    assert "The devices hold 2 copies" in out


def test_without_devices_this_machine_is_asked(run_cli: Run, tiny: str) -> None:
    [device] = json.loads(run_cli("plan", "--target", tiny, "--json")[1])["devices"]
    assert device["name"].startswith("this machine's free memory")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--devices", "many"), "written like 24GB"),
        (("--devices", "3x24GB"), "cannot be split evenly over 3"),
        (("--devices", "2x24GB", "--tensor-parallel", "0"), "tensor_parallel must be at least 1"),
        (("--dtype", "int3"), "dtype must be one of"),
        (("--context", "4096"), "beyond what"),
        (("--draft", "nobody"), "no model 'nobody'"),
    ],
)
def test_errors_are_one_line(
    run_cli: Run, tiny: str, options: tuple[str, ...], message: str
) -> None:
    status, out, err = run_cli("plan", "--target", tiny, *options)
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert message in err


def test_a_recurrent_model_is_refused_by_name(run_cli: Run, tmp_path: Path) -> None:
    name = written(tmp_path / "m", model_type="mamba")
    status, _, err = run_cli("plan", "--target", name)
    assert status == 1
    assert "'mamba' has recurrent or hybrid layers" in err


@pytest.mark.model
def test_the_default_model_with_its_draft(run_cli: Run) -> None:
    found = json.loads(run_cli("plan", "--json")[1])
    assert (found["target"], found["method"]) == ("smollm2-135m", "auto")
    assert found["draft"] == "smollm2-135m-eagle3"
    assert (found["context"], found["num_speculative_tokens"]) == (8192, 16)
