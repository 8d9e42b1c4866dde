"""Charts as SVG: bars with intervals, stacked bars, lines, and steps along time.

Every function returns one `<svg role="img">` with a title and a description, for a page made by
`page.page`, which brings the colours, the patterns and the dark variant. All texts are escaped
here. A chart shows what a table says better: put both into the page with `page.figure`.

Values that are not known are None: their bar or point is left out, and a bar says so.
`tone` (0 to 7) is a colour with its pattern and its marker; None takes the place in the chart. Give
a method the same tone in every chart of a page. PLAIN is a quiet grey, for what the others are
compared with.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from outpace.measure.report.axes import (
    MARGIN,
    PART_TONES,
    TOKEN,
    frame,
    legend,
    name_ends,
    padded,
    value_axis,
    x_marks,
)
from outpace.measure.report.drawing import (
    PLAIN,
    WIDTH,
    Canvas,
    Scale,
    covering,
    marker,
    number,
    shortened,
    text_width,
    tick_text,
    tone_name,
)
from outpace.measure.report.markup import Html, element, escape
from outpace.measure.report.numbers import decimals, interval, milliseconds, significant

__all__ = [
    "PLAIN",
    "Bar",
    "Estimate",
    "Group",
    "Lane",
    "Line",
    "Stack",
    "Step",
    "grouped_bars",
    "lines",
    "stacked_bars",
    "timeline",
]

_BAR, _BAR_GAP = 14.0, 5.0
_HEADING = 22.0
_MAX_NAMES = 150.0
_MAX_TOKENS_HEIGHT, _STRIP = 70.0, 18.0


@dataclass(frozen=True)
class Estimate:
    """A value with its interval; `low` and `high` are None where there is none."""

    value: float | None
    low: float | None = None
    high: float | None = None

    @property
    def finite(self) -> float | None:
        """The value, if it can be drawn."""
        return self.value if self.value is not None and math.isfinite(self.value) else None

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The interval, if it can be drawn."""
        if self.low is None or self.high is None:
            return None
        finite = math.isfinite(self.low) and math.isfinite(self.high)
        return (self.low, self.high) if finite else None


@dataclass(frozen=True)
class Bar:
    """One bar: its name to the left of it, its value (`text`, or two decimals) behind it."""

    name: str
    estimate: Estimate
    tone: int | None = None
    text: str | None = None


@dataclass(frozen=True)
class Group:
    """Bars below one heading; an empty heading takes no line."""

    heading: str
    bars: Sequence[Bar]


@dataclass(frozen=True)
class Line:
    """Points joined by a line, marked and named at its end. x must be ascending; a point whose
    estimate has no value interrupts the line."""

    name: str
    points: Sequence[tuple[float, Estimate]]
    tone: int | None = None


@dataclass(frozen=True)
class Stack:
    """One bar of several parts, in the order of the chart's `parts`; `text` stands behind it."""

    name: str
    values: Sequence[float]
    text: str = ""


@dataclass(frozen=True)
class Step:
    """One step along time: the milliseconds of its parts and the number of tokens it gained;
    `note` is shown where the pointer rests on it."""

    parts_ms: Sequence[float]
    num_tokens: int
    note: str = ""


@dataclass(frozen=True)
class Lane:
    """Steps one after the other, on the time axis that all lanes of a chart share."""

    name: str
    steps: Sequence[Step]


def grouped_bars(
    title: str,
    groups: Sequence[Group],
    *,
    axis: str,
    description: str = "",
    reference: float | None = 1.0,
) -> Html:
    """Horizontal bars with interval whiskers, from 0; `reference` is a line across all groups
    (None: no line). `axis` names the values. With one group and no intervals: plain bars.
    Values below 0 are drawn as 0; their text says what they are."""
    bars = [bar for group in groups for bar in group.bars]
    texts = [_bar_text(bar) for bar in bars]
    left, right = _gutters([bar.name for bar in bars], texts)
    reach = [value for bar in bars for value in _extent(bar.estimate)]
    scale = _upwards([*reach, *([] if reference is None else [reference])], left, right)
    canvas = Canvas(title, description)
    top, rows, headings = MARGIN, [], []
    for group in groups:
        if group.heading:
            headings.append((top + 14, group.heading))
            top += _HEADING
        for place, bar in enumerate(group.bars):
            rows.append((top, bar, place if bar.tone is None else bar.tone))
            top += _BAR + _BAR_GAP
        top += _BAR_GAP
    value_axis(canvas, scale, top, axis)
    for row_top, bar, tone in rows:
        _draw_bar(canvas, scale, row_top, bar, tone)
    if reference is not None:
        canvas.line(scale(reference), MARGIN, scale(reference), top, "reference")
    for y, heading in headings:
        canvas.text(MARGIN, y, heading, kind="title")
    for row_top, bar, _ in rows:
        _label_bar(canvas, scale, row_top, bar)
    return canvas.finished(top + 36)


def stacked_bars(
    title: str, parts: Sequence[str], stacks: Sequence[Stack], *, axis: str, description: str = ""
) -> Html:
    """Horizontal bars whose parts add up, with the parts named above."""
    left, right = _gutters([stack.name for stack in stacks], [stack.text for stack in stacks])
    scale = _upwards([sum(stack.values) for stack in stacks], left, right)
    canvas = Canvas(title, description)
    start = legend(canvas, parts)
    top = start + len(stacks) * (_BAR + 2 * _BAR_GAP)
    value_axis(canvas, scale, top, axis, start)
    for index, stack in enumerate(stacks):
        y = start + index * (_BAR + 2 * _BAR_GAP) + _BAR_GAP
        canvas.text(left - 6, y + 11.5, shortened(stack.name, left - 12), anchor="end")
        _draw_parts(canvas, scale, y, _BAR, 0.0, zip(parts, stack.values, strict=True))
        canvas.text(scale(sum(stack.values)) + 6, y + 11.5, stack.text, kind="quiet")
    return canvas.finished(top + 36)


def lines(
    title: str,
    series: Sequence[Line],
    *,
    x_axis: str,
    y_axis: str,
    description: str = "",
    reference: float | None = None,
    y_from: float | None = 0.0,
    y_to: float | None = None,
    even: bool = False,
) -> Html:
    """Lines with points and, where known, their intervals. The y axis covers all values, and
    `y_from`, `y_to` and `reference` where given. The x axis is marked where there are points;
    `even` sets those apart by equal steps (batches 1, 2, 4, 8) instead of by their values."""
    marks = sorted({x for line in series for x, _ in line.points})
    places = {x: float(index) if even else x for index, x in enumerate(marks)}
    names = max((text_width(line.name) for line in series), default=0.0)
    left, right = 44.0, WIDTH - min(names, _MAX_NAMES) - 28
    x_low, x_high = padded(list(places.values()))
    across = Scale(x_low, x_high, left, right)
    values = [value for line in series for _, each in line.points for value in _extent(each)]
    fixed = [] if reference is None else [reference]
    top, bottom = 28.0, 258.0
    up = Scale(*covering([*values, *fixed], y_from, y_to), bottom, top)
    canvas = Canvas(title, description)
    frame(canvas, up, left, right, y_axis)
    x_marks(canvas, [(across(places[x]), tick_text(x)) for x in marks], bottom)
    canvas.text((left + right) / 2, bottom + 36, x_axis, kind="quiet", anchor="middle")
    if reference is not None:
        canvas.line(left, up(reference), right, up(reference), "reference")
    ends = []
    for index, line in enumerate(series):
        tone = index if line.tone is None else line.tone
        drawn = [(across(places[x]), x, each) for x, each in line.points]
        end = _draw_line(canvas, up, line.name, drawn, tone)
        ends.extend([] if end is None else [(end[1], end[0], line.name, tone)])
    name_ends(canvas, ends, right, (top, bottom))
    return canvas.finished(bottom + 44)


def timeline(
    title: str, parts: Sequence[str], lanes: Sequence[Lane], *, description: str = ""
) -> Html:
    """Steps of one or more lanes along one time axis in ms: every step as long as it took, divided
    into its parts, with the number of tokens it gained above it."""
    longest = max((_duration(lane) for lane in lanes), default=0.0)
    scale = _upwards([longest], MARGIN, WIDTH - MARGIN - 8)
    heights = [max((step.num_tokens for step in lane.steps), default=0) for lane in lanes]
    token = min(TOKEN, _MAX_TOKENS_HEIGHT / max([1, *heights]))
    canvas = Canvas(title, description)
    start = legend(canvas, [*parts, "one token gained"], last_is_token=True)
    tops = [start]
    for height in heights:
        tops.append(tops[-1] + _HEADING + 6 + height * token + _STRIP + 16)
    value_axis(canvas, scale, tops[-1], "milliseconds", start)
    for lane, top, next_top in zip(lanes, tops, tops[1:], strict=False):
        num_tokens = sum(step.num_tokens for step in lane.steps)
        canvas.text(MARGIN, top + 14, lane.name, kind="title")
        said = f"{num_tokens} tokens, {len(lane.steps)} steps, {milliseconds(_duration(lane))}"
        canvas.text(WIDTH - MARGIN, top + 14, said, kind="quiet", anchor="end")
        _draw_steps(canvas, scale, next_top - _STRIP - 10, parts, lane.steps, token)
    return canvas.finished(tops[-1] + 36)


def _bar_text(bar: Bar) -> str:
    if bar.text is not None:
        return bar.text
    return "not known" if bar.estimate.finite is None else decimals(bar.estimate.finite)


def _extent(estimate: Estimate) -> list[float]:
    value = [] if estimate.finite is None else [estimate.finite]
    return [*value, *(estimate.bounds or ())]


def _gutters(names: Sequence[str], texts: Sequence[str]) -> tuple[float, float]:
    """Where bars begin, and where the longest may end so that its text has room."""
    left = min(_MAX_NAMES, max((text_width(name) for name in names), default=0.0))
    right = min(_MAX_NAMES, max((text_width(text) for text in texts), default=0.0))
    return left + 2 * MARGIN, WIDTH - right - 2 * MARGIN


def _upwards(values: Sequence[float], left: float, right: float) -> Scale:
    return Scale(0.0, max([*values, 0.0]) * 1.02 or 1.0, left, right)


def _draw_bar(canvas: Canvas, scale: Scale, top: float, bar: Bar, tone: int) -> None:
    value, start = bar.estimate.finite, scale(0.0)
    if value is None:
        return
    said = interval(value, *(bar.estimate.bounds or (None, None)))
    title = element("title", escape(f"{bar.name}: {said}"))
    width = max(0.0, scale(value) - start)
    kind = f"fill-{tone_name(tone)}"
    canvas.add("rect", title, x=start, y=top, width=width, height=_BAR, class_=kind)


def _label_bar(canvas: Canvas, scale: Scale, top: float, bar: Bar) -> None:
    """What must stay readable above bars and reference: names, values and intervals."""
    start, middle = scale(0.0), top + _BAR / 2
    canvas.text(start - 6, top + 11.5, shortened(bar.name, start - 12), anchor="end")
    if bar.estimate.bounds:
        low, high = (scale(max(0.0, bound)) for bound in bar.estimate.bounds)
        canvas.whisker((low, middle), (high, middle))
    end = scale(max([0.0, *_extent(bar.estimate)]))
    kind = "quiet" if bar.estimate.finite is None else "strong"
    canvas.text(end + 6, top + 11.5, _bar_text(bar), kind=kind)


def _draw_parts(
    canvas: Canvas,
    scale: Scale,
    top: float,
    height: float,
    start: float,
    parts: Iterable[tuple[str, float]],
) -> None:
    for index, (name, value) in enumerate(parts):
        x, end = scale(start), scale(start + max(0.0, value))
        start += max(0.0, value)
        if end - x >= 0.05:
            said = element("title", escape(f"{name}: {significant(value)}"))
            kind = f"fill-{tone_name(PART_TONES[index])}"
            canvas.add("rect", said, x=x, y=top, width=end - x, height=height, class_=kind)


def _draw_line(
    canvas: Canvas, up: Scale, name: str, points: Sequence[tuple[float, float, Estimate]], tone: int
) -> tuple[float, float] | None:
    """Returns where its last point lies."""
    path, joined, end = "", False, None
    for x, _, estimate in points:
        value = estimate.finite
        if value is None:
            joined = False
            continue
        end = (x, up(value))
        path += f"{'L' if joined else 'M'}{number(x)} {number(up(value))}"
        joined = True
        if estimate.bounds:
            low, high = estimate.bounds
            canvas.line(x, up(low), x, up(high), f"spread line-{tone_name(tone)}")
    canvas.add("path", d=path or "M0 0", class_=f"curve line-{tone_name(tone)}")
    for x, at, estimate in points:
        value = estimate.finite
        if value is not None:
            said = interval(value, *(estimate.bounds or (None, None)))
            marker(canvas, tone, x, up(value), f"{name}, {tick_text(at)}: {said}")
    return end


def _duration(lane: Lane) -> float:
    return sum(max(0.0, part) for step in lane.steps for part in step.parts_ms)


def _draw_steps(
    canvas: Canvas,
    scale: Scale,
    top: float,
    parts: Sequence[str],
    steps: Sequence[Step],
    token: float,
) -> None:
    start = 0.0
    for place, step in enumerate(steps, 1):
        took = sum(max(0.0, part) for part in step.parts_ms)
        x, width = scale(start), scale(start + took) - scale(start)
        gap = min(1.0, width / 4)
        said = f"step {place}: {step.num_tokens} tokens, {milliseconds(took)}"
        note = element("title", escape(f"{said}. {step.note}" if step.note else said))
        cells = [
            f"M{number(x + gap / 2)} {number(top - 4 - n * token)}h{number(width - gap)}"
            f"v{number(-(token - 1))}h{number(-(width - gap))}z"
            for n in range(step.num_tokens)
        ]
        if cells:
            canvas.add("path", note, d="".join(cells), class_="gained")
        named = zip(parts, step.parts_ms, strict=True)
        _draw_parts(canvas, scale, top, _STRIP, start, named)
        start += took
        canvas.line(scale(start), top, scale(start), top + _STRIP, "divide")
