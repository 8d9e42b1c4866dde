"""A report that cannot be written costs nobody what was measured: it is shown first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from audit_cases import MODEL
from experiment_cases import draft_runs, results_of
from model_files import write_hf

from outpace.cli import audit as audit_command
from outpace.measure.audit import run as audit_run
from outpace.measure.audit.results import LOSSLESS, AuditResult, Check
from outpace.measure.experiment import run as experiment_run
from outpace.measure.experiment.results import ExperimentResults

pytestmark = pytest.mark.usefixtures("unchecked_shapes")
Run = Callable[..., tuple[int, str, str]]


def test_audit(run_cli: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    check = Check("greedy", "one at a time", "texts", 8, 0, LOSSLESS, num_drafts=9)
    found = AuditResult("m", "float32", "torch", "suffix", {}, 0.001, [check], complete=True)
    monkeypatch.setattr(audit_command, "_load", lambda values: MODEL)
    monkeypatch.setattr(audit_run, "run_audit", lambda *_, **__: found)
    status, out, err = run_cli("audit", "--json", str(tmp_path / "missing" / "a.json"))
    assert status == 1
    assert "Lossless as far as tested" in out
    assert "a.json: No such file or directory" in err


def test_experiment(run_cli: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def run(target: Any, drafts: Any, options: Any, results: ExperimentResults, *_: Any) -> None:
        made = results_of(draft_runs())
        for name in ExperimentResults.__dataclass_fields__:
            setattr(results, name, getattr(made, name))

    monkeypatch.setenv("OUTPACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(experiment_run, "run_experiment", run)
    target = str(write_hf(tmp_path / "tiny", config={"max_position_embeddings": 512}))
    page = str(tmp_path / "missing" / "page.html")
    status, out, err = run_cli("experiment", "--target", target, "--html", page)
    assert status == 1
    assert "times plain decoding" in out
    assert "page.html: No such file or directory" in err
