"""Thread pools: shared, sized by the machine, safe to use from several threads."""

from __future__ import annotations

import gc
import multiprocessing
import os
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from outpace.errors import OptionError
from outpace.native import pool as module
from outpace.native.interface import WeightFormat
from outpace.native.library import status
from outpace.native.pool import ThreadPool, default_num_threads, read_bandwidth
from outpace.native.weights import PackedLinear

found = status()
pytestmark = pytest.mark.skipif(found.path is None, reason=f"no native step: {found.reason}")


def test_one_pool_per_thread_count_for_as_long_as_it_is_used() -> None:
    pool = ThreadPool.shared(3)
    assert ThreadPool.shared(3) is pool
    assert ThreadPool.shared(2) is not pool
    assert pool.num_threads == 3
    gone = weakref.ref(pool)
    del pool
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("num_threads", [0, -1, 5000])
def test_thread_counts_that_cannot_be_had(num_threads: int) -> None:
    with pytest.raises(OptionError, match=str(num_threads)):
        ThreadPool(num_threads)


@pytest.mark.parametrize(
    ("physical", "allowed", "expected"), [(4, 8, 4), (4, 2, 2), (None, 3, 3), (16, 1, 1)]
)
def test_default_is_the_physical_cores_this_process_may_use(
    monkeypatch: pytest.MonkeyPatch, physical: int | None, allowed: int, expected: int
) -> None:
    monkeypatch.setattr(module.psutil, "cpu_count", lambda logical: physical)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(allowed)), raising=False)
    assert default_num_threads() == expected


def test_bandwidth_is_measured() -> None:
    buffer = np.ones(1 << 22, dtype=np.uint8)
    assert 1e6 < read_bandwidth(ThreadPool.shared(2), buffer, repeats=2) < 1e13


def test_several_callers_share_a_pool() -> None:
    pool = ThreadPool.shared(2)
    weights = np.arange(64 * 64, dtype=np.float32).reshape(64, 64) % 7
    linear = PackedLinear.packed(WeightFormat.F32, 64, 64, weights)
    x = [np.full((3, 64), value, np.float32) for value in range(8)]

    def multiply(value: int) -> bool:
        expected = weights.sum(axis=1) * value
        return all(np.array_equal(linear.forward(x[value], pool)[2], expected) for _ in range(50))

    with ThreadPoolExecutor(8) as callers:
        assert all(callers.map(multiply, range(8)))


def _multiply_in_child() -> None:
    linear = PackedLinear.packed(WeightFormat.F32, 16, 16, np.eye(16, dtype=np.float32))
    x = np.ones((2, 16), np.float32)
    os._exit(0 if np.array_equal(linear.forward(x, ThreadPool.shared(2)), x) else 1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_gets_threads_of_its_own() -> None:
    pool = ThreadPool.shared(2)
    child = multiprocessing.get_context("fork").Process(target=_multiply_in_child)
    child.start()
    child.join(60)
    is_stuck = child.is_alive()
    child.kill()
    child.join()
    assert (is_stuck, child.exitcode) == (False, 0)
    assert ThreadPool.shared(2) is pool
