"""Threads for what takes long: bounded, ordered, given up in time, never in the way of an end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from outpace.serving.workers import Workers


@pytest.fixture
def workers() -> Iterator[Workers]:
    one = Workers("test", 1)
    yield one
    one.close()


async def test_results_and_errors(workers: Workers) -> None:
    assert await workers.run(lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        await workers.run(lambda: 1 / 0)
    name = await workers.run(lambda: threading.current_thread().name)
    assert name.startswith("outpace-test")


async def test_a_call_that_takes_too_long_is_given_up(workers: Workers) -> None:
    go_on, began = threading.Event(), []
    with pytest.raises(TimeoutError):
        await workers.run(go_on.wait, timeout_s=0.05)
    # The thread is still busy with it: what waits for a thread is given up too, and never begun.
    with pytest.raises(TimeoutError):
        await workers.run(lambda: began.append(1), timeout_s=0.05)
    go_on.set()
    assert await workers.run(lambda: "next") == "next"
    assert not began


async def test_the_event_loop_goes_on(workers: Workers) -> None:
    go_on = threading.Event()
    task = asyncio.create_task(workers.run(go_on.wait))
    await asyncio.sleep(0.01)
    assert not task.done()
    go_on.set()
    assert await task is True


def test_the_end() -> None:
    workers, go_on = Workers("test", 2), threading.Event()
    assert all(thread.daemon for thread in workers._threads)

    async def start() -> None:
        with pytest.raises(TimeoutError):
            await workers.run(go_on.wait, timeout_s=0.05)

    asyncio.run(start())
    assert not workers.close(timeout_s=0.05)  # one is busy
    go_on.set()
    assert workers.close()
