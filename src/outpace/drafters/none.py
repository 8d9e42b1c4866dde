"""Plain decoding: the drafter that never proposes anything. There is no second loop."""

from __future__ import annotations

from collections.abc import Sequence as List

from outpace.drafters.base import Drafter, DrafterOptions
from outpace.types import Draft, Sequence


class NoOptions(DrafterOptions):
    """There is nothing to choose."""

    @property
    def draft_limit(self) -> int:
        return 0


class NoDrafter(Drafter):
    """Proposes nothing, so every target pass yields exactly one token."""

    Options = NoOptions

    def propose(self, seqs: List[Sequence], budgets: List[int]) -> list[Draft]:
        return [Draft()] * len(seqs)
