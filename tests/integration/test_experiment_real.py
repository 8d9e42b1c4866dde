"""The experiment on the real default model: short, so that only what must hold is asked of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from outpace.engine.setup import EngineOptions
from outpace.measure.experiment.drafts import studied_drafts
from outpace.measure.experiment.options import ExperimentOptions
from outpace.measure.experiment.results import ExperimentResults
from outpace.measure.experiment.run import run_experiment
from outpace.measure.experiment.summary import summarise
from outpace.models.load import LoadedModel


@pytest.mark.model
def test_on_the_default_model(
    default_model: Callable[..., LoadedModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = default_model()
    # From here on, so that the random draft is written anew and the model is not fetched anew.
    monkeypatch.setenv("OUTPACE_CACHE", str(tmp_path))
    options = ExperimentOptions(lengths=(2,), minutes=1e-6, max_tokens=24)
    engine = EngineOptions("auto", "cpu", None, 1, None, None)
    drafts, notes = studied_drafts(target, options, engine)
    assert notes == []
    results = ExperimentResults(notes=notes)
    run_experiment(target, drafts, options, results)
    summary = summarise(results)
    found = {draft["label"]: draft for draft in summary["drafts"]}
    assert list(found) == ["random", "exit 8/30", "exit 25/30", "eagle3"]
    for draft in found.values():
        assert draft["acceptance"]["num_drafts"] >= 5
        assert draft["acceptance"]["is_drawn_from_q"]
        assert draft["acceptance"]["is_decided_by_p_and_q"]
    alphas = {label: draft["rows"][0]["alpha"] for label, draft in found.items()}
    # Where one is high and the other is low there is no noise between them.
    assert alphas["random"] < 0.05
    assert alphas["random"] < alphas["exit 25/30"] > alphas["exit 8/30"]
    assert alphas["eagle3"] > 0.1
