"""The drafts of the experiment: the random one, exits, and those that are named."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from model_files import write_hf
from tiny import new_runner, new_sequence, tiny_model

from outpace.engine.setup import EngineOptions
from outpace.errors import ModelError, OptionError
from outpace.heads.files import write_draft
from outpace.measure.experiment.drafts import EARLY_EXIT, UNALIGNED, hub_name, studied_drafts
from outpace.measure.experiment.options import ExperimentOptions
from outpace.measure.experiment.random_draft import describe_random_draft, random_draft
from outpace.models.load import load_model

TARGET = tiny_model(num_layers=8, seed=3)
ENGINE = EngineOptions("float64", "cpu", None, 1, None, None)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unchecked_shapes: None) -> None:
    monkeypatch.setenv("OUTPACE_CACHE", str(tmp_path / "cache"))


def contents(directory: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in directory.iterdir()}


def test_the_random_draft_is_the_same_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = random_draft(TARGET, 0)
    written = contents(first)
    assert set(written) == {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert random_draft(TARGET, 0) == first
    other_seed = random_draft(TARGET, 1)
    assert contents(other_seed)["model.safetensors"] != written["model.safetensors"]
    assert random_draft(tiny_model(vocab_size=80), 0) != first
    monkeypatch.setenv("OUTPACE_CACHE", str(tmp_path / "elsewhere"))
    assert contents(random_draft(TARGET, 0)) == written
    assert [p.name for p in first.parent.iterdir() if p.name.startswith(".")] == []


def test_the_random_draft_has_the_targets_tokens_and_an_almost_uniform_q() -> None:
    draft = load_model(random_draft(TARGET, 0), dtype="float64")
    assert draft.tokenizer.vocab() == TARGET.tokenizer.vocab()
    runner = new_runner(draft, num_tokens=8)
    seq = new_sequence([5, 6, 7])
    runner.open(seq)
    logits = np.asarray(runner.extend([seq]).logits[-1])
    q = np.exp(logits - logits.max())
    q /= q.sum()
    assert 0.5 / 96 < q.min() < q.max() < 3 / 96


def test_what_the_random_draft_is_called() -> None:
    words = describe_random_draft(TARGET, 5)
    assert "never trained" in words
    assert "2 layers of width 64" in words
    assert "N(0, 0.02²), seed 5" in words


def test_two_processes_may_write_it_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "outpace.measure.experiment.random_draft.write_draft"

    def and_so_does_another(directory: Path, *args: Any) -> None:
        monkeypatch.setattr(name, write_draft)
        random_draft(TARGET, 0)
        write_draft(directory, *args)

    monkeypatch.setattr(name, and_so_does_another)
    assert (random_draft(TARGET, 0) / "model.safetensors").is_file()


def test_a_target_on_an_adapter_needs_a_named_draft() -> None:
    target = cast(
        "Any", SimpleNamespace(decoder=object(), name="bert", runs_on="transformers adapter")
    )
    with pytest.raises(ModelError, match="name a draft model with the same tokenizer"):
        random_draft(target, 0)


def test_the_drafts_of_a_target() -> None:
    drafts, notes = studied_drafts(TARGET, ExperimentOptions(), ENGINE)
    assert [draft.label for draft in drafts] == ["random", "exit 2/8", "exit 7/8"]
    assert [draft.kind for draft in drafts] == [UNALIGNED, EARLY_EXIT, EARLY_EXIT]
    assert drafts[1].with_length(3) == {
        "method": "early_exit",
        "exit_layer": 2,
        "num_speculative_tokens": 3,
    }
    assert len(notes) == 1
    assert "No draft comes with this package" in notes[0]


@pytest.mark.parametrize(
    ("num_layers", "exits"),
    [(1, []), (2, ["1/2"]), (3, ["1/3", "2/3"]), (12, ["3/12", "10/12"]), (30, ["8/30", "25/30"])],
)
def test_exits_at_a_quarter_and_five_sixths(num_layers: int, exits: list[str]) -> None:
    target = tiny_model(num_layers=num_layers)
    drafts, notes = studied_drafts(target, ExperimentOptions(), ENGINE)
    assert [draft.label for draft in drafts[1:]] == [f"exit {name}" for name in exits]
    assert any("no early exit" in note for note in notes) == (not exits)


def test_a_named_draft_takes_the_place_of_the_random_one(tmp_path: Path) -> None:
    draft = random_draft(TARGET, 7)
    drafts, _ = studied_drafts(TARGET, ExperimentOptions(draft=str(draft)), ENGINE)
    assert drafts[0].label == draft.name
    assert drafts[0].config["model"].fingerprint == load_model(draft, dtype="float64").fingerprint
    with pytest.raises(ModelError, match="no model 'nonsense'"):
        studied_drafts(TARGET, ExperimentOptions(draft="nonsense"), ENGINE)


def test_a_trained_draft_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is no draft"):
        studied_drafts(TARGET, ExperimentOptions(trained=tmp_path), ENGINE)
    write_hf(tmp_path / "model")
    drafts, notes = studied_drafts(TARGET, ExperimentOptions(trained=tmp_path / "model"), ENGINE)
    assert (drafts[-1].label, drafts[-1].kind, notes) == ("draft_model", "trained", [])


def test_old_names_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert hub_name("gpt2") == "openai-community/gpt2"
    assert hub_name("smollm2-135m") == "smollm2-135m"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpt2").mkdir()
    assert hub_name("gpt2") == "gpt2"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"lengths": ()}, "got none"),
        ({"lengths": (0, 2)}, "numbers from 1 to 16.*got 0,2"),
        ({"lengths": (17,)}, "got 17"),
        ({"temperature": 0.0}, "above 0"),
        ({"temperature": 3.0}, "at most 2"),
        ({"minutes": 0.0}, "minutes must be above 0"),
        ({"max_tokens": 4}, "at least 8 tokens"),
    ],
)
def test_options_that_make_no_experiment(values: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        ExperimentOptions(**values)
