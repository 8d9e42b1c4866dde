"""What every step of an engine took, fed and yielded."""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import dataclass

import numpy as np

from outpace.engine.instruments import Instruments
from outpace.types import Draft, Scores, Sequence, StepTimes, Verdict
from outpace.verification.judge import verify
from outpace.verification.lossy import TypicalAcceptance


@dataclass(frozen=True, slots=True)
class Step:
    """One decoding step of all requests together, times in seconds.

    rest_s: in the engine's step, but neither in the drafter nor in the target pass. num_rows: the
    newest tokens and drafts that were fed, probes included. num_drafted: draft tokens that were
    verified. num_tokens: what became output.
    """

    draft_s: float
    pass_s: float
    rest_s: float
    num_seqs: int
    num_rows: int
    num_drafted: int
    num_tokens: int


class StepRecorder:
    """Records the steps of the one engine that gets its `instruments`; decides as `verify` does."""

    def __init__(self) -> None:
        self._steps: list[Step] = []
        self._judged: list[tuple[Sequence, int, Draft]] = []

    @property
    def instruments(self) -> Instruments:
        return Instruments(judge=self._judge, timed=self._timed)

    def clear(self) -> None:
        """Forget everything."""
        self._steps.clear()

    def newest(self, count: int) -> tuple[Step, ...]:
        """The last `count` steps."""
        return tuple(self._steps[len(self._steps) - count :]) if count else ()

    def _judge(
        self,
        scores: Scores,
        seqs: List[Sequence],
        drafts: List[Draft],
        rng: np.random.Generator,
        lossy: TypicalAcceptance | None = None,
    ) -> list[Verdict]:
        self._judged = [(s, len(s.tokens), d) for s, d in zip(seqs, drafts, strict=True)]
        return verify(scores, seqs, drafts, rng, lossy)

    def _timed(self, times: StepTimes) -> None:
        judged, self._judged = self._judged, []
        self._steps.append(
            Step(
                draft_s=times.draft_s,
                pass_s=times.target_s,
                rest_s=times.step_s - times.draft_s - times.target_s,
                num_seqs=len(judged),
                num_rows=sum(1 + len(draft.token_ids) for _, _, draft in judged),
                num_drafted=sum(draft.num_verified for _, _, draft in judged),
                num_tokens=sum(len(seq.tokens) - before for seq, before, _ in judged),
            )
        )
