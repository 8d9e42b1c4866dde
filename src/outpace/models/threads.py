"""Which thread runs torch decides how fast it runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from outpace.errors import OptionError

T = TypeVar("T")


def check_threads(threads: Any) -> None:
    """Raise OptionError unless it is None or a number of threads that this machine can use: some
    libraries start as many as they are told before anyone can object."""
    processors = os.cpu_count() or 1
    most = max(16, 4 * processors)
    is_number = isinstance(threads, int) and not isinstance(threads, bool)
    if threads is not None and not (is_number and 1 <= threads <= most):
        raise OptionError(
            f"threads must be a whole number from 1 to {most} (this machine has {processors} "
            f"processors), got {threads!r}"
        )


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
