"""How many answers may be under way: those in cache rows, and a bounded queue behind them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from outpace.engine.request import RequestGroup
from outpace.serving.errors import ApiError

RETRY_AFTER_S = 1


class Admission:
    """Counts the answers under way. Belongs to the event loop: no method waits.

    num_rows: answers that the engine decodes together. max_queue: answers that may wait besides.
    rejected: requests that were turned away, by reason.
    """

    def __init__(self, num_rows: int, max_queue: int) -> None:
        self._capacity = num_rows + max_queue
        self._groups: set[RequestGroup] = set()
        self._closed = False
        self.rejected: Counter[str] = Counter()

    @property
    def num_unfinished(self) -> int:
        """Answers admitted that have not ended."""
        return sum(
            request.fold.finish_reason is None
            for group in self._groups
            for request in group.requests
        )

    def close(self) -> None:
        """Admit nothing from now on."""
        self._closed = True

    def check(self, num_answers: int = 1) -> None:
        """Raise what a request for so many more answers is to be told: 503 after `close`, 400 if it
        never fits, 429 with Retry-After if it does not fit now."""
        if self._closed:
            self.rejected["shutting_down"] += 1
            raise shutting_down()
        if num_answers > self._capacity:
            self.rejected["too_large"] += 1
            raise ApiError(
                400,
                f"the request asks for {num_answers} answers in all, and this server takes "
                f"{self._capacity} at most, running and waiting; ask for fewer",
            )
        if self.num_unfinished + num_answers > self._capacity:
            self.rejected["queue_full"] += 1
            raise ApiError(
                429,
                f"{self.num_unfinished} answers are running or waiting already, and this server "
                f"takes {self._capacity}; try again later",
                code="queue_full",
                headers={"Retry-After": str(RETRY_AFTER_S)},
            )

    @contextmanager
    def admitted(self, groups: list[RequestGroup]) -> Iterator[None]:
        """Count the answers of these groups until the block is left. Raises like `check`."""
        self.check(sum(len(group.requests) for group in groups))
        self._groups.update(groups)
        try:
            yield
        finally:
            self._groups.difference_update(groups)


def shutting_down() -> ApiError:
    """What requests are told once the server was asked to stop."""
    return ApiError(
        503,
        "the server is shutting down",
        code="shutting_down",
        headers={"Retry-After": "10", "Connection": "close"},
    )
