"""What a step takes, in seconds, from its shape.

A measured table (`control/calibrate.py`) says how target passes compare with one another. Every
step then tells how the machine is doing: a scale, the median of the last few steps, follows a
machine that others use too, while slowly learned factors correct the shape of the table. The rest
of a step and the drafting are straight lines, learned in the same way from what steps took.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence as List
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from math import log2

PACE_STEPS = 11
"""How many of the last steps say how fast the machine is. One half of them outvotes the other: a
slow phase is followed after six steps, and fewer slow steps than that change nothing."""
SHAPE_RATE, TRUST_IN_TABLE = 0.05, 4
"""Share of a deviation from the table by which its shape is corrected in one step, and how many
steps the table counts as: the first ones correct more."""
MOST_DEVIATION = 0.3
"""Most that one step may claim to deviate from the table, as a share: it may be an outlier."""
LINE_DECAY = 0.98
"""What an observation of a line weighs after each further one."""
MOST_ABOVE_LINE = 2.0
"""Observations count as at most so many times what was predicted, and at least its inverse."""
PRIOR_WEIGHTS = (0.5, 2.0)
"""How many observations the prior of a line's fixed part and of its slope are worth."""
REST_PRIOR = (0.25e-3, 0.05e-3)
"""Seconds of a step beside its target pass and drafting, and per row, before any was seen."""
DRAFT_PRIOR, READING_PRIOR = 0.1, 0.02
"""What a level of drafting takes before any was seen, in plain passes, and a token that is read."""
FEW_UNREAD = 8
"""Tokens that steps with drafts leave unread: reading them is a part of the time of a draft."""


@dataclass(frozen=True, slots=True)
class PassShape:
    """What the duration of a target pass depends on.

    num_rows: tokens fed: the newest of each sequence and the draft tokens. context: tokens that
    were cached before, over all sequences.
    """

    num_seqs: int
    num_rows: int
    context: int


@dataclass(frozen=True)
class CostTable:
    """Measured durations of target passes.

    knots: (num_rows, seconds) of passes of one sequence without context; both ascend, seconds
        weakly. Linear in between; beyond the last, the mean slope of the upper half goes on, so
        that the steps of a kernel that works on blocks of rows are averaged over.
    per_seq_s: for each sequence but the first. per_token_s: for each cached token.
    per_token_row_s: for each pair of a cached token and a row that looks at it.
    """

    knots: tuple[tuple[int, float], ...]
    per_seq_s: float = 0.0
    per_token_s: float = 0.0
    per_token_row_s: float = 0.0

    def __post_init__(self) -> None:
        rows = [row for row, _ in self.knots]
        seconds = [s for _, s in self.knots]
        numbers = (*seconds, self.per_seq_s, self.per_token_s, self.per_token_row_s)
        if not rows or rows[0] < 1 or any(a >= b for a, b in pairwise(rows)):
            raise ValueError(f"row counts must ascend from at least 1, got {rows}")
        if not all(0 <= number < 1e6 for number in numbers) or seconds[0] <= 0:
            raise ValueError(f"costs must be finite and not negative, got {numbers}")
        if any(a > b for a, b in pairwise(seconds)):
            raise ValueError(f"more rows must not take less time, got {seconds}")

    def pass_s(self, num_rows: int) -> float:
        """Seconds of a pass of one sequence without context."""
        return self.passes_s(num_rows)[num_rows]

    def passes_s(self, most_rows: int) -> List[float]:
        """The seconds of such passes over 0, 1, ... rows, at least up to `most_rows`. Not to be
        written to: worked out once."""
        known = self._worked_out
        while len(known) <= most_rows:
            known.append(self._interpolated(len(known)))
        return known

    @cached_property
    def _worked_out(self) -> list[float]:
        return []

    def _interpolated(self, num_rows: int) -> float:
        knots = self.knots
        last_rows, last_s = knots[-1]
        if len(knots) == 1:
            return last_s
        if num_rows >= last_rows:
            middle = next(k for k in knots if 2 * k[0] >= last_rows)
            low_rows, low_s = knots[-2] if middle == knots[-1] else middle
            return last_s + (last_s - low_s) / (last_rows - low_rows) * (num_rows - last_rows)
        right = max(bisect_right(knots, (num_rows, float("inf"))), 1)
        (low, low_s), (high, high_s) = knots[right - 1], knots[right]
        return low_s + (high_s - low_s) * max(num_rows - low, 0) / (high - low)

    def seconds(self, shape: PassShape) -> float:
        """Seconds of a pass of this shape, were the machine as it was."""
        rows_each = shape.num_rows / shape.num_seqs
        per_cached = self.per_token_s + self.per_token_row_s * rows_each
        others = self.per_seq_s * (shape.num_seqs - 1)
        return self.pass_s(shape.num_rows) + others + per_cached * shape.context


class StepCosts:
    """Predicts what steps take, and learns from what they took."""

    def __init__(self, table: CostTable) -> None:
        self._table = table
        self._pace = Pace()
        self._shape = _ShapeFactors()
        self._rests: dict[str, _PacedLine] = {}

    @property
    def plain_s(self) -> float:
        """Seconds of a target pass of one row without context."""
        return self.target_s(PassShape(1, 1, 0))

    def target_s(self, shape: PassShape) -> float:
        """Predicted seconds of the target pass alone."""
        known = self._table.seconds(shape) * self._shape.at(shape.num_rows)
        return known * self._pace.scale

    def rest_s(self, shape: PassShape, regime: str) -> float:
        """Predicted seconds of the step beside target pass and drafting."""
        return self._rest(regime).predict(shape.num_rows)

    def curve(self, num_seqs: int, context: int, most_rows: int, regime: str) -> list[float]:
        """Predicted seconds of a step, drafting left out, that feeds num_seqs, num_seqs + 1, ...,
        most_rows rows: never less than with fewer rows.

        context: cached tokens over all sequences. regime: what the rest of the step depends on, a
        name of the caller's choice.
        """
        table, scale = self._table, self._pace.scale
        passes_s = table.passes_s(most_rows)
        fixed = table.per_seq_s * (num_seqs - 1) + table.per_token_s * context
        per_row = table.per_token_row_s * context / num_seqs
        factors = self._shape.up_to(most_rows)
        rest_fixed, rest_per_row = self._rest(regime).coefficients
        longest, found = 0.0, []
        for rows in range(num_seqs, most_rows + 1):
            target_s = (passes_s[rows] + fixed + per_row * rows) * factors[rows] * scale
            longest = max(longest, target_s + rest_fixed + rest_per_row * rows)
            found.append(longest)
        return found

    def observe(self, shape: PassShape, regime: str, target_s: float, rest_s: float) -> None:
        """Learn from one step, in which no prompt was fed."""
        known = self._table.seconds(shape) * self._shape.at(shape.num_rows)
        self._shape.observe(shape.num_rows, self._pace.observe(target_s / known))
        self._rest(regime).observe(shape.num_rows, rest_s)

    def _rest(self, regime: str) -> _PacedLine:
        line = self._rests.get(regime)
        if line is None:
            line = self._rests[regime] = _PacedLine(*REST_PRIOR)
        return line


class DraftCosts:
    """Predicts what a drafter takes for some sequential steps of drafting, its levels, and for
    reading texts that it has not read for long."""

    def __init__(self, plain_s: float) -> None:
        """plain_s: seconds of a plain target pass, by which drafting is judged until it is seen."""
        self._plain_s = plain_s
        self._lines: dict[int, _PacedLine] = {}
        self._token_s = READING_PRIOR * plain_s
        self._reading = Pace()
        # The prior has a vote: buffers are made in the first call, which must not decide alone.
        self._reading.observe(1.0)

    def reading_s(self, num_unread: int) -> float:
        """Seconds of reading so many tokens of a text, beside those of drafting."""
        return self._reading.scale * self._token_s * num_unread if num_unread > FEW_UNREAD else 0.0

    def predict(self, num_seqs: int, levels: int) -> float:
        """Seconds of drafting `levels` tokens for each of that many sequences together."""
        if levels <= 0:
            return 0.0
        if not self._lines:
            return DRAFT_PRIOR * self._plain_s * levels
        size = num_seqs.bit_length()
        if size not in self._lines:
            size = min(self._lines, key=lambda seen: (abs(seen - size), seen))
        return self._lines[size].predict(levels)

    def up_to(self, num_seqs: int, levels: int) -> list[float]:
        """The seconds of 0, 1, ..., `levels` levels, never decreasing."""
        return list(accumulate((self.predict(num_seqs, n) for n in range(levels + 1)), max))

    def observe(self, num_seqs: int, levels: int, num_unread: List[int], seconds: float) -> None:
        """Learn from one call of the drafter. num_unread: tokens it had to read of each text."""
        if num_read := sum(num for num in num_unread if num > FEW_UNREAD):
            beside = max(seconds - self.predict(num_seqs, levels), 0.0)
            self._reading.observe(beside / (self._token_s * num_read))
            return
        size = num_seqs.bit_length()
        line = self._lines.get(size)
        if line is None:
            line = self._lines[size] = _PacedLine(0.0, DRAFT_PRIOR * self._plain_s)
        line.observe(levels, seconds)


class Pace:
    """Measured over expected time of late: the lower median of a few ratios."""

    def __init__(self) -> None:
        self._ratios: deque[float] = deque(maxlen=PACE_STEPS)
        self.scale = 1.0

    def observe(self, ratio: float) -> float:
        """Returns the ratio over what the steps before let expect of it."""
        expected = self.scale if self._ratios else max(ratio, 1e-6)
        self._ratios.append(ratio)
        ordered = sorted(self._ratios)
        self.scale = max(ordered[(len(ordered) - 1) // 2], 1e-6)
        return ratio / expected


class _ShapeFactors:
    """By what the table is multiplied at each number of rows: linear between powers of two."""

    def __init__(self) -> None:
        self._anchors: list[float] = [1.0, 1.0]
        self._num_seen: list[float] = [0.0, 0.0]
        self._places: list[tuple[int, float]] = [(0, 0.0)]

    def at(self, num_rows: int) -> float:
        low, share = self._place(num_rows)
        anchors = self._anchors
        return anchors[low] + (anchors[low + 1] - anchors[low]) * share

    def up_to(self, num_rows: int) -> list[float]:
        """The factors of 0, 1, ..., num_rows rows."""
        self._place(num_rows)
        anchors = self._anchors
        rises = [b - a for a, b in pairwise(anchors)]
        places = self._places[: num_rows + 1]
        return [anchors[low] + rises[low] * share for low, share in places]

    def observe(self, num_rows: int, ratio: float) -> None:
        """ratio: measured over predicted."""
        low, share = self._place(num_rows)
        deviation = min(max(ratio - 1.0, -MOST_DEVIATION), MOST_DEVIATION)
        for anchor, weight in ((low, 1.0 - share), (low + 1, share)):
            self._num_seen[anchor] += weight
            rate = max(SHAPE_RATE, 1.0 / (TRUST_IN_TABLE + self._num_seen[anchor]))
            self._anchors[anchor] *= 1.0 + rate * weight * deviation

    def _place(self, num_rows: int) -> tuple[int, float]:
        """The anchor at or below a number of rows, and how far it is on the way to the next."""
        while len(self._places) <= num_rows:
            position = log2(len(self._places))
            low = int(position)
            self._places.append((low, position - low))
            while len(self._anchors) <= low + 1:
                self._anchors.append(self._anchors[-1])
                self._num_seen.append(0.0)
        return self._places[num_rows]


class _PacedLine:
    """seconds = scale * (fixed + slope * x): decayed least squares around a prior, at a pace.

    The scale follows the machine and whatever the prior was wrong by as a whole; the line, fitted
    to what is left of an observation once that is taken out, is the shape.
    """

    def __init__(self, fixed: float, slope: float) -> None:
        self._prior = self._line = (fixed, slope)
        self._pace = Pace()
        # Decayed sums of weights, x, x * x, seconds and x * seconds.
        self._sums: List[float] = (0.0, 0.0, 0.0, 0.0, 0.0)

    @property
    def coefficients(self) -> tuple[float, float]:
        """Fixed seconds, and seconds per x."""
        (fixed, slope), scale = self._line, self._pace.scale
        return fixed * scale, slope * scale

    def predict(self, x: float) -> float:
        fixed, slope = self.coefficients
        return fixed + slope * x

    def observe(self, x: float, seconds: float) -> None:
        expected = max(self._line[0] + self._line[1] * x, 1e-9)
        deviation = self._pace.observe(seconds / expected)
        y = expected * min(max(deviation, 1.0 / MOST_ABOVE_LINE), MOST_ABOVE_LINE)
        new = (1.0, x, x * x, y, x * y)
        self._sums = [LINE_DECAY * old + add for old, add in zip(self._sums, new, strict=True)]
        self._line = self._fit()

    def _fit(self) -> tuple[float, float]:
        """Minimises the decayed squares of the errors, the prior counting as observations, with
        both coefficients at least 0."""
        fixed_weight, slope_weight = PRIOR_WEIGHTS
        w, wx, wxx, wy, wxy = self._sums
        w, wxx = w + fixed_weight, wxx + slope_weight
        wy, wxy = wy + fixed_weight * self._prior[0], wxy + slope_weight * self._prior[1]
        slope = (w * wxy - wx * wy) / (w * wxx - wx * wx)
        fixed = (wy - slope * wx) / w
        if slope < 0.0:
            return wy / w, 0.0
        return (fixed, slope) if fixed >= 0.0 else (0.0, wxy / wxx)
