"""The attention plan against attention computed one token at a time, in float64."""

from __future__ import annotations

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import layer_kind, tiny_config

from outpace.cache import KVCache
from outpace.models.attention import (
    KEY_BLOCK,
    MAX_SHARED_QUERIES,
    AttentionPlan,
    Segment,
    padded_capacity,
)

HEAD_DIM = 4


def random_cache(
    num_rows: int,
    capacity: int,
    kv_heads: int = 2,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> KVCache:
    """Every slot holds noise: what must not be read would show."""
    cache = KVCache(
        num_layers=2,
        num_rows=num_rows,
        capacity=capacity,
        num_kv_heads=kv_heads,
        head_dim=HEAD_DIM,
        dtype=dtype,
    )
    generator = torch.Generator().manual_seed(seed)
    for tensor in (cache.k, cache.v):
        tensor.copy_(torch.randn(tensor.shape, generator=generator, dtype=torch.float64))
    return cache


def new_plan(
    segments: list[Segment], heads: int, cache: KVCache, windows: tuple[int | None, ...] = ()
) -> AttentionPlan:
    """windows: of layers 0 and 1; none by default."""
    config = tiny_config(
        num_heads=heads,
        num_kv_heads=cache.k.shape[3],
        head_dim=HEAD_DIM,
        layers=tuple(layer_kind(theta=None, window=w) for w in windows or (None, None)),
    )
    return AttentionPlan(segments, config, cache)


def random_queries(segments: list[Segment], heads: int, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    num_tokens = sum(s.num_tokens for s in segments)
    return torch.randn(num_tokens, heads, HEAD_DIM, generator=generator, dtype=torch.float64)


def visible_slots(segment: Segment, index: int, window: int | None) -> list[int]:
    """What a new token sees, oldest first: found by walking up from parent to parent."""
    path = []
    while index >= 0:
        path.append(segment.start + index)
        index = index - 1 if segment.parents is None else segment.parents[index]
    path += range(segment.start - 1, -1, -1)
    return path[:window][::-1]


def naive(
    cache: KVCache,
    layer: int,
    segments: list[Segment],
    q: torch.Tensor,
    window: int | None = None,
) -> torch.Tensor:
    """softmax(q k^T / sqrt(d)) v, one token at a time."""
    per_kv = q.shape[1] // cache.k.shape[3]
    outputs = []
    queries = iter(q.double())
    for segment in segments:
        keys = cache.k[layer, segment.row].double().repeat_interleave(per_kv, dim=1)
        values = cache.v[layer, segment.row].double().repeat_interleave(per_kv, dim=1)
        for index in range(segment.num_tokens):
            visible = visible_slots(segment, index, window)
            scores = torch.einsum("hd,shd->hs", next(queries), keys[visible])
            weights = torch.softmax(scores / math.sqrt(HEAD_DIM), dim=-1)
            outputs.append(torch.einsum("hs,shd->hd", weights, values[visible]))
    return torch.stack(outputs).to(q.dtype).flatten(1)


def assert_equals_naive(
    cache: KVCache,
    segments: list[Segment],
    heads: int = 4,
    windows: tuple[int | None, int | None] = (None, None),
) -> None:
    q = random_queries(segments, heads)
    plan = new_plan(segments, heads, cache, windows)
    for layer, window in enumerate(windows):
        torch.testing.assert_close(
            plan(layer, q), naive(cache, layer, segments, q, window), rtol=1e-10, atol=1e-12
        )


@given(data=st.data())
@settings(max_examples=60)
def test_random_ragged_batches(data):
    kv_heads, per_kv = data.draw(st.sampled_from([(1, 1), (1, 4), (2, 2), (3, 1), (2, 3)]))
    capacity = 2 * KEY_BLOCK
    segments = []
    for row in range(5):
        if data.draw(st.booleans()):
            count = data.draw(st.sampled_from([1, 1, 1, 2, 3, 5, 9, MAX_SHARED_QUERIES, 17, 40]))
            start = data.draw(st.integers(0, capacity - count))
            parents = None
            if data.draw(st.booleans()):
                parents = tuple(data.draw(st.integers(-1, node - 1)) for node in range(count))
            segments.append(Segment(row, start, count, parents))
    window = st.one_of(st.none(), st.sampled_from([1, 2, 3, 9, 300]), st.integers(1, capacity))
    windows = (data.draw(window), data.draw(window))
    if segments:
        cache = random_cache(5, capacity, kv_heads)
        assert_equals_naive(cache, segments, kv_heads * per_kv, windows)


@pytest.mark.parametrize("count", [1, 2, 7, 16, 17, 33])
@pytest.mark.parametrize("start", [0, 1, KEY_BLOCK - 1, KEY_BLOCK, KEY_BLOCK + 1])
def test_single_segment_around_the_edges_of_a_key_block(start, count):
    assert_equals_naive(random_cache(1, 2 * KEY_BLOCK), [Segment(0, start, count)])


def test_neighbours_of_very_different_lengths():
    segments = [Segment(0, 0, 1), Segment(1, 120, 1), Segment(2, 3, 1), Segment(3, 64, 1)]
    assert_equals_naive(random_cache(4, 2 * KEY_BLOCK), segments)


def test_neighbours_with_different_numbers_of_queries():
    segments = [Segment(0, 9, 1), Segment(1, 100, 5), Segment(2, 0, 3), Segment(4, 7, 2)]
    assert_equals_naive(random_cache(5, 2 * KEY_BLOCK), segments)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_prompt_chunk_beside_decoding_rows(place):
    counts = [1, 4, 2]
    counts[place] = 50
    segments = [Segment(row, 10 * row, count) for row, count in enumerate(counts)]
    assert_equals_naive(random_cache(3, KEY_BLOCK * 2), segments)


def test_the_last_slots_of_a_row():
    capacity = 2 * KEY_BLOCK
    segments = [Segment(0, capacity - 1, 1), Segment(1, capacity - 4, 4), Segment(2, 0, capacity)]
    assert_equals_naive(random_cache(3, capacity), segments)


def test_capacity_that_is_no_multiple_of_the_key_block():
    capacity = KEY_BLOCK + 5
    segments = [Segment(0, capacity - 3, 3), Segment(1, 2, 1)]
    assert_equals_naive(random_cache(2, capacity), segments)


def test_slots_past_a_token_are_never_read():
    cache = random_cache(2, KEY_BLOCK)
    segments = [Segment(0, 5, 3), Segment(1, 20, 1)]
    q = random_queries(segments, 4)
    before = new_plan(segments, 4, cache)(0, q)
    for tensor in (cache.k, cache.v):
        tensor[:, 0, 8:] = 1e6
        tensor[:, 1, 21:] = 1e6
    assert torch.equal(new_plan(segments, 4, cache)(0, q), before)
    # The same change one slot earlier is seen, by the last query only.
    cache.v[:, 0, 7] += 1.0
    after = new_plan(segments, 4, cache)(0, q)
    assert torch.equal(after[:2], before[:2])
    assert not torch.equal(after[2], before[2])
    assert torch.equal(after[3], before[3])


def test_a_neighbour_s_content_is_never_read():
    cache = random_cache(3, KEY_BLOCK)
    segments = [Segment(0, 5, 1), Segment(1, 30, 4), Segment(2, 8, 2)]
    q = random_queries(segments, 4)
    before = new_plan(segments, 4, cache)(1, q)
    cache.k[:, 1] += 1.0
    cache.v[:, 1] -= 3.0
    after = new_plan(segments, 4, cache)(1, q)
    assert torch.equal(after[[0, 5, 6]], before[[0, 5, 6]])
    assert not torch.equal(after[1:5], before[1:5])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lower_precision_is_close(dtype):
    rng = random.Random(3)
    segments = [Segment(row, rng.randrange(100), rng.choice([1, 1, 4, 9])) for row in range(4)]
    cache = random_cache(4, 2 * KEY_BLOCK, dtype=dtype)
    q = random_queries(segments, 4).to(dtype)
    out = new_plan(segments, 4, cache)(0, q)
    assert out.dtype == dtype
    # bfloat16 has 8 bits: the result is rounded once and the weights once.
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(
        out.double(), naive(cache, 0, segments, q.double()), rtol=tolerance, atol=tolerance
    )


def test_padded_capacity_is_whole_blocks():
    edges = {0: 0, 1: 1, KEY_BLOCK - 1: 1, KEY_BLOCK: 1, KEY_BLOCK + 1: 2, 5 * KEY_BLOCK: 5}
    for num_tokens, blocks in edges.items():
        assert padded_capacity(num_tokens) == blocks * KEY_BLOCK


TREE = (-1, 0, 0, 1, -1, 3, 4, 4)
"""Two roots; paths 0-1-3-5, 0-2, 4-6, 4-7."""


class TestTrees:
    def test_positions_are_depths(self):
        assert Segment(0, 10, 8, TREE).positions() == [10, 11, 11, 12, 10, 13, 11, 11]
        assert Segment(0, 10, 3).positions() == [10, 11, 12]

    def test_ancestors(self):
        seen = Segment(0, 10, 8, TREE).ancestors()
        paths = [[0], [0, 1], [0, 2], [0, 1, 3], [4], [0, 1, 3, 5], [4, 6], [4, 7]]
        assert [row.nonzero()[0].tolist() for row in seen] == paths
        chain = Segment(0, 10, 4, (-1, 0, 1, 2))
        assert (chain.ancestors() == Segment(0, 10, 4).ancestors()).all()

    @pytest.mark.parametrize("parents", [(0,), (-2,), (-1, 1), (-1,)])
    def test_parents_come_before_their_children(self, parents):
        with pytest.raises(AssertionError):
            Segment(0, 3, 1 if parents in [(0,), (-2,)] else 2, parents)

    def test_a_chain_written_as_a_tree_has_the_same_bits(self):
        cache = random_cache(2, KEY_BLOCK)
        chains = [Segment(0, 5, 6), Segment(1, 30, 4)]
        trees = [Segment(0, 5, 6, tuple(range(-1, 5))), Segment(1, 30, 4)]
        q = random_queries(chains, 4)
        for layer in range(2):
            whole, written = (new_plan(s, 4, cache, (3, None))(layer, q) for s in (chains, trees))
            assert torch.equal(whole, written)

    def test_siblings_do_not_see_one_another(self):
        cache = random_cache(1, KEY_BLOCK)
        segments = [Segment(0, 10, 8, TREE)]
        q = random_queries(segments, 4)
        before = new_plan(segments, 4, cache)(0, q)
        cache.k[:, 0, 11] += 1.0
        cache.v[:, 0, 11] -= 1.0
        after = new_plan(segments, 4, cache)(0, q)
        changed = (before != after).any(-1)
        assert changed.nonzero().flatten().tolist() == [1, 3, 5]

    @pytest.mark.parametrize("window", [1, 2, 3, 4, 5, 13, 14])
    def test_windows_count_positions_and_not_slots(self, window):
        assert_equals_naive(
            random_cache(1, KEY_BLOCK), [Segment(0, 10, 8, TREE)], windows=(window, None)
        )


class TestWindows:
    @pytest.mark.parametrize("window", [1, 2, 7, 8, 9, 40])
    @pytest.mark.parametrize("count", [1, 5, 17])
    @pytest.mark.parametrize("start", [0, 4, 8, 9, KEY_BLOCK, 3 * KEY_BLOCK - 2])
    def test_around_the_window(self, window, count, start):
        cache = random_cache(1, 4 * KEY_BLOCK)
        assert_equals_naive(cache, [Segment(0, start, count)], windows=(window, None))

    @pytest.mark.parametrize("error", [-1, 1])
    def test_an_error_of_one_would_be_seen(self, error):
        """Negative control."""
        cache, segments = random_cache(1, KEY_BLOCK), [Segment(0, 20, 5)]
        q = random_queries(segments, 4)
        plan = new_plan(segments, 4, cache, (8, None))
        wrong = naive(cache, 0, segments, q, window=8 + error)
        assert (plan(0, q) - wrong).abs().max() > 1e-3

    def test_layers_with_the_same_window_share_a_mask(self):
        cache, segments = random_cache(1, KEY_BLOCK), [Segment(0, 20, 5)]
        plan = new_plan(segments, 4, cache, (8, None, 8, 3, None, 100, 25))
        masks = plan._groups[0].masks
        assert set(masks) == {8, None, 3, 100, 25}
        # Windows that reach back to the first token hide nothing.
        assert masks[100] is masks[None]
        assert masks[25] is masks[None]
        assert len({id(mask) for mask in masks.values()}) == 3
