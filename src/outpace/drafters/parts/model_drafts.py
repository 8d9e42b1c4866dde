"""Drafts that a model makes by passes of its own: chains, or trees that branch at the first token.

Speculative sampling (Leviathan et al. 2211.17192; Chen et al. 2302.01318); several siblings, drawn
without replacement, as in recursive rejection sampling (Jeon et al. 2402.14160).
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as List
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from outpace.drafters.base import DrafterOptions, check_whole_number, path_limit
from outpace.errors import OptionError
from outpace.types import Draft, Scores, Sequence

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Float


@dataclass(frozen=True, kw_only=True)
class ModelDraftOptions(DrafterOptions):
    """Options of whatever drafts by passes of a model."""

    num_branches: int = field(
        default=1,
        metadata={
            "help": "alternatives of the first draft token, each continued as a chain; with more "
            "than one, every level feeds the tree anew"
        },
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole_number("num_branches", self.num_branches, low=1)
        if 1 < self.num_branches > self.num_speculative_tokens:
            raise OptionError(
                f"num_branches={self.num_branches} takes a draft token for each branch, but "
                f"num_speculative_tokens is {self.num_speculative_tokens}; raise it"
            )


class DraftRunner(Protocol):
    """What runs the drafting model: `Runner`, or the first layers of the target."""

    @property
    def can_draft(self) -> bool:
        """Whether `draft_greedy` is possible."""

    def extend(self, seqs: List[Sequence], drafts: List[Draft], *, last_only: bool) -> Scores:
        """Feed what is not fed yet; see `Runner.extend`."""

    def draft_greedy(self, seqs: List[Sequence], counts: List[int]) -> list[list[int]]:
        """The greedy continuation of each sequence, `counts[i]` tokens (at least one)."""

    def commit(self, seqs: Iterable[Sequence]) -> None:
        """Forget what was fed of drafts."""


class ModelDrafts:
    """Draws drafts under the requests' own parameters.

    The distribution that a token was drawn from travels with it as q. Seeded requests choose with
    the noise that the target will use at the same position, which makes the two agree more often
    than independent draws; they and greedy ones branch into the best choices.
    """

    def __init__(
        self, runner: DraftRunner, rng: np.random.Generator, *, origin: str, num_branches: int
    ) -> None:
        self._runner = runner
        self._rng = rng
        self._origin = origin
        self._num_branches = num_branches

    def propose(self, seqs: List[Sequence], limits: List[int]) -> list[Draft]:
        """At most `limits[i]` nodes after each sequence.

        They are shared evenly among the branches, the first gets the rest. The runner must have
        been brought to a few tokens before the end of every sequence with a limit above 0.
        """
        drafts = [
            _Growing(seq, _branch_lengths(limit, self._num_branches, path_limit(seq, limit)))
            for seq, limit in zip(seqs, limits, strict=True)
        ]
        unfinished = [draft for draft in drafts if draft.lengths]
        if self._num_branches == 1 and self._can_draft(unfinished):
            self._draft_at_once(unfinished)
        else:
            while unfinished:
                self._grow(unfinished)
                unfinished = [draft for draft in unfinished if draft.is_unfinished]
        return [draft.so_far(self._origin) for draft in drafts]

    def _can_draft(self, drafts: List[_Growing]) -> bool:
        return self._runner.can_draft and all(_takes_the_best(draft.seq) for draft in drafts)

    def _draft_at_once(self, drafts: List[_Growing]) -> None:
        if drafts:
            counts = [draft.lengths[0] for draft in drafts]
            chosen = self._runner.draft_greedy([draft.seq for draft in drafts], counts)
            for draft, token_ids in zip(drafts, chosen, strict=True):
                draft.token_ids = token_ids

    def _grow(self, drafts: List[_Growing]) -> None:
        """Give every branch that is too short one more token."""
        seqs = [draft.seq for draft in drafts]
        is_chain = self._num_branches == 1
        if not is_chain:
            # Nodes know their ancestors within one pass only, so each level feeds the tree anew.
            self._runner.commit(seqs)
        fed = [draft.so_far(self._origin) for draft in drafts]
        scores = self._runner.extend(seqs, fed, last_only=is_chain)
        logits = scores.on_host()
        for draft, rows in zip(drafts, scores.rows, strict=True):
            draft.grow(logits[rows], self._rng)


@dataclass(slots=True)
class _Growing:
    """One sequence's draft while it is made: branches that differ from the first token on.

    lengths: how many tokens each branch is to have. branches: the nodes of each.
    """

    seq: Sequence
    lengths: list[int]
    token_ids: list[int] = field(default_factory=list)
    q: list[np.ndarray | None] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    branches: list[list[int]] = field(default_factory=list)

    @property
    def is_unfinished(self) -> bool:
        return any(
            len(nodes) < length for nodes, length in zip(self.branches, self.lengths, strict=False)
        )

    def grow(self, logits: Float[np.ndarray, "rows V"], rng: np.random.Generator) -> None:
        """logits: after the nodes so far, in their order; after the newest token if there are
        none. Rows before those, and all but the last of a chain's, need not be there."""
        from outpace.verification.judge import draw_siblings

        if not self.branches:
            drawn = draw_siblings(logits[-1], self.seq, (), len(self.lengths), rng)
            self.branches = [[self._add(token, q, -1)] for token, q in drawn]
            return
        num_fed = len(self.token_ids)
        for branch, nodes in enumerate(self.branches):
            if len(nodes) == self.lengths[branch]:
                continue
            path = [self.token_ids[node] for node in nodes]
            drawn = draw_siblings(logits[nodes[-1] - num_fed], self.seq, path, 1, rng)
            for token, q in drawn:
                nodes.append(self._add(token, q, nodes[-1]))
            if not drawn:  # no token may come there
                self.lengths[branch] = len(nodes)

    def _add(self, token: int, q: np.ndarray | None, parent: int) -> int:
        """A new node; returns its index."""
        self.token_ids.append(token)
        self.q.append(q)
        self.parents.append(parent)
        return len(self.token_ids) - 1

    def so_far(self, origin: str) -> Draft:
        is_soft = any(q is not None for q in self.q)
        return Draft(
            tuple(self.token_ids),
            tuple(self.q) if is_soft else None,
            origin if self.token_ids else "",
            tuple(self.parents) if len(self.branches) > 1 else None,
        )


def _branch_lengths(num_nodes: int, num_branches: int, max_depth: int) -> list[int]:
    """How many tokens each branch gets: an even share of the nodes, and the first the rest."""
    num_branches = min(num_branches, num_nodes)
    if num_branches <= 0 or max_depth <= 0:
        return []
    share = num_nodes // num_branches
    first = num_nodes - share * (num_branches - 1)
    return [min(first, max_depth), *[min(share, max_depth)] * (num_branches - 1)]


def _takes_the_best(seq: Sequence) -> bool:
    """Whether every draft token of the sequence is the argmax of the model's own logits."""
    from outpace.sampling import History

    return seq.params.is_greedy and History(seq).is_neutral
