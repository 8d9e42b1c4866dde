"""What an engine shows while the study runs: what steps take, and how p and q agree.

Timed runs are not watched beyond the clock that the engine keeps anyway. Acceptance is taken from
runs of their own (`recording`), whose times nobody looks at.

alpha is computed, not counted. A draft x_1..x_K was drawn from q_1..q_K; at each position the
overlap a_i = sum_x min(p_i(x), q_i(x)) is the probability that token verification accepts a token
drawn from q_i, and the weight w_i = prod_{j<i} min(1, p_j(x_j) / q_j(x_j)) is the probability that
it gets there. Over many drafts, alpha_i = sum w_i a_i / sum w_i, with no coin thrown.

Two checks go with it. Were the draft tokens drawn from q? Then the sum of w_i (min(1, p_i(x_i) /
q_i(x_i)) - a_i) has mean 0. Does the engine decide by p and q? Given a draft, block verification,
its rule, accepts n >= i tokens with probability 1 - prod_{j>=i} (1 - h_j), so that the sum of
(n - E n) has mean 0. Both sums D have a known variance V and terms of at most m, and are so far
from 0 by chance no more often than Freedman's inequality allows:

    P(|D| >= t) <= 2 exp(-t^2 / (2 (V + m t / 3)))
"""

from __future__ import annotations

import math
from collections.abc import Sequence as List
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float

from outpace.engine.instruments import Instruments, Judge
from outpace.measure.acceptance import overlap
from outpace.measure.trace.watch import SeenSequence, SeenStep, Watcher
from outpace.types import Draft, Scores, Sequence, StepTimes, Verdict
from outpace.verification.chain import block_thresholds, path_weight
from outpace.verification.judge import verify
from outpace.verification.lossy import TypicalAcceptance

LEAST_CHANCE = 1e-4
"""What is less likely than this is no chance."""


@dataclass(slots=True)
class Balance:
    """A sum that should be about 0: of counts less their expectations.

    variance: of the sum, if expectations are right. largest: most that one term can be.
    """

    sum: float = 0.0
    variance: float = 0.0
    largest: float = 1.0

    def add(self, difference: float, variance: float) -> None:
        self.sum += difference
        self.variance += variance

    @property
    def chance(self) -> float:
        """How likely at most it is that the sum is so far from 0; see the module."""
        distance = abs(self.sum)
        if distance < ROUNDING:
            return 1.0
        spread = 2 * (self.variance + self.largest * distance / 3)
        return min(1.0, 2 * math.exp(-(distance**2) / spread))

    @property
    def holds(self) -> bool:
        return self.chance >= LEAST_CHANCE


ROUNDING = 1e-3
"""A sum this small may be what float32 leaves of 0."""


@dataclass(slots=True)
class Agreement:
    """Sums over recorded drafts.

    weights, overlaps: by position, sums of w_i and of w_i a_i. accepted, expected: tokens of all
    drafts, counted and under the rule that the engine uses. drawn, decided: the two checks.
    """

    num_drafts: int = 0
    weights: list[float] = field(default_factory=list)
    overlaps: list[float] = field(default_factory=list)
    accepted: int = 0
    expected: float = 0.0
    drawn: Balance = field(default_factory=Balance)
    decided: Balance = field(default_factory=Balance)

    def add(self, p: List[Float[np.ndarray, " V"]], draft: Draft, num_accepted: int) -> None:
        """Count one chain. p: the target's K + 1 rows. num_accepted: what was decided."""
        weight = 1.0
        for i, token in enumerate(draft.token_ids):
            if len(self.weights) == i:
                self.weights.append(0.0)
                self.overlaps.append(0.0)
            likely, q = overlap(p[i], token, draft.q_at(i)), draft.q_at(i)
            accepts = float(path_weight(1, p[i], token, q))
            self.weights[i] += weight
            self.overlaps[i] += weight * likely
            self.drawn.add(weight * (accepts - likely), weight**2 * _variance(p[i], q, likely))
            weight *= accepts
        at_least = _accepts_at_least(p, draft)
        mean = sum(at_least)
        square = sum((2 * i - 1) * share for i, share in enumerate(at_least, 1))
        self.num_drafts += 1
        self.accepted += num_accepted
        self.expected += mean
        self.decided.largest = max(self.decided.largest, float(len(draft)))
        self.decided.add(num_accepted - mean, max(0.0, square - mean**2))

    @property
    def alphas(self) -> list[float]:
        """alpha_i by position, as far as anything got there."""
        pairs = zip(self.overlaps, self.weights, strict=True)
        return [overlaps / weights for overlaps, weights in pairs if weights > 0]

    def alpha(self, k: int) -> float | None:
        """Over the first k positions together; None where nothing was recorded."""
        weights = sum(self.weights[:k])
        return sum(self.overlaps[:k]) / weights if weights > 0 else None


def _variance(
    p: Float[np.ndarray, " V"], q: Float[np.ndarray, " V_draft"] | None, likely: float
) -> float:
    """Of min(1, p(x) / q(x)) over x drawn from q; likely: its mean."""
    if q is None:
        return 0.0
    width = min(p.size, q.size)
    drawn = q[:width].astype(np.float64)
    both = np.minimum(p[:width], drawn)
    square = float((both[drawn > 0] ** 2 / drawn[drawn > 0]).sum())
    return max(0.0, square - likely**2)


def _accepts_at_least(p: List[Float[np.ndarray, " V"]], draft: Draft) -> list[float]:
    """P(n >= i) for i = 1..K of block verification, which for one-hot q is token verification."""
    _, thresholds = block_thresholds(np.stack(p), draft)
    at_least, none_from_here = [], 1.0
    for threshold in reversed(thresholds):
        none_from_here *= 1 - float(threshold)
        at_least.append(1 - none_from_here)
    return at_least[::-1]


class StepMeter:
    """Goes into one engine, which decodes one request at a time.

    num_drafted: draft tokens of a full step (0: plain decoding). judge: what decides; another than
    `verify` only to see whether its faults are found.
    times: of decoding steps with a full draft, runs that are recorded left out.
    """

    def __init__(self, num_drafted: int, judge: Judge = verify) -> None:
        self.recording = False
        self.times: list[StepTimes] = []
        self.agreement = Agreement()
        self._num_drafted = num_drafted
        self._decide = judge
        self._watcher = Watcher(self._seen, judge=judge, rows="all")
        self._is_full_step = False

    @property
    def instruments(self) -> Instruments:
        return Instruments(judge=self._judge, timed=self._timed)

    def _judge(
        self,
        scores: Scores,
        seqs: List[Sequence],
        drafts: List[Draft],
        rng: np.random.Generator,
        lossy: TypicalAcceptance | None = None,
    ) -> list[Verdict]:
        # Steps that feed the prompt, and those whose draft was cut short by the answer's end, are
        # not what c and v speak of.
        self._is_full_step = all(
            seq.num_output > 0 and draft.num_verified == self._num_drafted
            for seq, draft in zip(seqs, drafts, strict=True)
        )
        decide = self._watcher.judge if self.recording else self._decide
        return decide(scores, seqs, drafts, rng, lossy)

    def _timed(self, times: StepTimes) -> None:
        if self.recording:
            self._watcher.timed(times)
        elif self._is_full_step:
            self.times.append(times)

    def _seen(self, step: SeenStep) -> None:
        for seen in step.sequences:
            if len(seen.draft) and seen.draft.is_chain:
                self._add(seen)

    def _add(self, seen: SeenSequence) -> None:
        p = [seen.p(row) for row in range(len(seen.draft) + 1)]
        # A row without mass is a position where no token may come: nothing is drafted past it.
        if all(row.any() for row in p):
            self.agreement.add(p, seen.draft, seen.verdict.num_accepted)
