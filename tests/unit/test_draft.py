"""Drafts as chains and trees: paths, depths, cuts, and how they are fed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from outpace.models.attention import Segment
from outpace.types import Draft, Verdict

TREES = json.loads((Path(__file__).parents[1] / "vectors" / "tree_vectors.json").read_text())
ROWS = tuple(np.full(4, 0.25) for _ in range(6))

#    -1
#   /  \
#  0    1      node n holds token 10 + n
#  |   / \
#  2  3   5
#  |
#  4
TREE = Draft((10, 11, 12, 13, 14, 15), (*ROWS[:5], None), "toy", parents=(-1, -1, 0, 1, 2, 1))
CHAIN = Draft((10, 11, 12), ROWS[:3], "toy")


@pytest.mark.parametrize("vector", TREES, ids=range(len(TREES)))
def test_vectors(vector: dict) -> None:
    """Mask, positions and leaf paths; in the vectors index 0 is the newest committed token."""
    draft = Draft(tuple(path[-1] for path in vector["paths"]), parents=tuple(vector["parent"]))
    assert [list(draft.tokens_to(node)) for node in range(len(draft))] == vector["paths"]
    assert [0, *draft.depths()] == vector["position_offset"]
    leaves = [node for node, below in enumerate(draft.children(), -1) if not below]
    paths = sorted([0, *(node + 1 for node in draft.path(leaf))] for leaf in leaves)
    assert paths == sorted(vector["leaf_paths"])

    # Fed behind the newest token, which is the segment's first.
    parents = (-1, *(parent + 1 for parent in draft.parents))
    segment = Segment(0, 7, len(parents), parents)
    assert segment.ancestors().astype(int).tolist() == vector["mask"]
    assert [position - 7 for position in segment.positions()] == vector["position_offset"]


def test_a_tree() -> None:
    assert len(TREE) == TREE.num_verified == 6
    assert not TREE.is_chain
    assert TREE.children() == [[0, 1], [2], [3, 5], [4], [], [], []]
    assert TREE.path(4) == [0, 2, 4]
    assert TREE.path(-1) == []
    assert TREE.tokens_to(5) == (11, 15)
    assert TREE.tokens_to(-1) == ()
    assert TREE.depths() == [1, 1, 2, 2, 3, 2]
    assert [TREE.parent(node) for node in range(6)] == [-1, -1, 0, 1, 2, 1]


def test_a_chain() -> None:
    assert CHAIN.is_chain
    assert CHAIN.children() == [[0], [1], [2], []]
    assert CHAIN.path(1) == [0, 1]
    assert CHAIN.tokens_to(1) == (10, 11)
    assert CHAIN.tokens_to(-1) == ()
    assert CHAIN.depths() == [1, 2, 3]
    written = Draft(CHAIN.token_ids, parents=(-1, 0, 1))
    assert written.is_chain
    assert written.children() == CHAIN.children()
    assert written.depths() == CHAIN.depths()
    assert [written.path(n) for n in range(-1, 3)] == [CHAIN.path(n) for n in range(-1, 3)]


def test_probes_stand_last_and_have_no_place_among_the_children() -> None:
    draft = Draft(TREE.token_ids, parents=TREE.parents, num_probes=2)
    assert len(draft) == 6
    assert draft.num_verified == 4
    assert draft.children() == [[0, 1], [2], [3], [], []]
    assert draft.tokens_to(4) == (10, 12, 14)
    assert not Draft((1, 2), num_probes=1).is_chain


def test_cut_to_a_length() -> None:
    cut = TREE.shortened(4)
    assert cut == Draft((10, 11, 12, 13), ROWS[:4], "toy", (-1, -1, 0, 1))
    assert TREE.shortened(6) is TREE
    assert TREE.shortened(99) is TREE
    assert TREE.shortened(0) == Draft((), (), "toy", ())
    probed = Draft(TREE.token_ids, parents=TREE.parents, num_probes=2)
    assert probed.shortened(5).num_probes == 1
    assert probed.shortened(3).num_probes == 0
    assert CHAIN.shortened(2) == Draft((10, 11), ROWS[:2], "toy")


def test_cut_to_a_depth() -> None:
    cut = TREE.no_deeper_than(2)
    assert cut.token_ids == (10, 11, 12, 13, 15)
    assert cut.parents == (-1, -1, 0, 1, 1)
    assert cut.q == (*ROWS[:4], None)
    assert TREE.no_deeper_than(3) is TREE
    assert TREE.no_deeper_than(0).token_ids == ()
    assert CHAIN.no_deeper_than(2) == CHAIN.shortened(2)
    probed = Draft(TREE.token_ids, parents=TREE.parents, num_probes=2)
    assert probed.no_deeper_than(2).num_probes == 1


def test_the_first_path() -> None:
    path = TREE.first_path()
    assert path == Draft((10, 12, 14), (ROWS[0], ROWS[2], ROWS[4]), "toy")
    assert path.is_chain
    assert CHAIN.first_path() == CHAIN
    probed = Draft((10, 11, 12), parents=(-1, 0, 1), num_probes=1)
    assert probed.first_path() == Draft((10, 11))
    assert Draft().first_path() == Draft()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"token_ids": (1, 2), "parents": (-1,)}, "1 parents"),
        ({"token_ids": (1, 2), "parents": (-1, 1)}, "must come before"),
        ({"token_ids": (1, 2), "parents": (-2, 0)}, "must come before"),
        ({"token_ids": (1, 2), "q": (None,)}, "1 rows of q"),
        ({"token_ids": (1, 2), "num_probes": 3}, "3 probes"),
        ({"token_ids": (1, 2), "num_probes": -1}, "-1 probes"),
    ],
)
def test_malformed_drafts_are_refused(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Draft(**arguments)


def test_deterministic_means_every_q_is_one_hot() -> None:
    assert Draft((1, 2)).is_deterministic
    assert Draft((1, 2), (None, None)).is_deterministic
    assert not Draft((1, 2), (None, ROWS[0])).is_deterministic


def test_a_verdict_keeps_its_path_when_it_is_trimmed() -> None:
    verdict = Verdict((11, 13, 5), 2, nodes=(1, 3))
    assert verdict.accepted_nodes == (1, 3)
    assert verdict.trimmed(3) == verdict
    assert verdict.trimmed(2) == Verdict((11, 13), 2, nodes=(1, 3))
    assert verdict.trimmed(1) == Verdict((11,), 1, nodes=(1,))
    assert Verdict((11, 13, 5), 2).accepted_nodes == (0, 1)
    with pytest.raises(ValueError, match="2 accepted tokens but 1 nodes"):
        Verdict((11, 13, 5), 2, nodes=(1,))
