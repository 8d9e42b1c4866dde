"""Results of the experiment as a run would have left them, with numbers to compute by hand."""

from __future__ import annotations

from typing import Any

import numpy as np

from outpace.measure.experiment.drafts import TRAINED, UNALIGNED
from outpace.measure.experiment.results import (
    DraftRuns,
    ExperimentResults,
    LengthRuns,
    TimedAnswer,
)
from outpace.measure.passes import PassTimes
from outpace.outputs import SpeculationStats
from outpace.types import Draft, StepTimes, Verdict

PASS_S = 0.010
PROMPTS = ("one", "two", "three", "four")


def stats_of(k: int, accepted: list[int]) -> SpeculationStats:
    """Of drafts of k tokens, so many of each accepted."""
    stats = SpeculationStats()
    for count in accepted:
        stats.record(Draft((7,) * k), Verdict((7,) * (count + 1), count))
    return stats


def runs_of(k: int, speeds: list[float], accepted: list[int], times: StepTimes) -> LengthRuns:
    """One answer of 100 tokens for each prompt, at these tokens per second."""
    answers = [
        TimedAnswer(prompt, 100, 100 / speed, stats_of(k, accepted))
        for prompt, speed in zip(PROMPTS, speeds, strict=False)
    ]
    return LengthRuns(k, answers, [times] * 3)


def draft_runs(
    label: str = "random",
    kind: str = UNALIGNED,
    *,
    speeds: list[float] | None = None,
    accepted: list[int] | None = None,
    alpha: float = 0.2,
    draft_ms: float = 3.0,
) -> DraftRuns:
    """k = 1. By default two of ten drafts are accepted, c is 0.3 and v 1.5 in the run itself."""
    times = StepTimes(draft_ms / 1000, 0.015, draft_ms / 1000 + 0.017)
    runs = runs_of(
        1, speeds or [55.0, 56.0, 54.0, 55.0], accepted or [1, 1, 0, 0, 0, 0, 0, 0, 0, 0], times
    )
    draft = DraftRuns(label, kind, f"what is called {label}", [runs])
    p = np.array([alpha, 1 - alpha])
    for count in runs.answers[0].stats.accepted_per_position:
        draft.agreement.add([p, p], Draft((0,)), count and 1)
    return draft


def results_of(*drafts: DraftRuns, v2: float = 1.4) -> ExperimentResults:
    """Plain decoding runs at 100 tokens a second, 8 ms of a plain step being the pass (10 ms)."""
    plain_times = StepTimes(0.0, PASS_S, 0.011)
    plain = runs_of(0, [100.0, 100.0, 100.0, 100.0], [], plain_times)
    passes = [
        PassTimes("q4_1", 160, 1, [0.0100, 0.0099, 0.0101]),
        PassTimes("q4_1", 160, 2, [v2 * 0.01, v2 * 0.0099, v2 * 0.0101]),
        PassTimes("q4_1", 160, 1, [0.0100]),
        PassTimes("q4_1", 160, 2, [v2 * 0.01]),
    ]
    target: dict[str, Any] = {
        "name": "tiny",
        "fingerprint": "abc",
        "dtype": "float64",
        "runs_on": "torch decoder",
        "num_layers": 2,
    }
    return ExperimentResults(
        provenance={"command": "outpace experiment", "date": "2026-01-01"},
        target=target,
        options={"temperature": 0.8, "lengths": [1]},
        notes=["A note."],
        plain=plain,
        drafts=list(drafts or [draft_runs()]),
        passes=passes,
        num_rounds=4,
        elapsed_s=61.0,
        complete=True,
    )


def trained_runs(speeds: list[float]) -> DraftRuns:
    return draft_runs(
        "eagle3",
        TRAINED,
        speeds=speeds,
        accepted=[1, 1, 1, 1, 1, 1, 0, 0, 0, 0],
        alpha=0.6,
        draft_ms=1.0,
    )
