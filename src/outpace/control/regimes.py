"""What requests have in common whose drafts are accepted and judged in the same way."""

from __future__ import annotations

from collections.abc import Sequence as List

from outpace.types import Sequence

REGIMES = ("greedy", "sampled", "seeded")
"""Those whose rows take longer come later."""


def regime_of(seq: Sequence) -> str:
    if seq.params.is_greedy:
        return "greedy"
    return "sampled" if seq.params.seed is None else "seeded"


def common_regime(seqs: List[Sequence]) -> str:
    """That of the sequence whose rows take the longest."""
    return max(map(regime_of, seqs), key=REGIMES.index)
