"""Whether speculation as a whole pays, against stretches of steps in which nothing is drafted.

What a plain step costs among others that draft is not what it costs among its like: where the
weights just fit in a cache that is shared with others, passes in quick succession keep them there
and run twice as fast as passes with pauses between them. So plain decoding is measured where it is
plain decoding, and speculation against that.
"""

from __future__ import annotations

from collections.abc import Sequence as List

from outpace.control.costs import CostTable, Pace, PassShape
from outpace.control.goodput import Plan, Rate

FIRST_STRETCH, SHORT_STRETCH = 12, 12
"""Plain steps at the very first, and where it is only to be seen what they cost by now."""
SETTLED = 4
"""Steps of a stretch before its steps count: what they need has to be fetched first."""
TRIAL = 24
"""Drafting steps after which is judged whether they paid."""
IDLE_TRIAL, SLOWER = 8, 0.95
"""Steps after which a trial ends in which nothing was worth a draft at all, if its steps are this
much slower than plain ones: to wait for something to turn up is cheaper in a plain stretch."""
SHORTEST, LONGEST = 128, 1024
"""Plain steps where they did not: at first, and after trials that did not pay either."""
LOOK_AGAIN = 256
"""Drafting steps that pay until plain ones are measured anew, unless they pay by `CLEARLY`."""
CLEARLY = 1.5


class Stretches:
    """Says before each step whether it is one of a plain stretch, and learns from it afterwards."""

    def __init__(self, table: CostTable) -> None:
        self._table = table
        self._paces: dict[int, Pace] = {}  # by number of sequences, to the power of two below
        self._left, self._steps = FIRST_STRETCH, 0
        self._pause = SHORTEST
        self._rate = Rate()
        self.is_firm = False
        """Whether the plain stretch goes on whatever turns up."""
        self._was_ended = False  # whether a trial began before its time and has not paid yet
        self._has_drafted = False  # whether anything was drafted since the trial began

    @property
    def is_plain(self) -> bool:
        """Whether the coming step is to be a plain one, without any thought of drafting."""
        return self._left > 0

    def plain_s(self, num_seqs: int, context: int) -> float:
        """Seconds of a whole step in a plain stretch. context: cached tokens of all sequences."""
        size = num_seqs.bit_length()
        pace = self._paces.get(size) or self._nearest(size)
        return self._table.seconds(PassShape(num_seqs, num_seqs, context)) * pace.scale

    def _nearest(self, size: int) -> Pace:
        seen = min(self._paces, key=lambda other: abs(other - size), default=None)
        return Pace() if seen is None else self._paces[seen]

    def per_second(self, num_seqs: int, context: int) -> float:
        """Output tokens a second brings in the long run: `Rate.per_second`."""
        return self._rate.per_second(num_seqs, self.plain_s(num_seqs, context))

    def plan(self, num_seqs: int, context: int) -> Plan:
        """A plain step of a stretch."""
        return Plan([("none", 0)] * num_seqs, num_seqs, self.plain_s(num_seqs, context))

    def end(self) -> None:
        """Leave a plain stretch: something has turned up that may be worth drafting. Among many
        requests something always has; where drafting then did not pay, the stretch that follows
        goes on to its end."""
        if self._left and not self.is_firm:
            self._begin_trial()
            self._was_ended = True

    def pass_by(self) -> None:
        """Count a step that fed prompts, whose time says nothing of others."""
        if self._left:
            self._left -= 1
            if not self._left:
                self._begin_trial()

    def observe(self, shape: PassShape, num_tokens: int, seconds: float) -> None:
        """Learn from a step, in which no prompt was fed."""
        self._steps += 1
        if self._left:
            self._observe_plain(shape, seconds)
        else:
            self._observe_drafting(shape, num_tokens, seconds)

    def _observe_plain(self, shape: PassShape, seconds: float) -> None:
        if self._steps > SETTLED:
            pace = self._paces.setdefault(shape.num_seqs.bit_length(), Pace())
            pace.observe(seconds / self._table.seconds(shape))
        self.pass_by()

    def _observe_drafting(self, shape: PassShape, num_tokens: int, seconds: float) -> None:
        if shape.num_seqs.bit_length() not in self._paces:
            # What so many sequences cost plainly is not known from fewer. One alone that copies is
            # not kept waiting for it.
            self._left, self._steps, self.is_firm = SHORT_STRETCH, 0, shape.num_seqs > 1
            return
        plain_s = self.plain_s(shape.num_seqs, shape.context)
        self._rate.observe(num_tokens, seconds, shape.num_seqs, plain_s)
        self._has_drafted |= shape.num_rows > shape.num_seqs
        if self._steps < TRIAL and not self._is_idle:
            return
        if self._rate.ratio < 1:
            self._left, self._steps = self._pause, 0
            self.is_firm = self._was_ended
            self._pause = min(2 * self._pause, LONGEST)
            return
        self._was_ended = False
        if self._steps >= LOOK_AGAIN:
            if self._rate.ratio < CLEARLY:
                self._left = SHORT_STRETCH
            self._steps = 0
            self._pause = SHORTEST

    @property
    def _is_idle(self) -> bool:
        """Whether the trial only costs: see `IDLE_TRIAL`."""
        waited = self._steps >= IDLE_TRIAL and not self._has_drafted
        return waited and self._rate.ratio < SLOWER

    def _begin_trial(self) -> None:
        self._left = self._steps = 0
        self._has_drafted = False
        self._rate = Rate()
        self.is_firm = self._was_ended = False


class Copying:
    """Notices, at next to no cost, when a text repeats what stands in it.

    A text is taken to be copying once `LONG` tokens in a row were those that had followed the same
    `SHORT` tokens last time.
    """

    SHORT, LONG = 3, 5

    def __init__(self) -> None:
        self._following: dict[tuple[int, ...], int] = {}
        self._length = 0
        self._hits = 0

    def follow(self, tokens: List[int]) -> bool:
        """Whether the text is copying, once it has become `tokens`."""
        short, following = self.SHORT, self._following
        for end in range(max(self._length, short), len(tokens)):
            before, token = tuple(tokens[end - short : end]), tokens[end]
            self._hits = self._hits + 1 if following.get(before) == token else 0
            following[before] = token
        self._length = len(tokens)
        return self._hits >= self.LONG
