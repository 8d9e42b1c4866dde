"""What a step is planned under: what it may cost, and what a second is worth."""

from __future__ import annotations

from dataclasses import dataclass

from outpace.control.costs import StepCosts


@dataclass(frozen=True, slots=True)
class Terms:
    """Of one step of these sequences.

    context: cached tokens over all sequences. regime: of the whole step, see `control/regimes.py`.
    rate: output tokens a second is worth.
    """

    costs: StepCosts
    num_seqs: int
    context: int
    regime: str
    rate: float

    def curve(self, most_drafted: int) -> list[float]:
        """Seconds of the step, drafting left out, with 0, 1, ..., `most_drafted` draft tokens of
        all sequences together."""
        most_rows = self.num_seqs + most_drafted
        return self.costs.curve(self.num_seqs, self.context, most_rows, self.regime)
