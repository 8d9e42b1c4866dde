"""What a run of the study measured, filled while it goes on: of use after an interruption too."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from outpace.measure.experiment.meter import Agreement
from outpace.measure.passes import PassTimes
from outpace.outputs import SpeculationStats
from outpace.types import StepTimes


@dataclass(frozen=True, slots=True)
class TimedAnswer:
    """One answer. num_tokens, seconds: after the first step, which reads the prompt."""

    prompt: str
    num_tokens: int
    seconds: float
    stats: SpeculationStats


@dataclass(slots=True)
class LengthRuns:
    """A draft with k draft tokens a step; k = 0 is plain decoding. times: of its full steps."""

    k: int
    answers: list[TimedAnswer] = field(default_factory=list)
    times: list[StepTimes] = field(default_factory=list)


@dataclass(slots=True)
class DraftRuns:
    """A draft of the study. agreement: of p and q, recorded at its greatest length."""

    label: str
    kind: str
    description: str
    lengths: list[LengthRuns] = field(default_factory=list)
    agreement: Agreement = field(default_factory=Agreement)


@dataclass(slots=True)
class ExperimentResults:
    """Everything `summarise` reads. passes: lists of the same rows may occur several times."""

    provenance: dict[str, Any] = field(default_factory=dict)
    target: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    plain: LengthRuns = field(default_factory=lambda: LengthRuns(0))
    drafts: list[DraftRuns] = field(default_factory=list)
    passes: list[PassTimes] = field(default_factory=list)
    num_rounds: int = 0
    elapsed_s: float = 0.0
    complete: bool = False
