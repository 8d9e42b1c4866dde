"""Static trees: each prefix of the list is the best tree of its size."""

from __future__ import annotations

import pytest

from outpace.drafters.parts.static_tree import Slot, best_first
from outpace.drafters.recycling import ACCEPTANCE_BY_RANK


def worths(slots: list[Slot], acceptance: tuple[float, ...]) -> list[float]:
    found: list[float] = []
    for slot in slots:
        above = 1.0 if slot.parent < 0 else found[slot.parent]
        found.append(above * acceptance[slot.rank])
    return found


def count_above(floor: float, acceptance: tuple[float, ...], above: float = 1.0) -> int:
    """How many places of the endless tree are worth more than `floor`."""
    return sum(
        1 + count_above(floor, acceptance, above * value)
        for value in acceptance
        if above * value > floor
    )


@pytest.mark.parametrize("acceptance", [ACCEPTANCE_BY_RANK, (0.9,), (0.5, 0.5), (0.6, 0.3, 0.2)])
def test_every_prefix_is_a_tree_and_the_best_one(acceptance: tuple[float, ...]) -> None:
    slots = best_first(acceptance, 80)
    assert len(slots) == len({(s.parent, s.rank) for s in slots}) == 80
    for place, slot in enumerate(slots):
        assert -1 <= slot.parent < place
        assert slot.depth == 1 + (0 if slot.parent < 0 else slots[slot.parent].depth)
    found = worths(slots, acceptance)
    assert found == pytest.approx(sorted(found, reverse=True))
    for size in range(1, 81):
        # A little more than the last of them, or rounding would decide about its equals.
        assert count_above(found[size - 1] * (1 + 1e-9), acceptance) < size


def test_one_rank_makes_a_chain() -> None:
    assert best_first([0.5], 4) == [Slot(i - 1, 0, i + 1) for i in range(4)]
    assert best_first([0.5], 0) == []


def test_of_equals_the_one_reached_first_comes_first() -> None:
    assert best_first([0.5, 0.25], 3) == [Slot(-1, 0, 1), Slot(0, 0, 2), Slot(-1, 1, 1)]
