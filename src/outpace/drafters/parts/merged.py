"""One tree of what a lookup and an EAGLE head propose.

The head's greedy chain is the spine. At every node of it the head's runners-up are siblings of the
next one, and so is the lookup's token where it is another, with the rest of the lookup's chain
behind it. Nothing is drawn, also where the request samples: every q is one-hot, and which nodes are
kept may depend on all of them (the rules for trees in docs/losslessness.md).
"""

from __future__ import annotations

from collections.abc import Sequence as List
from itertools import pairwise
from typing import TYPE_CHECKING

from outpace.control.rivals import Candidate, Ranked, Rivals
from outpace.drafters.parts.eagle_drafter import EagleDrafter
from outpace.types import Draft, Sequence

if TYPE_CHECKING:
    from outpace.drafters.base import Drafter, DraftingContext

ROOT = -1
NUM_RANKED = 3
"""Tokens that the head ranks for each position. A third one is right in one case of twenty, which
is what a row costs; a fourth is not."""


class Merging:
    """Makes trees of two drafters' tokens.

    rivals: what is known of either's tokens beside the other's.
    """

    def __init__(self, head: EagleDrafter) -> None:
        self.rivals = Rivals()
        self._head = head

    def takes(self, seq: Sequence) -> bool:
        """With a grammar chains are cut to what it allows, trees are not."""
        return seq.grammar is None

    def grow(self, asked: List[tuple[Sequence, Draft, List[float], int]]) -> list[MergedTree]:
        """A tree for each sequence, from the lookup's chain, for each token of it the probability
        that it and all before it are right, and how many levels the head is to draft."""
        seqs, _, _, depths = zip(*asked, strict=True)
        ranked = self._head.rank(seqs, depths, NUM_RANKED)
        return [
            MergedTree(seq.seq_id, self.rivals, offer, ladder, levels)
            for (seq, offer, ladder, _), levels in zip(asked, ranked, strict=True)
        ]


def merging_with(trained: Drafter | None, context: DraftingContext) -> Merging | None:
    """None where the trained drafter ranks no tokens, or the target takes no trees."""
    if isinstance(trained, EagleDrafter) and context.runner.takes_trees:
        return Merging(trained)
    return None


class MergedTree:
    """The candidates for one request's next tokens. Nodes are numbered parents first.

    worths: of each node the probability that it and all before it are right; never above its
    parent's. num_levels: how far the head drafted.
    """

    def __init__(
        self,
        seq_id: int,
        rivals: Rivals,
        offer: Draft,
        ladder: List[float],
        levels: List[Ranked],
    ) -> None:
        """offer, ladder: the lookup's chain, see `Merging.grow`. levels: what the head ranks after
        the likeliest token of each level before."""
        self.worths: list[float] = []
        self.num_levels = len(levels)
        self._seq_id, self._rivals = seq_id, rivals
        self._token_ids: list[int] = []
        self._parents: list[int] = []
        self._contests: dict[int, list[Candidate]] = {}  # by the node that they follow
        self._children: dict[tuple[int, int], int] = {}  # by node and token
        ratios = [after / before if before else 0.0 for before, after in pairwise((1.0, *ladder))]
        self._grow(offer, ratios, levels)

    def _grow(self, offer: Draft, ratios: List[float], levels: List[Ranked]) -> None:
        """ratios: for each of the lookup's tokens the probability that it is right, given that all
        before it are."""
        claims = offer.claims or ()
        node, is_shared = ROOT, True  # whether the spine has been the lookup's chain so far
        for depth, ranked in enumerate(levels):
            told = offer.token_ids[depth] if is_shared and depth < len(claims) else None
            claim = 0.0 if told is None else claims[depth]
            contest = self._rivals.candidates(self._seq_id, ranked, told, claim)
            self._contests[node] = contest
            places = {each.token_id: self._add(node, each.token_id, each.worth) for each in contest}
            node = places[ranked.token_ids[0]]
            is_shared = told == ranked.token_ids[0]
            if told is not None and not is_shared:
                self._hang(places[told], offer, ratios, depth + 1)
        if is_shared:
            self._hang(node, offer, ratios, len(levels))

    def _hang(self, node: int, offer: Draft, ratios: List[float], begin: int) -> None:
        """Add the lookup's chain from its token `begin` on behind a node."""
        for token_id, ratio in zip(offer.token_ids[begin:], ratios[begin:], strict=True):
            node = self._add(node, token_id, ratio)

    def _add(self, parent: int, token_id: int, worth: float) -> int:
        """Add a node. worth: the probability that it is right, given that its parent is."""
        node = self._children[parent, token_id] = len(self._token_ids)
        self._token_ids.append(token_id)
        self._parents.append(parent)
        self.worths.append(worth * (1.0 if parent == ROOT else self.worths[parent]))
        return node

    def draft(self, nodes: List[int], origin: str) -> Draft:
        """Some of the nodes, ascending and each with its parent, as a draft."""
        place = {ROOT: ROOT} | {node: i for i, node in enumerate(nodes)}
        token_ids = tuple(self._token_ids[node] for node in nodes)
        parents = tuple(place[self._parents[node]] for node in nodes)
        return Draft(token_ids, origin=origin, parents=parents)

    def observe(self, said: List[int]) -> None:
        """Learn from the tokens that were said, as far as the tree has a path for them: also of
        candidates that were not fed."""
        node: int | None = ROOT
        for token_id in said:
            if node is None:
                return
            if node in self._contests:
                self._rivals.observe(self._seq_id, self._contests[node], token_id)
            node = self._children.get((node, token_id))
