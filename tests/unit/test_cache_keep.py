"""Compacting a fed tree to its accepted path, and copying rows, in the torch decoder's cache."""

from __future__ import annotations

import pytest
import torch

from outpace.cache import KVCache


def filled_cache(num_tokens: int) -> tuple[KVCache, int]:
    """Two rows, the first of which holds ids 100 and up, each slot's values being its slot."""
    cache = KVCache(
        num_layers=2, num_rows=2, capacity=32, num_kv_heads=1, head_dim=2, dtype=torch.float64
    )
    row, _ = cache.open()
    slots = torch.tensor(list(cache.append(row, list(range(100, 100 + num_tokens)))))
    values = (slots % cache.capacity).double()[:, None, None].expand(-1, 1, 2)
    for layer in range(2):
        cache.write(layer, slots, values + 1000 * layer, -values - 1000 * layer)
    return cache, row


@pytest.mark.parametrize(
    "nodes", [[], [0], [0, 1, 2], [4], [1, 3, 4], [0, 2, 3, 4], [0, 1, 2, 3, 4]]
)
def test_kept_nodes_follow_the_start(nodes: list[int]) -> None:
    start = 6
    cache, row = filled_cache(start + 5)
    address = cache.k.data_ptr()
    cache.keep(row, start, nodes)
    slots = [*range(start), *(start + node for node in nodes)]
    assert list(cache.token_ids(row)) == [100 + slot for slot in slots]
    assert cache.length(row) == len(slots)
    assert cache.k.data_ptr() == address
    for layer in range(2):
        kept = cache.k[layer, row, : len(slots), 0, 0]
        assert kept.tolist() == [slot + 1000 * layer for slot in slots]
        assert torch.equal(cache.v[layer, row, : len(slots), 0, 0], -kept)
    cache.append(row, [7])
    assert cache.token_ids(row)[-1] == 7


@pytest.mark.parametrize("nodes", [[1, 1], [2, 0], [5], [-1, 0], [0, 9]])
def test_what_is_no_path_of_the_tree_is_a_bug(nodes: list[int]) -> None:
    cache, row = filled_cache(11)
    with pytest.raises(AssertionError, match="of 5 tokens"):
        cache.keep(row, 6, nodes)
    assert cache.length(row) == 11


def test_a_copy_of_a_compacted_row_is_independent() -> None:
    cache, row = filled_cache(11)
    cache.keep(row, 6, [2, 4])
    copy = cache.fork(row)
    assert list(cache.token_ids(copy)) == [*range(100, 106), 108, 110]
    assert torch.equal(cache.k[:, copy, :8], cache.k[:, row, :8])
    cache.rollback(row, 3)
    assert cache.length(copy) == 8
