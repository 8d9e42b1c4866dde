"""Where measuring takes hold of an engine: what decides its drafts, and what its steps took.

Nothing here is needed to generate. `outpace.measure` records what was decided, replays texts that
are known beforehand, and plants wrong rules to see whether they are found.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as List
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from outpace.types import Draft, Scores, Sequence, StepTimes, Verdict
from outpace.verification.judge import verify
from outpace.verification.lossy import TypicalAcceptance


class Judge(Protocol):
    """Decides the drafts of a batch; `verify` does so for every engine unless told otherwise.

    Called in the engine's thread, once per step, with the sequences as they stand before their
    verdicts. `scores` are valid until it returns. Who wraps `verify` and hands on what it returned
    has seen everything and changed nothing.
    """

    def __call__(
        self,
        scores: Scores,
        seqs: List[Sequence],
        drafts: List[Draft],
        rng: np.random.Generator,
        lossy: TypicalAcceptance | None = None,
    ) -> list[Verdict]: ...


@dataclass(frozen=True, slots=True)
class Instruments:
    """judge: what decides drafts. Only `verify`, and what returns its verdicts, is lossless.

    timed: called in the engine's thread after every step with what it took, judge included.
    """

    judge: Judge = verify
    timed: Callable[[StepTimes], None] | None = None
