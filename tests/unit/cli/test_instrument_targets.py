"""A report that cannot be written is refused before minutes are spent on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from audit_cases import MODEL
from model_files import write_hf

from outpace.cli import audit as audit_command
from outpace.measure.audit import run as audit_run
from outpace.measure.experiment import run as experiment_run

pytestmark = pytest.mark.usefixtures("unchecked_shapes")
Run = Callable[..., tuple[int, str, str]]


def refuse_to_run(*args: Any, **options: Any) -> Any:
    raise AssertionError("nothing may be measured")


def test_audit(run_cli: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(audit_command, "load_target", lambda values: MODEL)
    monkeypatch.setattr(audit_run, "run_audit", refuse_to_run)
    status, out, err = run_cli("audit", "--json", str(tmp_path / "missing" / "a.json"))
    assert (status, out) == (1, "")
    assert "a.json cannot be written: there is no folder" in err


def test_experiment(run_cli: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OUTPACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(experiment_run, "run_experiment", refuse_to_run)
    target = str(write_hf(tmp_path / "tiny", config={"max_position_embeddings": 512}))
    page = str(tmp_path / "missing" / "page.html")
    status, out, err = run_cli("experiment", "--target", target, "--html", page)
    assert (status, out) == (1, "")
    assert "page.html cannot be written: there is no folder" in err
