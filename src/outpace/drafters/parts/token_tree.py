"""Runs of tokens as one tree, in which equal beginnings are shared."""

from __future__ import annotations

from collections.abc import Sequence as List


class TokenTree:
    """Grows by runs that all start at the root.

    token_ids, parents: of each node, in the order they were added; -1 is the root.
    """

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.parents: list[int] = []
        self._nodes: dict[tuple[int, int], int] = {}  # by parent and token

    def add(self, run: List[int], max_nodes: int) -> None:
        """Add a run as far as the tree has at most `max_nodes` nodes with it."""
        node = -1
        for token in run:
            known = self._nodes.get((node, token))
            if known is None:
                if len(self.token_ids) >= max_nodes:
                    return
                known = self._nodes[node, token] = len(self.token_ids)
                self.token_ids.append(token)
                self.parents.append(node)
            node = known
