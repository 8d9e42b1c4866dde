"""Watching an engine's steps without changing what it does.

The engine judges drafts inside a step whose time it measures, and `auto` learns from that time. So
a `Watcher` only copies there what will be looked at, and hands it on once the step is over and its
time has been taken. What it spends is known by itself and can be left out of every figure.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from collections.abc import Sequence as List
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from jaxtyping import Float

from outpace.engine.instruments import Instruments, Judge
from outpace.errors import OutpaceError
from outpace.sampling import History, probabilities
from outpace.types import Draft, Scores, Sequence, StepTimes, Verdict
from outpace.verification.judge import verify
from outpace.verification.lossy import TypicalAcceptance


@dataclass(frozen=True, slots=True)
class SeenSequence:
    """One sequence's part in a step.

    before: the sequence as its draft was judged: a copy, whose tokens end before the step's.
    verdict: what was decided. kept: what of it became output; a stop rule may have cut it.
    logits: the target's rows by their number, 0 after the newest token and node + 1 after a node
        [V]: those that the `Watcher` was to keep.
    """

    before: Sequence
    draft: Draft
    verdict: Verdict
    kept: Verdict
    logits: dict[int, Float[np.ndarray, " V"]]

    def p(self, row: int) -> Float[np.ndarray, " V"]:
        """The target's distribution at one of the rows in `logits`, under the request's parameters;
        zeros where they leave no token. Made anew at each call."""
        if self.before.grammar is not None:
            self.before.grammar.forget()  # it has seen the tokens that came after
        logits = self.logits[row]
        try:
            return probabilities(logits, History(self.before), self.draft.tokens_to(row - 1))
        except OutpaceError:
            return np.zeros_like(logits)


@dataclass(frozen=True, slots=True)
class SeenStep:
    """A step that is over.

    times: what it took, less what was spent on watching it (`watching_s`).
    num_sequences: how many took part, those whose prompts were fed included; `sequences` are those
    that a verdict was given for.
    """

    times: StepTimes
    watching_s: float
    num_sequences: int
    sequences: list[SeenSequence]


class Watcher:
    """A judge that decides as `judge` does and hands every step to `seen` once it is over.

    Give `instruments` to one `LLM`. seen: called in the engine's thread, between steps; what it
    takes is in no step's time. rows: whose logits are kept: "all", those behind a rejection too,
    or "reached", those that the verdict went along.
    spent_s: seconds spent on watching so far, in `seen` included.
    """

    def __init__(
        self,
        seen: Callable[[SeenStep], object],
        *,
        judge: Judge = verify,
        rows: Literal["all", "reached"] = "reached",
    ) -> None:
        self.spent_s = 0.0
        self._seen = seen
        self._decide = judge
        self._rows = rows
        self._waiting: list[_Copied] = []
        self._num_sequences = 0
        self._copying_s = 0.0

    @property
    def instruments(self) -> Instruments:
        return Instruments(judge=self.judge, timed=self.timed)

    def judge(
        self,
        scores: Scores,
        seqs: List[Sequence],
        drafts: List[Draft],
        rng: np.random.Generator,
        lossy: TypicalAcceptance | None = None,
    ) -> list[Verdict]:
        """The wrapped judge's verdicts; see `Judge`."""
        verdicts = self._decide(scores, seqs, drafts, rng, lossy)
        started = time.perf_counter()
        logits = scores.on_host()
        self._waiting = [
            self._copied(logits[rows], seq, draft, verdict)
            for seq, draft, rows, verdict in zip(seqs, drafts, scores.rows, verdicts, strict=True)
            if rows.stop > rows.start and verdict.error is None
        ]
        self._num_sequences = len(seqs)
        self._copying_s = time.perf_counter() - started
        return verdicts

    def timed(self, times: StepTimes) -> None:
        """Hand on the step that has just been judged."""
        started = time.perf_counter()
        copied, self._waiting = self._waiting, []
        watching_s, self._copying_s = self._copying_s, 0.0
        self._seen(
            SeenStep(
                times=replace(times, step_s=times.step_s - watching_s),
                watching_s=watching_s,
                num_sequences=self._num_sequences,
                sequences=[each.seen() for each in copied],
            )
        )
        self.spent_s += watching_s + time.perf_counter() - started

    def _copied(
        self, logits: Float[np.ndarray, "rows V"], seq: Sequence, draft: Draft, verdict: Verdict
    ) -> _Copied:
        wanted: Iterable[int] = range(draft.num_verified + 1)
        if self._rows == "reached":
            wanted = [0, *(node + 1 for node in verdict.accepted_nodes)]
        return _Copied(
            live=seq,
            before=replace(seq, tokens=list(seq.tokens)),
            draft=_with_own_q(draft),
            verdict=verdict,
            logits={row: logits[row].copy() for row in wanted},
        )


@dataclass(frozen=True, slots=True)
class _Copied:
    """A sequence's part in a step whose end is not known yet. live: the engine's sequence."""

    live: Sequence
    before: Sequence
    draft: Draft
    verdict: Verdict
    logits: dict[int, Float[np.ndarray, " V"]]

    def seen(self) -> SeenSequence:
        num_kept = len(self.live.tokens) - len(self.before.tokens)
        kept = self.verdict.trimmed(num_kept)
        return SeenSequence(self.before, self.draft, self.verdict, kept, self.logits)


def _with_own_q(draft: Draft) -> Draft:
    """The same draft with rows of q that no drafter writes to any more."""
    if draft.q is None:
        return draft
    return replace(draft, q=tuple(None if row is None else row.copy() for row in draft.q))
