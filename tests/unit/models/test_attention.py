"""The attention plan against attention computed one token at a time, in float64."""

from __future__ import annotations

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

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


def random_queries(segments: list[Segment], heads: int, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    num_tokens = sum(s.num_tokens for s in segments)
    return torch.randn(num_tokens, heads, HEAD_DIM, generator=generator, dtype=torch.float64)


def naive(cache: KVCache, layer: int, segments: list[Segment], q: torch.Tensor) -> torch.Tensor:
    """softmax(q k^T / sqrt(d)) v, one token at a time."""
    per_kv = q.shape[1] // cache.k.shape[3]
    outputs = []
    queries = iter(q.double())
    for segment in segments:
        keys = cache.k[layer, segment.row].double().repeat_interleave(per_kv, dim=1)
        values = cache.v[layer, segment.row].double().repeat_interleave(per_kv, dim=1)
        for index in range(segment.num_tokens):
            visible = slice(0, segment.start + index + 1)
            scores = torch.einsum("hd,shd->hs", next(queries), keys[visible])
            weights = torch.softmax(scores / math.sqrt(HEAD_DIM), dim=-1)
            outputs.append(torch.einsum("hs,shd->hd", weights, values[visible]))
    return torch.stack(outputs).to(q.dtype).flatten(1)


def assert_equals_naive(cache: KVCache, segments: list[Segment], heads: int = 4) -> None:
    q = random_queries(segments, heads)
    plan = AttentionPlan(segments, heads, cache, torch.float64)
    for layer in range(2):
        torch.testing.assert_close(
            plan(layer, q), naive(cache, layer, segments, q), rtol=1e-10, atol=1e-12
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
            segments.append(Segment(row, start, count))
    if segments:
        assert_equals_naive(random_cache(5, capacity, kv_heads), segments, kv_heads * per_kv)


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
    before = AttentionPlan(segments, 4, cache, torch.float64)(0, q)
    for tensor in (cache.k, cache.v):
        tensor[:, 0, 8:] = 1e6
        tensor[:, 1, 21:] = 1e6
    assert torch.equal(AttentionPlan(segments, 4, cache, torch.float64)(0, q), before)
    # The same change one slot earlier is seen, by the last query only.
    cache.v[:, 0, 7] += 1.0
    after = AttentionPlan(segments, 4, cache, torch.float64)(0, q)
    assert torch.equal(after[:2], before[:2])
    assert not torch.equal(after[2], before[2])
    assert torch.equal(after[3], before[3])


def test_a_neighbour_s_content_is_never_read():
    cache = random_cache(3, KEY_BLOCK)
    segments = [Segment(0, 5, 1), Segment(1, 30, 4), Segment(2, 8, 2)]
    q = random_queries(segments, 4)
    before = AttentionPlan(segments, 4, cache, torch.float64)(1, q)
    cache.k[:, 1] += 1.0
    cache.v[:, 1] -= 3.0
    after = AttentionPlan(segments, 4, cache, torch.float64)(1, q)
    assert torch.equal(after[[0, 5, 6]], before[[0, 5, 6]])
    assert not torch.equal(after[1:5], before[1:5])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lower_precision_is_close(dtype):
    rng = random.Random(3)
    segments = [Segment(row, rng.randrange(100), rng.choice([1, 1, 4, 9])) for row in range(4)]
    cache = random_cache(4, 2 * KEY_BLOCK, dtype=dtype)
    q = random_queries(segments, 4).to(dtype)
    out = AttentionPlan(segments, 4, cache, dtype)(0, q)
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
