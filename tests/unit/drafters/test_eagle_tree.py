"""The dynamic tree: what is expanded, what is kept, in which order; vectors of published code."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outpace.drafters.parts.eagle_tree import CandidateTree
from outpace.models.attention import Segment

VECTORS = json.loads(
    (Path(__file__).parents[2] / "vectors" / "tree_vectors.json").read_text(encoding="utf-8")
)
Law = Callable[[list[int]], np.ndarray]
"""From the tokens of a path to the probabilities after it."""


def grown(law: Law, *, top_k: int, max_nodes: int, max_depth: int) -> CandidateTree:
    tree = CandidateTree(top_k=top_k, max_nodes=max_nodes, max_depth=max_depth)
    while frontier := tree.frontier():
        for node in frontier:
            p = law(path(tree, node))
            best = np.argsort(-p, kind="stable")[:top_k]
            tree.add(node, best.tolist(), np.log(p[best]).tolist())
    return tree


def path(tree: CandidateTree, node: int) -> list[int]:
    return [tree.token_ids[n] for n in tree.closure([node])]


def test_vectors() -> None:
    for vector in VECTORS:
        table = {key: np.array(p) for key, p in vector["table"].items()}
        asked = []

        def law(tokens: list[int], table: Any = table, asked: Any = asked) -> np.ndarray:
            asked.append(tokens)
            return table[str([0, *tokens])]

        depth = vector["extra_depth"] + 1
        tree = grown(law, top_k=vector["k"], max_nodes=vector["m"], max_depth=depth)
        nodes = tree.best()
        parents = tree.parents_within(nodes)
        assert [path(tree, node) for node in nodes] == vector["paths"]
        assert list(parents) == vector["parent"]
        assert [tree.scores[node] for node in nodes] == pytest.approx(vector["logp"], abs=1e-8)
        # Their tree has a row and a column for the newest token, and counts positions from it.
        segment = Segment(0, 0, len(nodes), parents)
        mask = np.array(vector["mask"], dtype=bool)
        assert (segment.ancestors() == mask[1:, 1:]).all()
        assert [p + 1 for p in segment.positions()] == vector["position_offset"][1:]
        assert len(asked) <= len(table)


def random_law(seed: int, vocab_size: int) -> Law:
    def law(tokens: list[int]) -> np.ndarray:
        rng = np.random.default_rng([seed, *tokens])
        # Few different weights, so that many paths are equally likely.
        weights = rng.integers(1, 4, vocab_size) ** 2
        return weights / weights.sum()

    return law


def reference(law: Law, *, top_k: int, max_nodes: int, max_depth: int) -> list[list[int]]:
    """The published procedure with nothing left out: every level's best `top_k` are expanded."""
    candidates: list[tuple[float, int, list[int]]] = []
    frontier: list[tuple[float, int, list[int]]] = [(0.0, -1, [])]
    for _ in range(max_depth):
        level = []
        for score, _, tokens in frontier:
            p = law(tokens)
            for token in np.argsort(-p, kind="stable")[:top_k].tolist():
                index = len(candidates) + len(level)
                level.append((score + math.log(p[token]), index, [*tokens, token]))
        candidates += level
        frontier = sorted(level, key=lambda c: (-c[0], c[1]))[:top_k]
    best = sorted(candidates, key=lambda c: (-c[0], c[1]))[:max_nodes]
    return [tokens for _, _, tokens in sorted(best, key=lambda c: c[1])]


def test_a_smaller_frontier_changes_nothing() -> None:
    rng = np.random.default_rng(0)
    for seed in range(60):
        vocab_size, top_k = int(rng.integers(1, 7)), int(rng.integers(1, 5))
        shape = {
            "top_k": top_k,
            "max_nodes": int(rng.integers(1, 20)),
            "max_depth": int(rng.integers(1, 5)),
        }
        law = random_law(seed, vocab_size)
        tree = grown(law, **shape)
        assert [path(tree, node) for node in tree.best()] == reference(law, **shape), shape


def test_parents_come_first_and_siblings_best_first() -> None:
    for seed in range(20):
        tree = grown(random_law(seed, 6), top_k=4, max_nodes=10, max_depth=4)
        nodes = tree.best()
        parents = tree.parents_within(nodes)
        assert len(nodes) == 10
        assert all(parent < node for node, parent in enumerate(parents))
        for parent in range(-1, 10):
            scores = [tree.scores[nodes[i]] for i, p in enumerate(parents) if p == parent]
            assert scores == sorted(scores, reverse=True)


def test_only_what_can_be_kept_is_expanded() -> None:
    tree = grown(lambda tokens: np.array([0.9, 0.1]), top_k=2, max_nodes=3, max_depth=4)
    # The second token of the first level is behind three nodes of the likelier path at once.
    assert [path(tree, node) for node in tree.best()] == [[0], [0, 0], [0, 0, 0]]
    assert CandidateTree(top_k=2, max_nodes=0, max_depth=3).frontier() == []
    assert CandidateTree(top_k=2, max_nodes=3, max_depth=0).frontier() == []
