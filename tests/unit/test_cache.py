"""The cache: rows are opened, reused, rolled back in place and closed; nothing leaks."""

from __future__ import annotations

import tracemalloc

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outpace.cache import KVCache, common_prefix_len


def make_cache(num_rows: int = 3, capacity: int = 64, num_layers: int = 2) -> KVCache:
    return KVCache(
        num_layers=num_layers,
        num_rows=num_rows,
        capacity=capacity,
        num_kv_heads=2,
        head_dim=4,
        dtype=torch.float64,
    )


def fill(cache: KVCache, row: int, token_ids: list[int]) -> list[int]:
    """Append and write recognisable values; returns the slots."""
    slots = list(cache.append(row, token_ids))
    values = torch.tensor(token_ids, dtype=torch.float64)[:, None, None].expand(-1, 2, 4)
    for layer in range(cache.k.shape[0]):
        cache.write(layer, torch.tensor(slots), values + layer, -(values + layer))
    return slots


def use_once(cache: KVCache, token_ids: list[int]) -> int:
    """Open, feed what is not reused, close: what a whole request does."""
    row, reused = cache.open([*token_ids, 0])
    fill(cache, row, token_ids[reused:])
    cache.close(row)
    return row


class TestCommonPrefix:
    @given(
        shared=st.lists(st.integers(0, 1), max_size=200),
        rest=st.tuples(st.lists(st.integers(0, 1), max_size=40), st.lists(st.integers(0, 1))),
        data=st.data(),
    )
    def test_equals_counting_one_by_one(self, shared, rest, data):
        a, b = shared + rest[0], shared + rest[1]
        expected = 0
        while expected < min(len(a), len(b)) and a[expected] == b[expected]:
            expected += 1
        start = data.draw(st.integers(0, expected))
        assert common_prefix_len(a, b, start) == expected
        assert common_prefix_len(b, a, start) == expected

    @pytest.mark.parametrize("length", [1, 15, 16, 17, 47, 48, 49, 1000])
    def test_finds_a_difference_at_every_position(self, length):
        a = list(range(length))
        for position in range(length):
            b = [*a]
            b[position] = -1
            assert common_prefix_len(a, b) == position

    def test_does_not_look_before_start(self, unchecked_shapes):
        class Watched(list):
            def __getitem__(self, index):
                assert index.start >= 900, f"compared from {index.start}"
                return super().__getitem__(index)

        a = list(range(1000))
        assert common_prefix_len(Watched(a), Watched([*a[:950], -1]), start=900) == 950


class TestOpen:
    def test_the_longest_common_prefix_wins(self):
        cache = make_cache()
        use_once(cache, [1, 2, 3])
        row = use_once(cache, [7, 8, 9, 10])
        cache2_row = use_once(cache, [1, 2, 3, 4, 5, 6])
        assert cache.open([7, 8, 9, 11]) == (row, 3)
        assert cache.open([1, 2, 3, 4, 5, 9, 9]) == (cache2_row, 5)

    def test_without_a_common_prefix_the_longest_unused_row_is_overwritten(self):
        cache = make_cache()
        rows = [use_once(cache, [10 * i, 1]) for i in range(1, 4)]
        assert sorted(rows) == [0, 1, 2], "the three requests should have taken three rows"
        assert cache.open([99, 98]) == (rows[0], 0)
        assert cache.open([97, 96]) == (rows[1], 0)

    def test_the_last_token_is_always_left_to_be_fed(self):
        cache = make_cache(num_rows=1)
        use_once(cache, [1, 2, 3, 4])
        row, reused = cache.open([1, 2, 3, 4])
        assert (reused, cache.length(row)) == (3, 3)

    @pytest.mark.parametrize("token_ids", [[], [5]])
    def test_nothing_is_reused_for_one_token_or_none(self, token_ids):
        cache = make_cache(num_rows=1)
        use_once(cache, [5, 6])
        row, reused = cache.open(token_ids)
        assert (reused, cache.length(row)) == (0, 0)

    def test_open_rows_are_never_reused(self):
        cache = make_cache(num_rows=2)
        row, _ = cache.open([1, 2, 3, 9])
        fill(cache, row, [1, 2, 3])
        other, reused = cache.open([1, 2, 3, 9])
        assert other != row
        assert reused == 0
        assert cache.num_free_rows == 0
        with pytest.raises(AssertionError, match="free row"):
            cache.open([1])

    def test_a_reused_row_keeps_the_written_values(self):
        cache = make_cache(num_rows=1)
        row = use_once(cache, [3, 5, 7, 8])
        before = cache.k[:, row, :3].clone(), cache.v[:, row, :3].clone()
        assert cache.open([3, 5, 7, 1, 1]) == (row, 3)
        assert torch.equal(cache.k[:, row, :3], before[0])
        assert torch.equal(cache.v[:, row, :3], before[1])
        assert list(cache.token_ids(row)) == [3, 5, 7]


class TestRollback:
    def test_hundred_rollbacks_move_and_allocate_nothing(self):
        cache = make_cache(num_rows=2, capacity=512)
        row, _ = cache.open()
        fill(cache, row, list(range(400)))
        fed = [1, 2, 3, 4]
        addresses = cache.k.data_ptr(), cache.v.data_ptr()
        tokens = cache.token_ids(row)
        contents = cache.k.clone()
        cache.append(row, fed)
        cache.rollback(row, 400)
        tracemalloc.start()
        for _ in range(100):
            cache.append(row, fed)
            cache.rollback(row, 401)
            cache.rollback(row, 400)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert (cache.k.data_ptr(), cache.v.data_ptr()) == addresses
        assert cache.token_ids(row) is tokens, "the list of fed ids was replaced"
        assert torch.equal(cache.k, contents), "rollback touched the slots"
        # A copy of the 400 ids would be 3,200 bytes.
        assert peak < 2000, f"{peak} bytes allocated"

    @pytest.mark.parametrize("length", [8, 60_000])
    def test_work_does_not_depend_on_the_context(self, length):
        class Counting(list):
            touched = 0

            def __delitem__(self, index):
                type(self).touched += len(range(*index.indices(len(self))))
                super().__delitem__(index)

            def __getitem__(self, index):
                raise AssertionError("rollback reads the ids")

            __iter__ = __getitem__

        cache = make_cache(num_rows=1, capacity=65_536, num_layers=1)
        row, _ = cache.open()
        cache._rows[row].token_ids = Counting(range(length))
        cache.rollback(row, length - 5)
        assert Counting.touched == 5
        assert cache.length(row) == length - 5

    def test_slots_are_claimed_again_from_the_rolled_back_length(self):
        cache = make_cache(num_rows=2, capacity=8)
        cache.open()
        row, _ = cache.open()
        assert fill(cache, row, [1, 2, 3]) == [row * 8, row * 8 + 1, row * 8 + 2]
        cache.rollback(row, 1)
        assert fill(cache, row, [9, 9]) == [row * 8 + 1, row * 8 + 2]
        assert list(cache.token_ids(row)) == [1, 9, 9]
        assert cache.k[0, row, :3, 0, 0].tolist() == [1.0, 9.0, 9.0]

    @pytest.mark.parametrize("length", [-1, 4])
    def test_to_an_impossible_length_is_a_bug(self, length):
        cache = make_cache()
        row, _ = cache.open()
        cache.append(row, [1, 2, 3])
        with pytest.raises(AssertionError, match="rollback"):
            cache.rollback(row, length)


class TestFork:
    def test_the_copy_has_everything_and_is_independent(self):
        cache = make_cache()
        row, _ = cache.open()
        fill(cache, row, [3, 5, 7, 9])
        copy = cache.fork(row)
        assert copy != row
        assert list(cache.token_ids(copy)) == [3, 5, 7, 9]
        for tensor in (cache.k, cache.v):
            assert torch.equal(tensor[:, copy, :4], tensor[:, row, :4])
        before = cache.k[:, row].clone()
        cache.rollback(copy, 1)
        fill(cache, copy, [8, 8])
        assert list(cache.token_ids(row)) == [3, 5, 7, 9]
        assert torch.equal(cache.k[:, row], before)
        cache.check_integrity([row, copy])

    @pytest.mark.parametrize("length", [0, 1, 3, 4])
    def test_of_the_first_tokens_only(self, length):
        cache = make_cache()
        row, _ = cache.open()
        fill(cache, row, [3, 5, 7, 9])
        copy = cache.fork(row, length)
        assert list(cache.token_ids(copy)) == [3, 5, 7, 9][:length]
        assert cache.k[0, copy, :, 0, 0].tolist() == [3, 5, 7, 9][:length] + [0] * (64 - length)

    def test_what_a_free_row_holds_is_not_copied_again(self):
        cache = make_cache(num_rows=2)
        row, _ = cache.open([3, 5, 0])
        other, _ = cache.open([3, 5, 0])
        fill(cache, row, [3, 5, 7, 9])
        fill(cache, other, [3, 5])
        cache.close(other)
        cache.k[:, other, :2] = -1.0  # as they stood there, however they were computed
        assert cache.fork(row) == other
        assert cache.k[0, other, :4, 0, 0].tolist() == [-1.0, -1.0, 7.0, 9.0]

    def test_without_a_free_row_it_is_a_bug(self):
        cache = make_cache(num_rows=1)
        row, _ = cache.open()
        with pytest.raises(AssertionError, match="free row"):
            cache.fork(row)


class TestStorage:
    def test_new_slots_are_finite_zeros(self):
        cache = make_cache(capacity=1024)
        for tensor in (cache.k, cache.v):
            assert tensor.dtype == torch.float64
            assert tensor.shape == (2, 3, 1024, 2, 4)
            assert not tensor.any()

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    def test_bytes(self, dtype):
        cache = KVCache(
            num_layers=2, num_rows=3, capacity=5, num_kv_heads=2, head_dim=4, dtype=dtype
        )
        assert cache.num_bytes == 2 * 2 * 3 * 5 * 2 * 4 * dtype.itemsize
        cache.k.fill_(1.0)  # the memory is writable, and large enough for its dtype
        assert cache.k.sum(dtype=torch.float64) == 2 * 3 * 5 * 2 * 4

    def test_write_touches_the_given_slots_of_one_layer_only(self):
        cache = make_cache(num_rows=2, capacity=4)
        ones = torch.ones(2, 2, 4, dtype=torch.float64)
        cache.write(1, torch.tensor([5, 7]), ones, 2 * ones)
        expected = torch.zeros_like(cache.k)
        expected[1, 1, 1] = expected[1, 1, 3] = 1.0
        assert torch.equal(cache.k, expected)
        assert torch.equal(cache.v, 2 * expected)

    def test_a_full_row_refuses_one_more(self):
        cache = make_cache(capacity=4)
        row, _ = cache.open()
        cache.append(row, [1, 2, 3])
        with pytest.raises(AssertionError, match="full"):
            cache.append(row, [4, 5])
        assert cache.length(row) == 3
        cache.append(row, [4])
        with pytest.raises(AssertionError, match="full"):
            cache.append(row, [5])


class TestIntegrity:
    def test_passes_for_the_rows_that_are_open(self):
        cache = make_cache()
        rows = [cache.open([i, i])[0] for i in range(2)]
        cache.check_integrity(rows)
        cache.check_integrity(rows[::-1])
        for row in rows:
            cache.close(row)
        cache.check_integrity([])
        assert cache.num_free_rows == cache.num_rows == 3

    def test_finds_a_leaked_row(self):
        cache = make_cache()
        cache.open([1])
        with pytest.raises(AssertionError, match="open rows"):
            cache.check_integrity([])

    def test_finds_a_row_closed_too_early(self):
        cache = make_cache()
        with pytest.raises(AssertionError, match="open rows"):
            cache.check_integrity([0])

    def test_finds_a_row_longer_than_its_capacity(self):
        cache = make_cache(capacity=4)
        row, _ = cache.open()
        cache._rows[row].token_ids.extend(range(5))
        with pytest.raises(AssertionError, match="capacity"):
            cache.check_integrity([row])

    def test_closing_twice_and_feeding_a_closed_row_are_bugs(self):
        cache = make_cache()
        row, _ = cache.open()
        cache.close(row)
        with pytest.raises(AssertionError, match="closed twice"):
            cache.close(row)
        with pytest.raises(AssertionError, match="is closed"):
            cache.append(row, [1])
