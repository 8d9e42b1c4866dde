"""What a draft is worth on held-out answers: acceptance of chains under greedy decoding."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as List
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from outpace.training.options import Evaluation
from outpace.training.trainee import Trainee, TrainingBatch

if TYPE_CHECKING:
    from jaxtyping import Int
    from torch import Tensor

    from outpace.training.store import FeatureStore

SEQUENCES_PER_BATCH = 16


@runtime_checkable
class ChainTrainee(Protocol):
    """A trainee that can say how far its drafts would be accepted from every token of an answer."""

    def accepted_lengths(
        self, batch: TrainingBatch, steps: int
    ) -> tuple[Int[Tensor, " A"], Int[Tensor, " A"]]:
        """(index of the newest token of each chain, ascending; how many of `steps` drafts after it
        are the answer's own tokens). A chain for every answer token but the last of an answer."""


@dataclass
class CycleCount:
    """Greedy decoding replayed on known answers, with K draft tokens a cycle.

    A cycle drafts after the newest token, takes the drafts that are the answer's and one token of
    the target's own. Exact for answers that are the target's argmax at every token.
    """

    num_draft_tokens: int
    cycles: int = 0
    tokens: int = 0
    tried: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tried = [0] * self.num_draft_tokens
        self.accepted = [0] * self.num_draft_tokens

    def add(self, lengths: List[int]) -> None:
        """One answer. lengths: [n - 1] for each of its tokens but the last how many drafts after it
        are right, not cut at K."""
        newest, left = 0, len(lengths)
        while newest < left:
            possible = min(self.num_draft_tokens, left - newest)
            taken = min(lengths[newest], possible)
            for i in range(min(taken + 1, possible)):
                self.tried[i] += 1
            for i in range(taken):
                self.accepted[i] += 1
            self.cycles += 1
            newest += taken + 1
        self.tokens += left

    @property
    def tokens_per_cycle(self) -> float:
        """Acceptance length; the token that ends an answer early counts what is left of it."""
        return self.tokens / self.cycles if self.cycles else 1.0

    @property
    def acceptance(self) -> tuple[float, ...]:
        """Conditional acceptance at each draft position."""
        return tuple(a / t if t else 0.0 for a, t in zip(self.accepted, self.tried, strict=True))


def evaluate(
    trainee: Trainee, store: FeatureStore, indices: List[int], num_draft_tokens: int
) -> Evaluation:
    """Loss, conditional acceptance and tokens per cycle at K = 1..`num_draft_tokens`.

    For a trainee without `accepted_lengths` the last two follow from its `LossReport`s: every token
    of an answer counts as the start of a chain, not only those where a cycle would begin.
    """
    import torch

    loss_sum, weight = 0.0, 0
    tried, accepted = [0] * num_draft_tokens, [0] * num_draft_tokens
    counts = [CycleCount(k) for k in range(1, num_draft_tokens + 1)]
    for batch in _batches(store, indices):
        with torch.no_grad():
            report = trainee.loss(batch, training=False)
        tokens = int(batch.is_answer.sum())
        loss_sum, weight = loss_sum + float(report.loss) * tokens, weight + tokens
        for i, (t, a) in enumerate(zip(report.tried, report.accepted, strict=True)):
            if i < num_draft_tokens:
                tried[i], accepted[i] = tried[i] + t, accepted[i] + a
        if isinstance(trainee, ChainTrainee):
            for lengths in _by_answer(*trainee.accepted_lengths(batch, num_draft_tokens)):
                for count in counts:
                    count.add(lengths)
    loss = loss_sum / max(weight, 1)
    if isinstance(trainee, ChainTrainee):
        return Evaluation(loss, counts[-1].acceptance, tuple(c.tokens_per_cycle for c in counts))
    acceptance = tuple(a / t if t else 0.0 for a, t in zip(accepted, tried, strict=True))
    return Evaluation(loss, acceptance, _expected_tokens(acceptance))


def _batches(store: FeatureStore, indices: List[int]) -> Iterator[TrainingBatch]:
    for at in range(0, len(indices), SEQUENCES_PER_BATCH):
        yield store.batch(indices[at : at + SEQUENCES_PER_BATCH])


def _by_answer(newest: Iterable[int], lengths: Iterable[int]) -> Iterator[list[int]]:
    """Lengths of the chains of each answer: its tokens are consecutive."""
    answer: list[int] = []
    previous = None
    for token, length in zip(map(int, newest), map(int, lengths), strict=True):
        if previous is not None and token != previous + 1:
            yield answer
            answer = []
        answer.append(length)
        previous = token
    if answer:
        yield answer


def _expected_tokens(acceptance: List[float]) -> tuple[float, ...]:
    """1 + a1 + a1 a2 + .. for K = 1, 2, .."""
    tokens, reached, out = 1.0, 1.0, []
    for a in acceptance:
        reached *= a
        tokens += reached
        out.append(tokens)
    return tuple(out)
