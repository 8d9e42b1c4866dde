"""Trees whose shape is fixed before their tokens are known, the most promising nodes first."""

from __future__ import annotations

import heapq
from collections.abc import Sequence as List
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Slot:
    """A place in a static tree: child number `rank` (0: the likeliest) of the slot `parent` (-1:
    the root), `depth` tokens past the root."""

    parent: int
    rank: int
    depth: int


def best_first(acceptance: List[float], num_slots: int) -> list[Slot]:
    """The `num_slots` slots most likely to be accepted, likeliest first, parents before children.

    acceptance: by rank, the probability that the child of that rank is the next token, given that
        its parent was accepted; below 1 and never rising. What a slot is worth is the product
        along its path.
    The first K slots are the best tree of K nodes, whatever K: no slot is worth more than its
    parent, nor more than its sibling of the rank before. Of equals the one reached first comes
    first.
    """
    slots: list[Slot] = []
    # (-worth, when it was reached, slot): only the children next in line wait here.
    waiting = [(-acceptance[0], 0, Slot(-1, 0, 1))]
    while waiting and len(slots) < num_slots:
        negative_worth, _, slot = heapq.heappop(waiting)
        following = [(negative_worth * acceptance[0], Slot(len(slots), 0, slot.depth + 1))]
        if slot.rank + 1 < len(acceptance):
            worth = negative_worth / acceptance[slot.rank] * acceptance[slot.rank + 1]
            following.append((worth, Slot(slot.parent, slot.rank + 1, slot.depth)))
        slots.append(slot)
        for worth, one in following:
            heapq.heappush(waiting, (worth, 2 * len(slots) + (one.rank > 0), one))
    return slots
