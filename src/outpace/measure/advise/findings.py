"""What is found, as it is found: of use after an interruption too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from outpace.measure.advise.candidates import Candidate
from outpace.measure.advise.memory import Memory
from outpace.measure.advise.predict import AutoPrediction, Machine, Prediction, mean_ratio
from outpace.measure.advise.replay import Recorded
from outpace.measure.statistics import Ratio

MOST_ABOVE_EXPECTED = 1.2
"""A pass over several rows can be a little cheaper than one over a single row, but not by more."""


def is_possible(ratio: float, expected: float | None) -> bool:
    """False for a ratio further above E than drafts can give: the machine did something else while
    plain decoding ran. expected: None where it is not known."""
    return expected is None or ratio <= MOST_ABOVE_EXPECTED * expected


@dataclass(frozen=True, slots=True)
class Measured:
    """One candidate as it ran beside plain decoding.

    ratio: of decoding speed, over prompts. places: of the recorded answers whose prompts ran.
    num_equal, num_compared: greedy or seeded answers that are those of plain decoding, token for
    token. expected: E, output tokens per pass, over the same prompts in the same way as the ratio;
    None where no answer had a second pass.
    """

    candidate: Candidate
    ratio: Ratio
    tokens_per_s: float
    plain_tokens_per_s: float
    acceptance_length: float
    num_rounds: int
    num_equal: int
    num_compared: int
    places: tuple[int, ...] = ()
    expected: float | None = None

    @property
    def is_reliable(self) -> bool:
        return is_possible(self.ratio.mean, self.expected)


@dataclass(frozen=True, slots=True)
class AtBatch:
    """The ratio to plain decoding with so many requests together. measured: None where there was no
    time for it. is_reliable: whether it can be right."""

    batch: int
    predicted: float
    measured: float | None = None
    is_reliable: bool = True


@dataclass(slots=True)
class Findings:
    """Everything that is known so far, of one model at one batch and temperature.

    num_prompts: that were given. recorded: the answers that were scored. predictions: in order of
    their candidates. alone: the best candidates' ratios if each request was decoded alone; only of
    larger batches. batches: of the candidate that is advised, or was best. memory: by candidate's
    name.
    """

    model: Mapping[str, Any]
    temperature: float
    batch: int
    num_prompts: int = 0
    recorded: list[Recorded] = field(default_factory=list)
    max_tokens: int = 0
    machine: Machine | None = None
    predictions: list[Prediction] = field(default_factory=list)
    auto: AutoPrediction | None = None
    alone: dict[str, float] = field(default_factory=dict)
    measured: list[Measured] = field(default_factory=list)
    batches: list[AtBatch] = field(default_factory=list)
    batches_of: str = ""
    predicted_crossover: int | None = None
    memory: dict[str, Memory] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0
    promised_s: float = 0.0
    is_complete: bool = False

    def prediction_of(self, candidate: Candidate) -> Prediction | AutoPrediction | None:
        """What was predicted of a candidate, if anything was."""
        for prediction in (*self.predictions, self.auto):
            if prediction is not None and prediction.candidate.name == candidate.name:
                return prediction
        return None

    def measured_of(self, candidate: Candidate) -> Measured | None:
        return next((m for m in self.measured if m.candidate.name == candidate.name), None)

    def predicted_for(self, measured: Measured) -> float | None:
        """The ratio that was predicted for the prompts that were measured."""
        prediction = self.prediction_of(measured.candidate)
        if prediction is None:
            return None
        ratios = [prediction.by_prompt[place] for place in measured.places]
        known = any(ratio is not None for ratio in ratios)
        return mean_ratio(ratios) if known else prediction.ratio

    @property
    def errors(self) -> dict[str, float]:
        """By name of what was measured reliably: the predicted ratio over that, less 1."""
        predicted = {
            m.candidate.name: (self.predicted_for(m), m.ratio.mean)
            for m in self.measured
            if m.is_reliable
        }
        return {
            name: expected / found - 1
            for name, (expected, found) in predicted.items()
            if expected is not None
        }
