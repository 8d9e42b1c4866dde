"""Which thread runs torch decides how fast it runs."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def in_own_thread(function: Callable[[], T]) -> T:
    """Run `function` in a thread that ends with it, and return its result or raise its error.

    torch's OpenMP runtime gives each thread that runs a parallel operation a team of workers, kept
    until the thread ends. Once teams have more threads than there are processors, workers sleep
    between operations instead of waiting for the next one, and a pass takes about 1.6 times as
    long. What is computed once, such as converted weights, is therefore computed in a thread that
    takes its team with it, and the engine's thread keeps the only one.
    """
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="outpace-once") as pool:
        return pool.submit(function).result()
