"""Trees over positions that are guessed independently of one another.

Every node of depth d has the same candidates, those of position d, as children have in Medusa's
trees (Cai et al. 2401.10774, section 3.1.2); which of them are in the tree is decided by how likely
the drafter takes each path to be, anew for every draft.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence as List

from outpace.drafters.parts.static_tree import Slot


def likeliest_paths(log_probs: List[List[float]], num_nodes: int) -> list[Slot]:
    """The `num_nodes` nodes whose paths are likeliest, likeliest first, parents before children.

    log_probs: [depth][rank], of the candidates of each position, never rising with the rank and
    none above 0; those of a path add up. A heap holds the first child and the next sibling of every
    node taken: neither is likelier than the node. Of equals the shallower node comes first, then
    the one reached first.
    """
    nodes: list[Slot] = []
    waiting = [(-log_probs[0][0], 1, 0, Slot(-1, 0, 1))] if log_probs else []
    while waiting and len(nodes) < num_nodes:
        cost, depth, _, node = heapq.heappop(waiting)
        row = log_probs[depth - 1]
        if node.rank + 1 < len(row):
            sibling = Slot(node.parent, node.rank + 1, depth)
            more = cost + row[node.rank] - row[sibling.rank]
            heapq.heappush(waiting, (more, depth, 2 * len(nodes), sibling))
        if depth < len(log_probs):
            child = Slot(len(nodes), 0, depth + 1)
            deeper = cost - log_probs[depth][0]
            heapq.heappush(waiting, (deeper, depth + 1, 2 * len(nodes) + 1, child))
        nodes.append(node)
    return nodes
