"""From acceptance and costs to the speed of a candidate.

    ratio = E * plain step / (drafting + pass over the step's rows + rest)

over the steps that a replay says it takes, prompt by prompt, so that a method that draws its gain
from some prompts is not credited with it on others. Ratios are geometric means over prompts, as
measured ones are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from collections.abc import Sequence as List
from dataclasses import dataclass
from functools import cache

import numpy as np

from outpace.measure.advise.candidates import Candidate
from outpace.measure.advise.costs import PassCurve, StepCost
from outpace.measure.advise.replay import Score
from outpace.measure.advise.steps import AcceptanceSummary, Step, summarise_steps
from outpace.measure.formulas import expected_tokens
from outpace.measure.statistics import geometric_mean

_NUM_HALVINGS = 50


@dataclass(frozen=True, slots=True)
class Machine:
    """What every prediction needs to know: passes by themselves, and plain steps as they run."""

    curve: PassCurve
    plain: StepCost
    batch: int = 1

    @property
    def plain_pass_ms(self) -> float:
        return self.plain.pass_ms(self.curve.ms(self.batch), has_draft=False)

    @property
    def plain_step_ms(self) -> float:
        return self.plain.draft_ms + self.plain_pass_ms + self.plain.rest_ms


@dataclass(frozen=True, slots=True)
class Prediction:
    """What is expected of a candidate at one batch; times are of a mean step, in milliseconds.

    ratio: to plain decoding, over prompts; by_prompt: of each recorded answer, None where it was
    over after one step. most_ratio: if drafts cost nothing, E over prompts in the same way.
    tokens_per_s: of one request.
    c, v: what drafting a token and the pass take, in plain passes; c is None where nothing was
    drafted. needed_expected: the output tokens a step that would make it no loss. needed_alpha: the
    acceptance that gives as many with drafts as long as these, None if no acceptance would, or for
    trees. most_expected: if everything drafted was accepted; None for trees.
    """

    candidate: Candidate
    ratio: float
    most_ratio: float
    by_prompt: list[float | None]
    tokens_per_s: float
    acceptance: AcceptanceSummary
    draft_ms: float
    pass_ms: float
    rest_ms: float
    c: float | None
    v: float
    needed_expected: float
    needed_alpha: float | None
    most_expected: float | None
    num_disagreements: int = 0


def predict(score: Score, cost: StepCost, machine: Machine) -> Prediction:
    """What a candidate's steps and their cost come to.

    cost: of its steps at the batch of `machine`. Needs an answer with more than one step.
    """
    candidate, batch = score.candidate, machine.batch

    @cache
    def pass_ms(num_rows: int) -> float:
        has_draft = num_rows > 1
        is_tree = candidate.is_tree and has_draft
        alone_ms = machine.curve.ms(batch * num_rows, is_tree=is_tree)
        return cost.pass_ms(alone_ms, has_draft=has_draft)

    def seconds(steps: List[Step]) -> float:
        beside = cost.draft_ms + cost.rest_ms
        return sum(beside + pass_ms(step.num_rows) for step in steps) / 1000

    def tokens(steps: List[Step]) -> int:
        return sum(step.num_tokens for step in steps)

    plain_s = machine.plain_step_ms / 1000
    answers = [steps[1:] for steps in score.answers]
    ratios = [tokens(answer) * plain_s / seconds(answer) if answer else None for answer in answers]
    steps = [step for answer in answers for step in answer]
    assert steps, f"no answer of {candidate.name} has a second step"
    drafted = Counter(step.num_drafted for step in steps)
    mean_drafted = sum(n * count for n, count in drafted.items()) / len(steps)
    mean_pass_ms = sum(pass_ms(step.num_rows) for step in steps) / len(steps)
    needed = (cost.draft_ms + mean_pass_ms + cost.rest_ms) / machine.plain_step_ms
    drafting = cost.draft_ms / machine.plain_pass_ms
    return Prediction(
        candidate=candidate,
        ratio=mean_ratio(ratios),
        most_ratio=mean_ratio([tokens(a) / len(a) if a else None for a in answers]),
        by_prompt=ratios,
        tokens_per_s=tokens(steps) / seconds(steps),
        acceptance=summarise_steps(score.answers),
        draft_ms=cost.draft_ms,
        pass_ms=mean_pass_ms,
        rest_ms=cost.rest_ms,
        c=drafting / mean_drafted if mean_drafted else None,
        v=mean_pass_ms / machine.plain_pass_ms,
        needed_expected=needed,
        needed_alpha=None if candidate.is_tree else needed_acceptance(drafted, needed),
        most_expected=None if candidate.is_tree else 1 + mean_drafted,
        num_disagreements=score.num_disagreements,
    )


def mean_ratio(ratios: List[float | None]) -> float:
    """The geometric mean over prompts; those that are None are left out, and one must not be."""
    return geometric_mean(np.array([ratio for ratio in ratios if ratio is not None])).mean


def needed_acceptance(lengths: Mapping[int, int], expected: float) -> float | None:
    """The alpha with which drafts of these lengths (length: how many) give `expected` output tokens
    a step; None if not even 1 does."""
    total = sum(lengths.values())

    def gives(alpha: float) -> float:
        return sum(count * expected_tokens(alpha, k) for k, count in lengths.items()) / total

    if gives(1.0) < expected:
        return None
    low, high = 0.0, 1.0
    for _ in range(_NUM_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if gives(middle) >= expected else (middle, high)
    return high


@dataclass(frozen=True, slots=True)
class AutoPrediction:
    """What is expected of `auto`: on each prompt about what the best of its parts is, plain
    decoding among them. It may do better where a text changes, and pays for finding out."""

    candidate: Candidate
    ratio: float
    by_prompt: list[float | None]
    tokens_per_s: float


def predict_auto(
    candidate: Candidate, parts: List[Prediction], machine: Machine
) -> AutoPrediction | None:
    """parts: predictions of the methods that it chooses from; None without any."""
    if not parts:
        return None
    columns = zip(*(part.by_prompt for part in parts), strict=True)
    best = [max([1.0, *(ratio for ratio in column if ratio is not None)]) for column in columns]
    return AutoPrediction(
        candidate=candidate,
        ratio=mean_ratio(best),
        by_prompt=[*best],
        tokens_per_s=1000 / machine.plain_step_ms * float(np.mean(best)),
    )
