"""The whole experiment on a tiny model, and what becomes of it when something is wrong."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scripted import sampled, scripted
from tiny import tiny_model

from outpace.errors import OptionError
from outpace.measure.experiment.drafts import EARLY_EXIT, UNALIGNED, StudiedDraft
from outpace.measure.experiment.options import ExperimentOptions
from outpace.measure.experiment.results import ExperimentResults
from outpace.measure.experiment.run import run_experiment
from outpace.measure.experiment.summary import summarise
from outpace.measure.experiment.words import conclusion
from outpace.types import Draft, Verdict
from outpace.verification.judge import verify

TARGET = tiny_model(num_layers=3, max_len=256)
TARGET.tokenizer.end_token_ids = frozenset()  # no answer ends before it is long enough to time
DRAWN = np.array([0.0, 0.0, *[1 / 94] * 94])
DRAFTS = [
    StudiedDraft(
        "scripted", UNALIGNED, "draws without looking", {"method": scripted(sampled(DRAWN))}
    ),
    StudiedDraft("exit 2/3", EARLY_EXIT, "two layers", {"method": "early_exit", "exit_layer": 2}),
]
OPTIONS = ExperimentOptions(lengths=(1, 2), minutes=1e-6, max_tokens=24)


@pytest.fixture(autouse=True)
def _unchecked_shapes(unchecked_shapes: None) -> None:
    """For all of this file."""


def run(
    options: ExperimentOptions = OPTIONS, drafts: Sequence[StudiedDraft] = DRAFTS, **more: Any
) -> ExperimentResults:
    results = ExperimentResults()
    run_experiment(TARGET, drafts, options, results, **more)
    return results


def test_from_a_model_to_the_conclusion() -> None:
    told: list[tuple[str, float]] = []
    results = run(progress=lambda doing, share: told.append((doing, share)))
    summary = summarise(results)
    json.dumps(summary, allow_nan=False)
    assert (summary["complete"], summary["num_rounds"]) == (True, 1)
    assert [each["num_rows"] for each in summary["passes"]] == [1, 2, 3]
    assert [draft["label"] for draft in summary["drafts"]] == ["scripted", "exit 2/3"]
    for draft in summary["drafts"]:
        assert [row["k"] for row in draft["rows"]] == [1, 2]
        assert draft["acceptance"]["num_drafts"] > 5
        assert draft["acceptance"]["is_drawn_from_q"]
        assert draft["acceptance"]["is_decided_by_p_and_q"]
        for row in draft["rows"]:
            assert 0 < row["alpha"] < 1
            assert row["c"] > 0
            assert row["measured"] is not None
            assert 1 <= row["expected_tokens"] <= row["k"] + 1
    assert len(results.plain.answers) == 2
    assert all(len(runs.answers) == 1 for draft in results.drafts for runs in draft.lengths)
    # One round is too little to conclude anything from.
    [warning] = conclusion(summary)
    assert "fewer than three prompts: all of it" in warning
    assert told[-1][0] == "passes over 1 and more rows"
    assert all(0 <= share <= 1 for _, share in told)


def test_rounds_go_on_while_there_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    from outpace.measure.experiment import run as module

    granted = iter([True, True, False])
    monkeypatch.setattr(module._Clock, "has_time_for", lambda self, seconds: next(granted))
    results = run(drafts=DRAFTS[:1])
    assert results.num_rounds == 3
    prompts = {answer.prompt for answer in results.plain.answers}
    assert len(prompts) == 3


def test_an_interruption_leaves_what_was_measured() -> None:
    def interrupt(doing: str, share: float) -> None:
        if results.num_rounds:
            raise KeyboardInterrupt

    results = ExperimentResults()
    options = ExperimentOptions(lengths=(1,), minutes=5, max_tokens=16)
    with pytest.raises(KeyboardInterrupt):
        run_experiment(TARGET, DRAFTS[:1], options, results, interrupt)
    summary = summarise(results)
    assert not summary["complete"]
    assert summary["num_rounds"] == 1
    assert summary["drafts"][0]["rows"][0]["measured"] is not None


def test_a_judge_that_accepts_what_it_likes_is_found() -> None:
    def judge(
        scores: Any, seqs: Any, drafts: Sequence[Draft], rng: Any, lossy: Any = None
    ) -> list[Verdict]:
        verdicts = verify(scores, seqs, drafts, rng, lossy)
        return [
            Verdict((*draft.token_ids, *verdict.token_ids[-1:]), len(draft))
            if verdict.token_ids
            else verdict
            for draft, verdict in zip(drafts, verdicts, strict=True)
        ]

    options = ExperimentOptions(lengths=(1,), minutes=1e-6, max_tokens=60)
    summary = summarise(run(options, DRAFTS[:1], judge=judge))
    assert not summary["drafts"][0]["acceptance"]["is_decided_by_p_and_q"]
    assert conclusion(summary)[0].startswith("WARNING")


def test_prompts_that_do_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    path.write_text(json.dumps({"prompt": "a" * 400}) + "\n")
    options = ExperimentOptions(prompts=(path,), max_tokens=16)
    with pytest.raises(OptionError, match="at most 192 tokens"):
        run(options)
