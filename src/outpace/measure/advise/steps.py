"""Steps of drafting as a replay knows them, and what follows from them for acceptance."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as List
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Step:
    """One step of one request.

    num_rows: of the target's pass: the newest token and all draft nodes, probes included.
    num_drafted, num_accepted: draft tokens verified, and accepted. num_tokens: output tokens.
    goes_on: whether the draft had a token at the position after the accepted ones, and the text
    went on there.
    """

    num_rows: int
    num_drafted: int
    num_accepted: int
    num_tokens: int
    goes_on: bool


@dataclass(slots=True)
class PositionScores:
    """What was drafted after every position of one recorded answer.

    num_tokens: of the answer. drafted: tokens of the longest draft, by position. accepted: by
    number of draft tokens, then position: how many of the first k would have been accepted.
    """

    num_tokens: int
    drafted: list[int] = field(default_factory=list)
    accepted: dict[int, list[int]] = field(default_factory=dict)

    def add(self, num_drafted: int, accepted: Mapping[int, int]) -> None:
        """The next position."""
        self.drafted.append(num_drafted)
        for k, count in accepted.items():
            self.accepted.setdefault(k, []).append(count)

    def steps(self, k: int) -> list[Step]:
        """The steps that decoding this answer takes with at most `k` draft tokens.

        From the first position on, each step goes as far as it was accepted and one token further.
        """
        found, position = [], 0
        while position < self.num_tokens:
            num_drafted = min(self.drafted[position], k)
            accepted = self.accepted[k][position]
            left = self.num_tokens - position
            num_tokens = min(accepted + 1, left)
            accepted = min(accepted, num_tokens)
            was_cut = num_tokens == accepted
            found.append(
                Step(
                    num_rows=1 + num_drafted,
                    num_drafted=num_drafted,
                    num_accepted=accepted,
                    num_tokens=num_tokens,
                    goes_on=not was_cut and accepted < num_drafted,
                )
            )
            position += num_tokens
        return found


@dataclass(frozen=True, slots=True)
class AcceptanceSummary:
    """Of some steps, the first of every answer left out, which also reads the prompt.

    expected: E, output tokens per step. alpha: share accepted of the draft tokens that were
    reached; None where none was. conditional: by position; reached: the drafts that were.
    num_rows: mean rows of a pass. num_steps, num_tokens: counted.
    """

    expected: float
    alpha: float | None
    conditional: list[float]
    reached: list[int]
    num_rows: float
    num_steps: int
    num_tokens: int


def summarise_steps(answers: Iterable[List[Step]]) -> AcceptanceSummary:
    """Acceptance over the steps of several answers."""
    steps = [step for answer in answers for step in answer[1:]]
    num_tokens = sum(step.num_tokens for step in steps)
    accepted: list[int] = []
    reached: list[int] = []
    for step in steps:
        _count(accepted, step.num_accepted)
        _count(reached, step.num_accepted + step.goes_on)
    accepted += [0] * (len(reached) - len(accepted))
    return AcceptanceSummary(
        expected=num_tokens / len(steps) if steps else 1.0,
        alpha=sum(accepted) / sum(reached) if reached else None,
        conditional=[a / r for a, r in zip(accepted, reached, strict=True)],
        reached=reached,
        num_rows=sum(step.num_rows for step in steps) / len(steps) if steps else 1.0,
        num_steps=len(steps),
        num_tokens=num_tokens,
    )


def _count(counts: list[int], depth: int) -> None:
    counts += [0] * (depth - len(counts))
    for position in range(depth):
        counts[position] += 1
