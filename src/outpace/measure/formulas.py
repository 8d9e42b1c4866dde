"""The speed-up condition: what acceptance and costs allow, before anything is run.

Letters: K draft tokens; alpha, the probability that a draft token is accepted given that all before
it were; E, output tokens per target pass; c, the time of drafting one token; v(n), that of a target
pass over n rows. Times are in target passes over one row, so that v(1) is 1 and a ratio below 1 is
a loss. What a step costs besides (choosing tokens, bookkeeping) is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

from outpace.errors import OptionError

Acceptance = float | Sequence[float]
"""alpha: one for all positions, or the conditional acceptance of each position in turn."""
RowCost = Callable[[int], float]
"""v(n), from n rows."""

_MAX_K = 64
_MAX_BATCH = 1024
_NUM_HALVINGS = 60


def free(num_rows: int) -> float:
    """The v(n) of the published formulas: a pass over any number of rows costs one."""
    return 1.0


def expected_tokens(alpha: Acceptance, k: int) -> float:
    """E = 1 + alpha + alpha^2 + ... + alpha^K, the bonus token counted.

    With one acceptance per position the powers become products. Positions beyond those given are
    taken to be like the last one.
    """
    gained: float = sum(accumulate(_ladder(alpha, k), mul))
    return 1 + gained


def simple_speedup(alpha: float, k: int, c: float) -> float:
    """(1 + K alpha) / (1 + K c), the formula in circulation. It overstates: draft tokens are
    accepted as one run from the first, not each for itself, and verifying is not free."""
    return (1 + k * alpha) / (1 + k * c)


def free_speedup(alpha: Acceptance, k: int, c: float) -> float:
    """E / (1 + K c): exact where a pass over K + 1 rows costs no more than one over one row."""
    return expected_tokens(alpha, k) / (1 + k * c)


def speedup(expected: float, k: int, c: float, v: float | RowCost) -> float:
    """E / (K c + v(K + 1)). v: the function, or its value at K + 1."""
    return expected / (k * c + _at(v, k + 1))


def implied_v(ratio: float, expected: float, k: int, c: float) -> float:
    """The v(K + 1) with which `speedup` gives `ratio`; all that a step costs besides is in it."""
    return expected / ratio - k * c


def needed_alpha(k: int, c: float, v: float | RowCost) -> float | None:
    """The alpha from which K draft tokens are no loss; None if not even accepting all would do.

    v: the function, or its value at K + 1.
    """
    needed = k * c + _at(v, k + 1)
    if needed > k + 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(_NUM_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if expected_tokens(middle, k) >= needed else (middle, high)
    return high if expected_tokens(0.0, k) < needed else 0.0


def best_k(alpha: Acceptance, c: float, v: RowCost, max_k: int = _MAX_K) -> tuple[int, float]:
    """(K, its speed-up): the best number of draft tokens, 0 where none gains anything.

    Of equals, the fewest. max_k: the most to consider.
    """
    best = (0, 1.0)
    for k in range(1, max_k + 1):
        ratio = speedup(expected_tokens(alpha, k), k, c, v)
        if ratio > best[1]:
            best = (k, ratio)
    return best


def batch_speedup(expected: float, k: int, c: float | RowCost, v: RowCost, batch: int) -> float:
    """`speedup` for `batch` requests that share each pass: E v(B) / (K c(B) + v(B (K + 1))).

    Plain decoding shares its passes as well, which is why less is gained in large batches.
    c: of drafting one token for each of B requests, as a function of B or the same for all.
    """
    return expected * v(batch) / (k * _at(c, batch) + v(batch * (k + 1)))


def crossover_batch(
    expected: float, k: int, c: float | RowCost, v: RowCost, max_batch: int = _MAX_BATCH
) -> int | None:
    """The smallest batch in which `batch_speedup` is below 1; None up to `max_batch`."""
    for batch in range(1, max_batch + 1):
        if batch_speedup(expected, k, c, v, batch) < 1:
            return batch
    return None


@dataclass(frozen=True, slots=True)
class PassCosts:
    """v(n) from measurements: linear between them, and beyond them as steep as between the last.

    rows: ascending, from 1; costs: v at each. A single measurement is taken to hold for any number.
    """

    rows: tuple[int, ...]
    costs: tuple[float, ...]

    @classmethod
    def measured(cls, costs: Mapping[int, float]) -> PassCosts:
        """From costs by number of rows, in any unit: they are divided by that of one row.

        Raises OptionError if one row was not measured or a cost is not positive.
        """
        if 1 not in costs or min(costs) < 1 or min(costs.values()) <= 0:
            raise OptionError(
                f"v(n) takes positive costs of passes over 1 row and more, got {dict(costs)}"
            )
        rows = sorted(costs)
        return cls(tuple(rows), tuple(costs[n] / costs[1] for n in rows))

    def at(self, num_rows: int) -> float:
        """v(num_rows)."""
        if len(self.rows) == 1:
            return self.costs[0]
        # The first interval that does not end before num_rows, or else the last.
        last = len(self.rows) - 1
        right = next((i for i in range(1, last) if self.rows[i] >= num_rows), last)
        left = right - 1
        slope = (self.costs[right] - self.costs[left]) / (self.rows[right] - self.rows[left])
        if num_rows > self.rows[right]:
            # More rows never cost less, whatever noise makes of the last two measurements.
            return self.costs[right] + max(slope, 0.0) * (num_rows - self.rows[right])
        return self.costs[left] + slope * (num_rows - self.rows[left])

    __call__ = at


def _ladder(alpha: Acceptance, k: int) -> list[float]:
    """The conditional acceptance of positions 1 to k."""
    if isinstance(alpha, (int, float)):
        return [alpha] * k
    given = list(alpha[:k])
    if k and not given:
        raise OptionError("the acceptance of no position is known")
    return given + [given[-1]] * (k - len(given)) if given else []


def _at(value: float | RowCost, n: int) -> float:
    return value(n) if callable(value) else value
