"""Trees of the likeliest paths over independent positions, against all paths there are."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outpace.drafters.parts.product_tree import likeliest_paths
from outpace.drafters.parts.static_tree import Slot


def random_rows(seed: int, depth: int, width: int) -> list[list[float]]:
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(depth):
        logits = np.sort(rng.normal(size=width) * 2)[::-1]
        rows.append((logits - np.log(np.exp(logits).sum())).tolist())
    return rows


def ranks_of(nodes: list[Slot], node: int) -> tuple[int, ...]:
    """The ranks along a node's path."""
    path: list[int] = []
    while node >= 0:
        path.append(nodes[node].rank)
        node = nodes[node].parent
    return tuple(path[::-1])


def score(rows: list[list[float]], ranks: tuple[int, ...]) -> float:
    return sum(row[rank] for row, rank in zip(rows, ranks, strict=False))


@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 4), st.integers(0, 40))
def test_the_likeliest_nodes_of_all(seed: int, depth: int, width: int, num_nodes: int) -> None:
    rows = random_rows(seed, depth, width)
    every = [
        score(rows, ranks) for d in range(1, depth + 1) for ranks in product(range(width), repeat=d)
    ]
    nodes = likeliest_paths(rows, num_nodes)
    scores = [score(rows, ranks_of(nodes, node)) for node in range(len(nodes))]
    assert np.allclose(scores, sorted(every, reverse=True)[:num_nodes])
    assert len({ranks_of(nodes, node) for node in range(len(nodes))}) == len(nodes)
    for node, slot in enumerate(nodes):
        assert slot.parent < node
        assert slot.depth == len(ranks_of(nodes, node))


@given(st.integers(0, 10**6), st.integers(1, 12))
def test_siblings_come_likeliest_first(seed: int, num_nodes: int) -> None:
    nodes = likeliest_paths(random_rows(seed, 3, 4), num_nodes)
    for parent in range(-1, len(nodes)):
        ranks = [slot.rank for slot in nodes if slot.parent == parent]
        assert ranks == list(range(len(ranks)))


@pytest.mark.parametrize("num_nodes", [1, 2, 3, 5])
def test_a_sure_drafter_gets_a_chain_first(num_nodes: int) -> None:
    rows = [[-0.01, -5.0]] * 3
    nodes = likeliest_paths(rows, num_nodes)
    assert [slot.parent for slot in nodes[:3]] == [-1, 0, 1][:num_nodes]


def test_nothing_to_make_a_tree_of() -> None:
    assert likeliest_paths([], 5) == []
    assert likeliest_paths([[0.0]], 0) == []
    # A position that is certain costs nothing: its parent still comes first.
    assert likeliest_paths([[0.0], [0.0]], 9) == [Slot(-1, 0, 1), Slot(0, 0, 2)]
