"""The dynamic tree of EAGLE-2 (Li et al. 2406.16858): grown and cut by the draft's confidence.

A node's score is the log probability that its draft gives to the path to it. Level by level the
`top_k` likeliest new nodes get their `top_k` likeliest children, and of all nodes the `max_nodes`
likeliest stay. A child never scores above its parent, so they are connected; equal scores prefer
the node added first, which is never the deeper one.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as List


class CandidateTree:
    """Grows by `frontier` and `add` in turn until there is no frontier any more.

    token_ids, parents, depths, scores: of each node, in the order added; -1 is the root, whose
    children have depth 1.
    """

    def __init__(self, *, top_k: int, max_nodes: int, max_depth: int) -> None:
        self._top_k = top_k
        self._max_nodes = max_nodes
        self._max_depth = max_depth
        self.token_ids: list[int] = []
        self.parents: list[int] = []
        self.depths: list[int] = []
        self.scores: list[float] = []

    def frontier(self) -> list[int]:
        """The nodes of the newest level to be given children, likeliest first; [-1] of a tree
        without nodes.

        A node that is not among the best now is not among them later, nor is any child of it: the
        smaller frontier leaves `best` what it would be.
        """
        if not self.depths:
            return [-1] if self._max_nodes > 0 and self._max_depth > 0 else []
        newest = self.depths[-1]
        if newest >= self._max_depth:
            return []
        level = (node for node, depth in enumerate(self.depths) if depth == newest)
        best = set(self.best())
        return [node for node in self._likeliest(level, self._top_k) if node in best]

    def add(self, parent: int, token_ids: List[int], log_probs: List[float]) -> None:
        """Give a node of the frontier its children, likeliest first."""
        depth = self.depths[parent] + 1 if parent >= 0 else 1
        score = self.scores[parent] if parent >= 0 else 0.0
        self.token_ids += token_ids
        self.parents += [parent] * len(token_ids)
        self.depths += [depth] * len(token_ids)
        self.scores += [score + log_prob for log_prob in log_probs]

    def best(self) -> list[int]:
        """The likeliest `max_nodes` nodes, parents before children and siblings likeliest first."""
        return sorted(self._likeliest(range(len(self.scores)), self._max_nodes))

    def closure(self, nodes: Iterable[int]) -> list[int]:
        """These nodes and all before them on their paths, parents first."""
        found: set[int] = set()
        for node in nodes:
            while node >= 0 and node not in found:
                found.add(node)
                node = self.parents[node]
        return sorted(found)

    def parents_within(self, nodes: List[int]) -> tuple[int, ...]:
        """The parent of each node as its index among `nodes`; -1 for the root."""
        place = {-1: -1} | {node: i for i, node in enumerate(nodes)}
        return tuple(place[self.parents[node]] for node in nodes)

    def _likeliest(self, nodes: Iterable[int], count: int) -> list[int]:
        return sorted(nodes, key=lambda node: -self.scores[node])[:count]
