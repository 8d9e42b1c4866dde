"""What a trace holds: a header, the steps in order, and what they add up to.

Every class is a JSON object with its fields as keys; `files` writes and reads them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

FORMAT = "outpace trace"
VERSION = 1

Outcome = Literal["accepted", "rejected", "unreached", "cut"]
Kind = Literal["accepted", "recovered", "bonus", "plain"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A token that the target might have chosen. p: under the request's parameters, so that only
    one token has any in a greedy request. logprob: from the raw logits; None for -infinity."""

    token_id: int
    text: str
    p: float
    logprob: float | None


@dataclass(frozen=True, slots=True)
class Node:
    """One draft token.

    parent: the node it follows, -1 for the newest committed token. depth: its position in the
    draft, at least 1. p: the target's probability of it where it stands. q: the probability it was
    drafted with, given its earlier siblings; 1.0 with `one_hot` where it was chosen
    deterministically. threshold: min(1, p / q), how likely it is to be accepted by itself; a later
    sibling is judged by what those before it left of p. logprob: see `Candidate`.
    outcome: "accepted" (it is output), "rejected" (the rule came to it and went on without it),
    "unreached" (it follows a token that was not accepted, or a sibling before it was) or "cut" (it
    was accepted, but a stop rule had ended the output).
    """

    token_id: int
    text: str
    parent: int
    depth: int
    q: float
    one_hot: bool
    p: float
    logprob: float | None
    threshold: float
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Position:
    """A place that a token may come at: after node `after`, or -1: after the newest committed one.

    depth: of what comes here. alpha: how likely one of the tokens drafted for it is to be accepted,
    sum of min(p, q) for one; None where none was drafted. entropy: of p, in nats. top: the target's
    three most probable tokens, where the rule came to this place; empty elsewhere.
    """

    after: int
    depth: int
    alpha: float | None
    entropy: float
    top: list[Candidate]


@dataclass(frozen=True, slots=True)
class OutputToken:
    """A token that was output.

    text: what it added to the answer: "" while a character is incomplete. kind: as in `Event`.
    p: the target's probability of it. node: which of the step's nodes it is; None for the target's
    own.
    """

    token_id: int
    text: str
    kind: Kind
    p: float
    node: int | None


@dataclass(frozen=True, slots=True)
class SequenceStep:
    """One answer's part in a step.

    answer: which of the n answers. num_output: its output tokens before the step. origin: the
    drafter; "" where nothing was drafted. num_probes: nodes that were only evaluated, not in
    `nodes`. num_cut: tokens that were decided but not output because of a stop rule.
    """

    answer: int
    num_output: int
    origin: str
    nodes: list[Node]
    positions: list[Position]
    output: list[OutputToken]
    num_probes: int
    num_cut: int

    @property
    def reached(self) -> list[Position]:
        """The places the rule came to, in order."""
        return [position for position in self.positions if position.top]


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the engine.

    draft_s, target_s, rest_s: seconds in the drafter, in the target pass, and besides; recorder_s:
    what recording took, in none of these. num_sequences: answers that took part; those whose prompt
    was only fed are not among `sequences`. decision: what `auto` decided and expected, if it did.
    """

    step: int
    draft_s: float
    target_s: float
    rest_s: float
    recorder_s: float
    num_sequences: int
    decision: dict[str, Any] | None
    sequences: list[SequenceStep]

    @property
    def step_s(self) -> float:
        return self.draft_s + self.target_s + self.rest_s

    @property
    def num_tokens(self) -> int:
        return sum(len(part.output) for part in self.sequences)


@dataclass(frozen=True, slots=True)
class Header:
    """What was traced.

    model: name, fingerprint, dtype. speculative_config: as given, None for the default. lossy: the
    name of the rule that accepted draft tokens, if it is not lossless. sampling: the request's
    parameters. prompt: as given (text or messages) and as token ids. provenance: of the run.
    """

    model: dict[str, Any]
    method: str
    speculative_config: dict[str, Any] | None
    lossy: str | None
    sampling: dict[str, Any]
    prompt: dict[str, Any]
    provenance: dict[str, Any]

    @property
    def num_answers(self) -> int:
        """The request's `n`."""
        n: int = self.sampling.get("n", 1)
        return n


@dataclass(frozen=True, slots=True)
class TracedAnswer:
    """An answer as it was output."""

    text: str
    token_ids: list[int]
    finish_reason: str | None
    stop_reason: int | str | None


@dataclass(frozen=True, slots=True)
class PositionSummary:
    """Draft position by number, over all drafts that reached it. alpha: mean acceptance
    probability, computed. num_accepted: how many were accepted, counted as decided."""

    position: int
    num_reached: int
    num_accepted: int
    alpha: float


@dataclass(frozen=True, slots=True)
class Summary:
    """What the steps add up to.

    complete: False where the run was interrupted. num_steps: those that gave output. alpha: mean
    acceptance probability over all positions that were reached. decode_tokens_per_s: output tokens
    after the first step that gave any, over the time of the steps that gave them, recording left
    out. draft_s, target_s, rest_s, recorder_s: sums over all steps. wall_s: from the request to its
    end, recording included.
    """

    complete: bool
    answers: list[TracedAnswer]
    num_steps: int
    num_output_tokens: int
    num_draft_tokens: int
    num_accepted_tokens: int
    acceptance_length: float
    alpha: float | None
    positions: list[PositionSummary]
    decode_tokens_per_s: float | None
    draft_s: float
    target_s: float
    rest_s: float
    recorder_s: float
    wall_s: float


@dataclass(frozen=True, slots=True)
class Trace:
    """A generation, step by step. summary: None where the run ended before one was written.

    cut_line: the number of a file's last line, where that was cut off and so left out.
    """

    header: Header
    steps: list[Step]
    summary: Summary | None
    cut_line: int | None = None

    @property
    def num_answers(self) -> int:
        return self.header.num_answers

    @property
    def missing_end(self) -> str:
        """What to say where there is no summary."""
        cut = "" if self.cut_line is None else f" Line {self.cut_line} is damaged: it was cut off."
        return f"This trace has no end: whatever wrote it was interrupted.{cut}"

    def parts(self, answer: int) -> Iterator[tuple[Step, SequenceStep]]:
        """The steps that one answer had a part in, with that part."""
        for step in self.steps:
            for part in step.sequences:
                if part.answer == answer:
                    yield step, part

    def pieces(self, answer: int) -> list[tuple[str, OutputToken, SequenceStep]]:
        """The answer's tokens with the text each added, cut where the answer's text was: before a
        stop string. The texts make up the answer, but for a last character left incomplete."""
        found = [
            (token.text, token, part) for _, part in self.parts(answer) for token in part.output
        ]
        if self.summary is None or answer >= len(self.summary.answers):
            return found
        left, cut = len(self.summary.answers[answer].text), []
        for text, token, part in found:
            cut.append((text[:left], token, part))
            left -= len(cut[-1][0])
        return cut
