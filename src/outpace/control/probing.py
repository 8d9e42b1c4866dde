"""When a drafter that does not pay is tried again."""

from __future__ import annotations

FIRST_PAUSE, LONGEST_PAUSE = 64, 512
"""Steps without a drafter before it is tried again: at first, and where no trial has paid. At 512
a trial that costs a whole pass costs 0.2 %."""
MOST_PRICE = 8.0
"""Trials are put off as if they cost at most so many plain steps: what they cost may grow while
they are put off."""


class Probing:
    """Counts, per request, the steps that went without the drafter.

    A pause begins at `FIRST_PAUSE` steps, doubles with every trial that did not pay, up to
    `LONGEST_PAUSE`, and is `FIRST_PAUSE` again once the drafter has paid.
    """

    def __init__(self) -> None:
        self._waited: dict[int, int] = {}
        self._pauses: dict[int, int] = {}

    def is_due(self, seq_id: int, price: float = 1.0) -> bool:
        """Whether the drafter should be tried, though it is not expected to pay.

        price: of the trial, in plain steps: dearer ones than 1 are due as much later.
        """
        pause = self._pauses.get(seq_id, FIRST_PAUSE)
        return self.num_waited(seq_id) >= pause * min(max(price, 1.0), MOST_PRICE)

    def num_waited(self, seq_id: int) -> int:
        """Steps of this request since its last draft from the drafter, or its first step."""
        return self._waited.get(seq_id, 0)

    def tick(self, seq_id: int) -> None:
        """A step of this request went by without a draft from the drafter."""
        self._waited[seq_id] = self._waited.get(seq_id, 0) + 1

    def observe(self, seq_id: int, paid: bool) -> None:
        """The drafter was used for this request, due or not, and it paid or it did not."""
        if paid:
            self._pauses[seq_id] = FIRST_PAUSE
        elif self.is_due(seq_id):
            pause = self._pauses.get(seq_id, FIRST_PAUSE)
            self._pauses[seq_id] = min(2 * pause, LONGEST_PAUSE)
        self._waited[seq_id] = 0

    def release(self, seq_id: int) -> None:
        self._waited.pop(seq_id, None)
        self._pauses.pop(seq_id, None)

    def check_integrity(self) -> None:
        kept = self._waited.keys() | self._pauses.keys()
        assert not kept, f"pauses kept for sequences {sorted(kept)}"
