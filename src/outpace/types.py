"""The values that travel between the rooms. They trim and add up themselves."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from outpace.params import SamplingParams

if TYPE_CHECKING:
    import numpy as np
    import torch

    from outpace.grammar import GrammarState


class Status(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(eq=False)
class Sequence:
    """One request's tokens and how far it has come. Owned and mutated by the engine only.

    Between steps no cache holds more than `tokens[:-1]`: the newest token is always still to
    be fed, because feeding it is what yields the next distribution.

    choice: index of the answer among the n to one prompt; part of a seeded request's noise.
    end_token_ids: the model's own end tokens, whether or not the request stops at them.
    bad_words_ids: `params.bad_words` as sequences of token ids, none of which may be completed.
    max_len: most tokens it may come to hold, prompt included; None if nothing is known.
    cache_salt: requests share what is remembered of others' text (cached prefixes, a drafter's
        stores) only with requests of the same salt.
    method: the drafting method it asked for; "" means the engine's own.
    grammar: what `params.structured_outputs` allows at each position of this answer, if it is asked
        for; follows the tokens by itself.
    """

    seq_id: int
    tokens: list[int]
    num_prompt: int
    params: SamplingParams
    end_token_ids: frozenset[int] = frozenset()
    choice: int = 0
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    max_len: int | None = None
    cache_salt: str = ""
    method: str = ""
    grammar: GrammarState | None = None
    status: Status = Status.WAITING

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.num_prompt


@dataclass(frozen=True, slots=True)
class Draft:
    """Proposed tokens: a chain, each following the one before it, or a tree.

    token_ids: the proposal; of a tree one token per node, parents before their children.
    q: for each token the distribution it was drawn from (array [V] of probabilities), or None
        where the token was chosen deterministically (q is then one-hot). `q=None` says so for
        all. It is a claim that must be exactly true; None is always safe.
    origin: which drafter proposed it; used in statistics only.
    parents: None for a chain; else for each node the index of the node it follows, -1 for the
        newest committed token. Siblings stand in the order they were drawn in, and the q of a
        sibling is what it was drawn from given those before it: without replacement, that is the
        first one's q without their tokens, renormalised.
    num_probes: how many nodes at the end are only evaluated: fed in the same pass for the sake of
        their scores, and never accepted.
    claims: how likely the drafter thinks each token of a chain is to be accepted, given those
        before it; None where it does not say. Only ever used to decide how far to draft.
    """

    token_ids: tuple[int, ...] = ()
    q: tuple[np.ndarray | None, ...] | None = None
    origin: str = ""
    parents: tuple[int, ...] | None = None
    num_probes: int = 0
    claims: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.q is not None and len(self.q) != len(self.token_ids):
            raise ValueError(f"{len(self.token_ids)} draft tokens but {len(self.q)} rows of q")
        if self.parents is not None:
            _check_parents(self.parents, len(self.token_ids))
        if not 0 <= self.num_probes <= len(self.token_ids):
            raise ValueError(f"{self.num_probes} probes among {len(self.token_ids)} draft tokens")

    def __len__(self) -> int:
        """How many tokens the target is to be fed, probes included."""
        return len(self.token_ids)

    @property
    def num_verified(self) -> int:
        """How many tokens may be accepted: all but the probes, which come last."""
        return len(self.token_ids) - self.num_probes

    @property
    def is_chain(self) -> bool:
        """Whether every token may be accepted and follows the one before it."""
        if self.num_probes:
            return False
        return self.parents is None or all(p == i - 1 for i, p in enumerate(self.parents))

    @property
    def is_deterministic(self) -> bool:
        """Whether every q is one-hot."""
        return self.q is None or all(row is None for row in self.q)

    def q_at(self, position: int) -> np.ndarray | None:
        return None if self.q is None else self.q[position]

    def parent(self, node: int) -> int:
        return node - 1 if self.parents is None else self.parents[node]

    def children(self) -> list[list[int]]:
        """[node + 1]: the children of each node that may be accepted, in drawn order; [0]: those of
        the newest committed token."""
        children: list[list[int]] = [[] for _ in range(self.num_verified + 1)]
        for node in range(self.num_verified):
            children[self.parent(node) + 1].append(node)
        return children

    def path(self, node: int) -> list[int]:
        """The nodes from the first after the newest committed token to `node`, itself included."""
        if self.parents is None:
            return list(range(node + 1))
        path = []
        while node >= 0:
            path.append(node)
            node = self.parents[node]
        return path[::-1]

    def tokens_to(self, node: int) -> tuple[int, ...]:
        """The tokens of `path(node)`."""
        if self.parents is None:
            return self.token_ids[: node + 1]
        return tuple(self.token_ids[n] for n in self.path(node))

    def depths(self) -> list[int]:
        """How many tokens each node is past the newest committed one; at least 1."""
        if self.parents is None:
            return list(range(1, len(self) + 1))
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent < 0 else depths[parent] + 1)
        return depths

    def shortened(self, length: int) -> Draft:
        """The same draft cut to its first `length` tokens."""
        return self._only(range(min(length, len(self))))

    def no_deeper_than(self, depth: int) -> Draft:
        """The same draft without what lies more than `depth` tokens past the newest one."""
        return self._only([n for n, d in enumerate(self.depths()) if d <= depth])

    def first_path(self) -> Draft:
        """The chain of every first child: what is left of a tree where none can be fed."""
        children, nodes = self.children(), []
        following = children[0]
        while following:
            nodes.append(following[0])
            following = children[following[0] + 1]
        chain = self._only(nodes)
        return Draft(chain.token_ids, chain.q, chain.origin)

    def _only(self, nodes: Collection[int]) -> Draft:
        """The same draft with these nodes alone: ascending, each with its parent."""
        if len(nodes) == len(self):
            return self
        q = None if self.q is None else tuple(self.q[n] for n in nodes)
        parents = None
        if self.parents is not None:
            place = {-1: -1} | {node: i for i, node in enumerate(nodes)}
            parents = tuple(place[self.parents[n]] for n in nodes)
        return Draft(
            tuple(self.token_ids[n] for n in nodes),
            q,
            self.origin,
            parents,
            sum(n >= self.num_verified for n in nodes),
            None if self.claims is None else tuple(self.claims[n] for n in nodes),
        )


def _check_parents(parents: tuple[int, ...], num_tokens: int) -> None:
    if len(parents) != num_tokens:
        raise ValueError(f"{num_tokens} draft tokens but {len(parents)} parents")
    for node, parent in enumerate(parents):
        if not -1 <= parent < node:
            raise ValueError(f"the parent of draft token {node} must come before it, got {parent}")


NO_DRAFT = Draft()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one step decided for one sequence.

    token_ids: the output of the step: the accepted draft tokens, then one token of the target's
        own, recovered or bonus, unless a stop rule trimmed it away or no token may come there.
    num_accepted: how many of them are accepted draft tokens.
    error: why the request cannot go on, if it cannot; there are no tokens then.
    nodes: which nodes of the draft the accepted tokens are, a path from its root; None where they
        are its first ones, as of every chain.
    """

    token_ids: tuple[int, ...] = ()
    num_accepted: int = 0
    error: Exception | None = None
    nodes: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.nodes is not None and len(self.nodes) != self.num_accepted:
            raise ValueError(f"{self.num_accepted} accepted tokens but {len(self.nodes)} nodes")

    @property
    def accepted_nodes(self) -> tuple[int, ...]:
        """The nodes of the draft that were accepted, first token first."""
        return tuple(range(self.num_accepted)) if self.nodes is None else self.nodes

    def trimmed(self, length: int) -> Verdict:
        """The same verdict cut to its first `length` tokens."""
        num_accepted = min(self.num_accepted, length)
        nodes = None if self.nodes is None else self.nodes[:num_accepted]
        return Verdict(self.token_ids[:length], num_accepted, self.error, nodes)


@dataclass(frozen=True, slots=True)
class StepTimes:
    """What one step took, in seconds.

    draft_s: in the drafter's `propose`. target_s: in the target pass. step_s: from the choice of
    the batch to the end of the drafter's `observe`.
    """

    draft_s: float
    target_s: float
    step_s: float

    @property
    def rest_s(self) -> float:
        """Probabilities, verification, text and bookkeeping."""
        return self.step_s - self.draft_s - self.target_s


@dataclass(slots=True)
class Scores:
    """What one target pass returned for a batch of sequences.

    values: logits as the model returned them, float32 (float64 from a float64 model) [R, V]: for
        each sequence in turn, one row after its last committed token and one after each draft
        token; none for a sequence whose prompt is not fully fed yet. Read them as `logits` or
        `on_host`.
    rows: for each sequence its slice of `logits`: row 0 after the newest committed token, row
        i + 1 after node i of its draft; empty while its prompt is being fed.
    hidden: for each captured layer, the residual stream after it for every *fed* token, [N, H].
        Valid until the next pass.
    fed: for each sequence its slice of the N fed tokens.
    starts: for each sequence the position of the first of its fed tokens; what the cache held
        before is not fed.
    prompt_rows: for each sequence whose prompt is scored the slice of `logits` with one row after
        each fed token, the last of which are those of `rows`; empty for the others.
    """

    values: torch.Tensor | np.ndarray
    rows: list[slice]
    fed: list[slice]
    hidden: Mapping[int, torch.Tensor] = field(default_factory=dict)
    prompt_rows: list[slice] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)

    def only(self, places: Collection[int]) -> Scores:
        """Those of some sequences, given by their places in the batch; no array is copied."""
        return Scores(
            self.values,
            [self.rows[i] for i in places],
            [self.fed[i] for i in places],
            self.hidden,
            [self.prompt_rows[i] for i in places],
            [self.starts[i] for i in places],
        )

    @property
    def logits(self) -> torch.Tensor:
        """The values as a tensor, where the model has them; not copied."""
        import torch

        return torch.as_tensor(self.values)

    def on_host(self) -> np.ndarray:
        """The values in host memory; copied, all rows at once, if they are on another device.

        A model that computes with numpy never meets torch here, whose every call costs more than
        reading a row.
        """
        values: Any = self.values
        return values.cpu().numpy() if hasattr(values, "cpu") else values
