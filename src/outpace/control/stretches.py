"""Whether speculation as a whole pays, against stretches of steps in which nothing is drafted.

What a plain step costs among others that draft is not what it costs among its like: where the
weights just fit in a cache that is shared with others, passes in quick succession keep them there
and run twice as fast as passes with pauses between them. So plain decoding is measured where it is
plain decoding, and speculation against that.
"""

from __future__ import annotations

from collections.abc import Sequence as List

from outpace.control.costs import CostTable, Pace, PassShape
from outpace.control.goodput import NONE, Plan, Rate

FIRST_STRETCH, SHORT_STRETCH = 12, 12
"""Plain steps at the very first, and where it is only to be seen what they cost by now."""
SETTLED = 4
"""Steps of a stretch before its steps count: what they need has to be fetched first."""
CREDIT, MOST_CREDIT = 2.0, 12.0
"""Plain steps' time that drafting may lose when it is tried, and at most, however much it gained. A
trial that follows `SHORTEST` plain steps costs 1.6 %, one that follows `LONGEST` 0.2 %."""
IDLE_CHARGE = 3.0
"""Times its loss that a step without a draft is charged: it tells nothing of drafting, and the same
step costs less in a plain stretch."""
MOST_LATE = 1.5
"""A step is charged at most so many times what was expected of it: it may be a hiccup of the
machine."""
AFTER_PAID, SHORTEST, LONGEST = 64, 128, 1024
"""Plain steps after drafting that paid as a whole; and where it did not, at first and at most: each
trial that did not pay either doubles the pause."""
LOOK_AGAIN, SELDOM = 256, 1024
"""Drafting steps that pay until plain ones are measured anew; and that pay by `CLEARLY`: not never,
since plain steps may have been measured while the machine was slow."""
CLEARLY = 1.5


class Account:
    """What drafting may still lose before it is left, in plain steps.

    Gains are added and losses taken off, up to a limit: a cumulative sum (Page 1954), which tells
    soonest that what paid does so no longer. So a trial loses what it was given and no more, but
    for its last step, and what was gained long ago excuses nothing.
    """

    def __init__(self) -> None:
        self.credit = CREDIT
        self._gained = 0.0

    def book(self, gained: float, was_idle: bool) -> None:
        """gained: plain steps' time that a step saved; negative where it lost. was_idle: nothing
        was drafted in it."""
        charged = IDLE_CHARGE * gained if was_idle else gained
        self.credit = min(self.credit + charged, MOST_CREDIT)
        self._gained += gained

    @property
    def has_paid(self) -> bool:
        """Whether all steps together were faster than plain ones."""
        return self._gained > 0


class Stretches:
    """Says before each step whether it is one of a plain stretch, and learns from it afterwards.

    Drafting is tried after each plain stretch, and goes on until its account is empty. The pauses
    between trials that do not pay double, so that what they lose grows with the logarithm of the
    steps, and once the pauses are longest by 0.2 % of them.
    """

    def __init__(self, table: CostTable) -> None:
        self._table = table
        self._paces: dict[int, Pace] = {}  # by number of sequences, to the power of two below
        self._left, self._steps = FIRST_STRETCH, 0
        self._pause = SHORTEST
        self._rate, self._account = Rate(), Account()
        self.is_firm = False
        """Whether the plain stretch goes on whatever turns up."""
        self._was_ended = False  # whether drafting began before its time

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
        return Plan([(NONE, 0)] * num_seqs, num_seqs, self.plain_s(num_seqs, context))

    def end(self) -> None:
        """Leave a plain stretch: something has turned up that may be worth drafting. Among many
        requests something always has; where drafting then did not pay, the stretch that follows
        goes on to its end."""
        if self._left and not self.is_firm:
            self._begin_drafting()
            self._was_ended = True

    def pass_by(self) -> None:
        """Count a step that fed prompts, whose time says nothing of others."""
        if self._left:
            self._left -= 1
            if not self._left:
                self._begin_drafting()

    def observe(
        self, shape: PassShape, num_tokens: int, seconds: float, predicted_s: float
    ) -> None:
        """Learn from a step, in which no prompt was fed. predicted_s: what it should have taken."""
        self._steps += 1
        if self._left:
            self._observe_plain(shape, seconds)
        else:
            self._observe_drafting(shape, num_tokens, min(seconds, MOST_LATE * predicted_s))

    def _observe_plain(self, shape: PassShape, seconds: float) -> None:
        if self._steps > SETTLED:
            size = shape.num_seqs.bit_length()
            pace = self._paces.get(size)
            if pace is None:
                pace = self._paces[size] = Pace()
            pace.observe(seconds / self._table.seconds(shape))
        self.pass_by()

    def _observe_drafting(self, shape: PassShape, num_tokens: int, seconds: float) -> None:
        num_seqs = shape.num_seqs
        if num_seqs.bit_length() not in self._paces:
            # What so many sequences cost plainly is not known from fewer. One alone that copies is
            # not kept waiting for it.
            self._left, self._steps, self.is_firm = SHORT_STRETCH, 0, num_seqs > 1
            return
        plain_s = self.plain_s(num_seqs, shape.context)
        self._rate.observe(num_tokens, seconds, num_seqs, plain_s)
        gained = num_tokens / num_seqs - seconds / plain_s
        self._account.book(gained, shape.num_rows == num_seqs)
        if self._account.credit <= 0:
            self._leave()
        elif self._steps >= (LOOK_AGAIN if self._rate.ratio < CLEARLY else SELDOM):
            self._left, self._steps = SHORT_STRETCH, 0

    def _leave(self) -> None:
        if self._account.has_paid:
            self._left, self._pause, self.is_firm = AFTER_PAID, SHORTEST, False
        else:
            self._left, self.is_firm = self._pause, self._was_ended
            self._pause = min(2 * self._pause, LONGEST)
        self._steps = 0
        self._rate, self._account = Rate(), Account()

    def _begin_drafting(self) -> None:
        self._left = self._steps = 0
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
