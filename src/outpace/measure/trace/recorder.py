"""From what was seen of a step to its record."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from outpace.engine.fold import IncrementalDecoder
from outpace.engine.instruments import Instruments, Judge
from outpace.measure.acceptance import acceptance_probability
from outpace.measure.trace.records import (
    Candidate,
    Kind,
    Node,
    Outcome,
    OutputToken,
    Position,
    SequenceStep,
    Step,
)
from outpace.measure.trace.watch import SeenSequence, SeenStep, Watcher
from outpace.sampling.filters import descending
from outpace.types import Sequence
from outpace.verification.chain import path_weight, probability
from outpace.verification.judge import verify

if TYPE_CHECKING:
    from outpace import LLM

NUM_TOP = 3

Row = Float[np.ndarray, " V"]


class Recorder:
    """Records every step of an engine, exactly as it was decided.

        recorder = Recorder(steps.append)
        llm = LLM(model, speculative_config=..., instruments=recorder.instruments)
        recorder.attach(llm)
        llm.generate(...)

    deliver: called with each record in the engine's thread, between steps. Records make p for every
    draft token, those behind a rejection included, which the engine itself never does: a traced
    generation takes longer, and every step says by how much (`Step.recorder_s`). What is drawn and
    decided is the same as without it; but `auto` decides by times, which vary from run to run,
    traced or not.
    """

    def __init__(self, deliver: Callable[[Step], object], *, judge: Judge = verify) -> None:
        self._deliver = deliver
        self._watcher = Watcher(self._record, judge=judge, rows="all")
        self._llm: LLM | None = None
        self._texts: dict[int, IncrementalDecoder] = {}
        self._num_steps = 0
        self._num_decided = 0

    @property
    def instruments(self) -> Instruments:
        """What to give to `LLM`."""
        return self._watcher.instruments

    def attach(self, llm: LLM) -> None:
        """Take texts and decisions from this engine; before its first request."""
        self._llm = llm
        self._num_decided = llm.decisions.num_steps if llm.decisions else 0

    def _record(self, seen: SeenStep) -> None:
        started = time.perf_counter()
        decision = self._decision()
        parts = [self._part(each) for each in seen.sequences]
        step = Step(
            step=self._num_steps,
            draft_s=seen.times.draft_s,
            target_s=seen.times.target_s,
            rest_s=seen.times.rest_s,
            recorder_s=seen.watching_s + time.perf_counter() - started,
            num_sequences=seen.num_sequences,
            decision=decision,
            sequences=parts,
        )
        self._num_steps += 1
        self._deliver(step)

    def _decision(self) -> dict[str, Any] | None:
        """What was decided of this step, where something was."""
        assert self._llm is not None, "attach the recorder before the first request"
        log = self._llm.decisions
        if log is None or log.num_steps == self._num_decided:
            return None
        self._num_decided = log.num_steps
        [record] = log.tail(1)
        return {
            "requests": [request._asdict() for request in record.requests],
            "predicted_tokens": record.predicted_tokens,
            "predicted_s": record.predicted_s,
        }

    def _part(self, seen: SeenSequence) -> SequenceStep:
        rows = [_Row(seen, row) for row in range(seen.draft.num_verified + 1)]
        decided = seen.verdict.accepted_nodes
        reached = {0, *(node + 1 for node in decided)}
        return SequenceStep(
            answer=seen.before.choice,
            num_output=seen.before.num_output,
            origin=seen.draft.origin,
            nodes=self._nodes(seen, rows),
            positions=[self._position(row, row.number in reached) for row in rows],
            output=self._output(seen, rows),
            num_probes=seen.draft.num_probes,
            num_cut=len(seen.verdict.token_ids) - len(seen.kept.token_ids),
        )

    def _nodes(self, seen: SeenSequence, rows: list[_Row]) -> list[Node]:
        draft, outcomes = seen.draft, _outcomes(seen)
        nodes = []
        for node, (token, depth) in enumerate(
            zip(draft.token_ids[: draft.num_verified], draft.depths(), strict=False)
        ):
            row, q_row = rows[draft.parent(node) + 1], draft.q_at(node)
            nodes.append(
                Node(
                    token_id=token,
                    text=self._text(token),
                    parent=draft.parent(node),
                    depth=depth,
                    q=1.0 if q_row is None else float(probability(q_row, token)),
                    one_hot=q_row is None,
                    p=row.probability(token),
                    logprob=row.logprob(token),
                    threshold=float(path_weight(1, row.p, token, q_row)),
                    outcome=outcomes[node],
                )
            )
        return nodes

    def _position(self, row: _Row, is_reached: bool) -> Position:
        return Position(
            after=row.number - 1,
            depth=row.depth,
            alpha=row.alpha,
            entropy=row.entropy,
            top=[self._candidate(row, token) for token in row.top()] if is_reached else [],
        )

    def _candidate(self, row: _Row, token: int) -> Candidate:
        return Candidate(token, self._text(token), row.probability(token), row.logprob(token))

    def _output(self, seen: SeenSequence, rows: list[_Row]) -> list[OutputToken]:
        nodes = seen.kept.accepted_nodes
        decoder = self._decoder(seen.before)
        output = []
        for place, token in enumerate(seen.kept.token_ids):
            node = nodes[place] if place < len(nodes) else None
            row = rows[seen.verdict.accepted_nodes[place - 1] + 1 if place else 0]
            kind: Kind = "accepted"
            if node is None:
                kind = _kind_of_own(seen, row)
            text = decoder.push(token)
            output.append(OutputToken(token, text, kind, row.probability(token), node))
        return output

    def _decoder(self, seq: Sequence) -> IncrementalDecoder:
        if seq.seq_id not in self._texts:
            assert self._llm is not None
            self._texts[seq.seq_id] = IncrementalDecoder(
                self._llm.tokenizer, seq.params.skip_special_tokens
            )
        return self._texts[seq.seq_id]

    def _text(self, token: int) -> str:
        assert self._llm is not None
        tokenizer = self._llm.tokenizer
        # Drafts may hold any id.
        return str(tokenizer.token_text(token)) if 0 <= token < tokenizer.vocab_size else ""


class _Row:
    """The target's distribution at one position of a draft, and what is said of it."""

    def __init__(self, seen: SeenSequence, number: int) -> None:
        self.number = number
        self.p = seen.p(number)
        self._logits = seen.logits[number]
        self._log_total = _log_sum_exp(self._logits)
        self.following = seen.draft.children()[number]
        self.depth = seen.draft.depths()[number - 1] + 1 if number else 1
        self.alpha = (
            acceptance_probability(self.p, seen.draft, self.following) if self.following else None
        )

    @property
    def entropy(self) -> float:
        """In nats."""
        positive = self.p[self.p > 0].astype(np.float64)
        return abs(float(-np.sum(positive * np.log(positive))))

    def probability(self, token: int) -> float:
        return float(probability(self.p, token))

    def logprob(self, token: int) -> float | None:
        """Of the raw logits; None for a token that cannot come, whatever the parameters."""
        if not 0 <= token < self._logits.size:
            return None
        value = float(self._logits[token]) - self._log_total
        return value if np.isfinite(value) else None

    def top(self) -> list[int]:
        """The most probable tokens under the parameters, then, where these leave fewer than
        NUM_TOP, in the raw logits."""
        found = [
            *descending(self.p, NUM_TOP)[:NUM_TOP],
            *descending(self._logits, NUM_TOP)[:NUM_TOP],
        ]
        distinct = dict.fromkeys(int(token) for token in found)
        ranked = sorted(distinct, key=lambda token: (-self.p[token], -self._logits[token], token))
        return ranked[:NUM_TOP]


def _log_sum_exp(logits: Row) -> float:
    highest = float(logits.max())
    with np.errstate(invalid="ignore"):  # a row that is never reached may hold anything
        return highest + float(np.log(np.exp(logits - highest).sum(dtype=np.float64)))


def _outcomes(seen: SeenSequence) -> list[Outcome]:
    draft, decided = seen.draft, seen.verdict.accepted_nodes
    outcomes: list[Outcome] = ["unreached"] * draft.num_verified
    children = draft.children()
    for place, node in enumerate((-1, *decided)):
        following = children[node + 1]
        taken = decided[place] if place < len(decided) else None
        for sibling in following:
            if sibling == taken:
                outcomes[sibling] = "accepted" if place < seen.kept.num_accepted else "cut"
                break
            outcomes[sibling] = "rejected"
    return outcomes


def _kind_of_own(seen: SeenSequence, row: _Row) -> Kind:
    if not seen.draft.num_verified:
        return "plain"
    return "recovered" if row.following else "bonus"
