"""`outpace experiment`: tables, JSON, the page, interruption, and errors in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from experiment_cases import draft_runs, results_of, trained_runs
from model_files import write_hf

from outpace.measure.experiment import drafts as drafts_module
from outpace.measure.experiment import run as run_module
from outpace.measure.experiment.options import ExperimentOptions
from outpace.measure.experiment.results import ExperimentResults

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unchecked_shapes: None) -> None:
    monkeypatch.setenv("OUTPACE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    return str(write_hf(tmp_path / "tiny", config={"max_position_embeddings": 512}))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[ExperimentOptions]:
    """Nothing is run: results are made up. Fills with the options of each run."""
    made: list[ExperimentOptions] = []

    def run(
        target: Any, drafts: Any, options: ExperimentOptions, results: ExperimentResults, *_: Any
    ) -> None:
        made.append(options)
        found = results_of(draft_runs(), trained_runs([80.0] * 4))
        for name in ExperimentResults.__dataclass_fields__:
            setattr(results, name, getattr(found, name))

    monkeypatch.setattr(run_module, "run_experiment", run)
    return made


def test_from_a_folder_to_json_and_a_page(run_cli: Run, tiny: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    command = ("experiment", "--target", tiny, "--k", "1-2", "--minutes", "0.001")
    status, out, err = run_cli(*command, "--max-tokens", "16", "--html", str(page), "--json")
    assert status == 0, err
    found = json.loads(out)
    assert [draft["label"] for draft in found["drafts"]] == ["random", "exit 1/2"]
    assert [row["k"] for row in found["drafts"][0]["rows"]] == [1, 2]
    assert found["options"]["lengths"] == [1, 2]
    assert found["complete"] is True
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_what_is_shown(
    run_cli: Run, tiny: str, asked: list[ExperimentOptions], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    status, out, _ = run_cli("experiment", "--target", tiny)
    assert status == 0
    assert "…" not in out
    assert max(map(len, out.splitlines())) <= 80
    text = " ".join(out.split())
    assert "random 1 0.30 0.200 1.20 0.92 0.71 0.55 (0.5" in text
    assert "random 1 0.200 1.88 1.40" in text
    assert "Drafts that were not trained for the target" in text
    assert "The same with a trained draft" in text
    # The longest bar of 40 is what the formula promises of eagle3, 1.6 / 1.1.
    assert "random, k = 1 " + "█" * 15 + "░" * 10 + " 0.55, simple 0.92" in text
    assert "What a trained draft changes: eagle3" in text
    assert "4 rounds over 4 prompts in 61 s; tiny in float64 on the torch decoder" in text


def test_defaults_and_quick(run_cli: Run, tiny: str, asked: list[ExperimentOptions]) -> None:
    run_cli("experiment", "--target", tiny)
    run_cli("experiment", "--target", tiny, "--quick")
    run_cli("experiment", "--target", tiny, "--quick", "--k", "2", "--temperature", "1")
    normal, quick, own = asked
    assert (normal.lengths, normal.temperature, normal.minutes) == ((1, 2, 3, 5), 0.8, 3.5)
    assert (quick.lengths, quick.minutes, quick.max_tokens) == ((1, 3), 0.5, 32)
    assert (own.lengths, own.minutes, own.temperature) == ((2,), 0.5, 1.0)


def test_ctrl_c_ends_with_what_there_is(
    run_cli: Run, tiny: str, asked: list[ExperimentOptions], monkeypatch: pytest.MonkeyPatch
) -> None:
    finished = run_module.run_experiment

    def interrupted(*args: Any) -> None:
        finished(*args)
        args[3].complete = False
        raise KeyboardInterrupt

    monkeypatch.setattr(run_module, "run_experiment", interrupted)
    status, out, _ = run_cli("experiment", "--target", tiny)
    assert status == 130
    assert "Interrupted; 4 rounds" in out
    assert "0.55" in out


def test_ctrl_c_before_anything_was_measured(
    run_cli: Run, tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run_module, "run_experiment", interrupted)
    status, out, _ = run_cli("experiment", "--target", tiny)
    assert (status, out) == (130, "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--temperature", "0"), "samples at a temperature above 0"),
        (("--k", "0"), "draft lengths are numbers from 1"),
        (("--minutes", "0"), "minutes must be above 0"),
        (("--draft", "nothing-like-this"), "no model 'nothing-like-this'"),
    ],
)
def test_errors_are_one_line(
    run_cli: Run, tiny: str, arguments: tuple[str, ...], message: str
) -> None:
    status, out, err = run_cli("experiment", "--target", tiny, *arguments)
    assert (status, out) == (1, "")
    # Before it there may be the progress of loading the target.
    assert message in err.splitlines()[-1]
    assert err.splitlines()[-1].startswith("error: ")


def test_a_pair_on_the_hub_is_asked_for_by_its_present_name(
    run_cli: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the Hub is out of reach there is one line that names the model."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(drafts_module, "studied_drafts", None)  # it never gets that far
    command = ("experiment", "--target", "gpt2", "--draft", "sshleifer/tiny-gpt2")
    status, _, err = run_cli(*command)
    assert status == 1
    assert "openai-community/gpt2" in err
    assert err.count("\n") == 1
