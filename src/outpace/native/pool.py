"""Threads of the native step: one pool per thread count, shared by target and draft model."""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from outpace.errors import OptionError
from outpace.native.interface import ERROR_BYTES
from outpace.native.library import library

# By process as well: a forked child has a copy of the pool, but none of its threads.
_shared: weakref.WeakValueDictionary[tuple[int, int], ThreadPool] = weakref.WeakValueDictionary()
_shared_lock = threading.Lock()


class ThreadPool:
    """`num_threads` threads, the caller's included; freed with its last user.

    It runs one pass at a time: whoever uses `pointer` holds `lock`.
    """

    def __init__(self, num_threads: int | None = None) -> None:
        if num_threads is None:
            num_threads = default_num_threads()
        error = ctypes.create_string_buffer(ERROR_BYTES)
        pointer = library().op_pool_new(num_threads, ctypes.addressof(error))
        if not pointer:
            raise OptionError(f"threads={num_threads}: {error.value.decode()}")
        self.num_threads = num_threads
        self.pointer: int = pointer
        self.lock = threading.Lock()
        # Not at exit: another thread may still be in a pass, and the system takes the memory back.
        weakref.finalize(self, _free, pointer, os.getpid()).atexit = False

    @classmethod
    def shared(cls, num_threads: int | None = None) -> ThreadPool:
        """The pool of that many threads (default: `default_num_threads()`), made on first use."""
        count = default_num_threads() if num_threads is None else num_threads
        with _shared_lock:
            pool = _shared.get((os.getpid(), count))
            if pool is None:
                pool = _shared[os.getpid(), count] = cls(count)
            return pool

    def read_seconds(self, buffer: np.ndarray[Any, Any]) -> float:
        """Seconds that all threads together take to read `buffer` (contiguous) once."""
        assert buffer.flags.c_contiguous
        with self.lock:
            return float(library().op_pool_read(self.pointer, buffer.ctypes.data, buffer.nbytes))


def _free(pointer: int, owner: int) -> None:
    """Ends the threads; in a forked child there are none to wait for."""
    if os.getpid() == owner:
        library().op_pool_free(pointer)


def default_num_threads() -> int:
    """Physical cores that this process may run on: two threads of one core share what it reads."""
    logical = os.cpu_count() or 1
    physical = psutil.cpu_count(logical=False) or logical
    if not hasattr(os, "sched_getaffinity"):
        return physical
    allowed = len(os.sched_getaffinity(0))
    return max(1, min(physical, allowed))


def probe_buffer() -> np.ndarray[Any, Any]:
    """Memory to measure `read_bandwidth` with: twice the last-level cache, at least 256 MiB, and at
    most 2 GiB or a quarter of what is free."""
    size = max(256 << 20, 2 * _last_level_cache_bytes())
    size = min(size, 2 << 30, psutil.virtual_memory().available // 4)
    return np.ones(size, dtype=np.uint8)  # untouched memory would be one page of zeros, in cache


def read_bandwidth(
    pool: ThreadPool, buffer: np.ndarray[Any, Any], repeats: int = 5, within_s: float = 0.5
) -> float:
    """Bytes per second that the pool's threads together read from memory: the best of `repeats`
    passes over `buffer`, fewer if they take longer than `within_s`. No pass of a model whose
    weights exceed the cache can be faster."""
    seconds: list[float] = []
    while len(seconds) < repeats and sum(seconds) < within_s:
        seconds.append(pool.read_seconds(buffer))
    return buffer.nbytes / min(seconds)


def _last_level_cache_bytes() -> int:
    """The largest cache that Linux lists for the first processor; 0 where it lists none."""
    sizes = [0]
    for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        digits = file.read_text().strip().removesuffix("K")
        if digits.isdigit():
            sizes.append(int(digits) << 10)
    return max(sizes)
