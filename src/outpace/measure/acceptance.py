"""How likely the target was to accept what was drafted, computed from p and q, not counted.

Whether a draft token is accepted is a coin's throw; its probability is known. At a position with
the target's distribution p where one token was drawn from q it is

    a = sum_x min(p(x), q(x)) = 1 - TV(p, q)

which for a token chosen deterministically (q one-hot) is p of the token. Where several siblings
c_1, .., c_n were drafted, recursive rejection accepts one of them with probability

    1 - (1 - r_1) .. (1 - r_(n-1)) (1 - a_n),  r_j = min(1, p_j(c_j) / q_j(c_j))

where p_j is what the siblings before c_j left of p, q_j what c_j was drawn from, and a_n as above
for the last one, averaged over its draw alone: the draws of the others are known by then.

The mean of these has the expectation of the acceptance rate and a smaller variance. Exactly so
where a rule decides position after position with fresh coins (token verification, recursive
rejection), and for greedy requests, whose p is one-hot. Block verification and traversal accept
more on average. A request with a seed is matched with the choices of its own noise, which the
drafter shares where it samples: it is accepted more often than its one-hot drafts say.
"""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float

from outpace.engine.instruments import Instruments, Judge
from outpace.measure.trace.watch import SeenSequence, SeenStep, Watcher
from outpace.types import Draft
from outpace.verification.chain import mass, path_weight, probability, residual
from outpace.verification.judge import verify


def overlap(
    p_row: Float[np.ndarray, " V"], token: int, q_row: Float[np.ndarray, " V_draft"] | None
) -> float:
    """sum_x min(p(x), q(x)): how likely a token drawn from q is to be accepted, in [0, 1].

    q_row: of any width, ids outside p have probability 0 there; None where the token was chosen
    deterministically, which gives p(token).
    """
    if q_row is None:
        return float(probability(p_row, token))
    width = min(p_row.size, q_row.size)
    return min(1.0, float(np.minimum(p_row[:width], q_row[:width]).sum(dtype=np.float64)))


def acceptance_probability(
    p_row: Float[np.ndarray, " V"], draft: Draft, siblings: List[int]
) -> float:
    """How likely recursive rejection is to accept one of the nodes that follow a position.

    p_row: the target's distribution there. siblings: those nodes of `draft`, in drawn order; none
    gives 0. See the module.
    """
    if not siblings:
        return 0.0
    rejected, left = 1.0, p_row
    for node in siblings[:-1]:
        token, q_row = draft.token_ids[node], draft.q_at(node)
        rejected *= 1.0 - float(path_weight(1, left, token, q_row))
        rest = residual(left, token, q_row)
        total = mass(rest)
        if not (rejected > 0 and total > 0):
            return 1.0 - rejected  # nothing of p, or nothing but rounding, is left for the others
        left = rest / total
    last = siblings[-1]
    return 1.0 - rejected * (1.0 - overlap(left, draft.token_ids[last], draft.q_at(last)))


@dataclass(slots=True)
class PositionAcceptance:
    """One position of the drafts (the first is 1), over all drafts that reached it.

    num_reached: drafts that had a token here after all before it were accepted. num_accepted: how
    many of these went on. sum_probability: the sum of their acceptance probabilities.
    """

    num_reached: int = 0
    num_accepted: int = 0
    sum_probability: float = 0.0

    @property
    def alpha(self) -> float | None:
        """Mean acceptance probability; None where nothing was reached."""
        return self.sum_probability / self.num_reached if self.num_reached else None

    @property
    def accepted_share(self) -> float | None:
        """How often it was accepted, counted."""
        return self.num_accepted / self.num_reached if self.num_reached else None

    def add(self, other: PositionAcceptance) -> None:
        self.num_reached += other.num_reached
        self.num_accepted += other.num_accepted
        self.sum_probability += other.sum_probability


@dataclass(slots=True)
class Acceptances:
    """Sums of acceptance probabilities by position, collected while an engine runs; no text.

        acceptances = Acceptances()
        llm = LLM(model, speculative_config=..., instruments=acceptances.instruments())
        llm.generate(...)
        acceptances.alpha, [position.alpha for position in acceptances.positions]

    positions: [0] is the first draft position. Verdicts count as the rule gave them, before a stop
    rule cut them. spent_s: seconds that counting took; in no step's time, but for copying the rows
    that were reached.
    """

    positions: list[PositionAcceptance] = field(default_factory=list)
    _watcher: Watcher | None = None

    def instruments(self, judge: Judge = verify) -> Instruments:
        """What to give to `LLM`. judge: what decides; `verify` unless recorded text is replayed."""
        self._watcher = Watcher(self._count_step, judge=judge)
        return self._watcher.instruments

    @property
    def alpha(self) -> float | None:
        """The mean acceptance probability over all positions that were reached; None without any.

        Of drafts whose acceptance does not depend on the position it is the alpha of
        E = (1 - alpha^(K+1)) / (1 - alpha).
        """
        num_reached = sum(position.num_reached for position in self.positions)
        total = sum(position.sum_probability for position in self.positions)
        return total / num_reached if num_reached else None

    @property
    def accepted_share(self) -> float | None:
        """How often a reached position was accepted, counted; None without any."""
        num_reached = sum(position.num_reached for position in self.positions)
        num_accepted = sum(position.num_accepted for position in self.positions)
        return num_accepted / num_reached if num_reached else None

    @property
    def spent_s(self) -> float:
        return self._watcher.spent_s if self._watcher else 0.0

    def clear(self) -> None:
        """Forget what was counted."""
        self.positions.clear()

    def add(self, other: Acceptances) -> None:
        for depth, position in enumerate(other.positions):
            self._at(depth).add(position)

    def count(self, depth: int, probability: float, *, is_accepted: bool) -> None:
        """Count one draft that reached a position. depth: 0 for the first."""
        self._at(depth).add(PositionAcceptance(1, int(is_accepted), probability))

    def _at(self, depth: int) -> PositionAcceptance:
        while len(self.positions) <= depth:
            self.positions.append(PositionAcceptance())
        return self.positions[depth]

    def _count_step(self, step: SeenStep) -> None:
        for seen in step.sequences:
            self._count_draft(seen)

    def _count_draft(self, seen: SeenSequence) -> None:
        children, nodes = seen.draft.children(), seen.verdict.accepted_nodes
        for depth, node in enumerate((-1, *nodes)):
            following = children[node + 1]
            if following:
                likely = acceptance_probability(seen.p(node + 1), seen.draft, following)
                self.count(depth, likely, is_accepted=depth < len(nodes))
