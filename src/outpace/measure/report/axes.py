"""Axes, and the names of what stands between them."""

from __future__ import annotations

from collections.abc import Sequence

from outpace.measure.report.drawing import (
    PLAIN,
    WIDTH,
    Canvas,
    Scale,
    marker,
    number,
    shortened,
    text_width,
    tick_text,
    tone_name,
)

MARGIN = 6.0
TOKEN = 5.0
"""Height that one token takes in a timeline."""
# Of parts that add up: the second is what the others are costs beside.
PART_TONES = (1, 0, PLAIN, 2, 3, 4, 5, 6)


def value_axis(canvas: Canvas, scale: Scale, bottom: float, axis: str, top: float = 0.0) -> None:
    """Ticks of a horizontal scale with their grid from `top` down to `bottom`, and its name."""
    for tick in scale.ticks():
        x = scale(tick)
        canvas.line(x, top or MARGIN, x, bottom, "grid")
        canvas.text(x, bottom + 14, tick_text(tick), kind="quiet", anchor="middle")
    middle = (scale(scale.low) + scale(scale.high)) / 2
    canvas.text(middle, bottom + 30, axis, kind="quiet", anchor="middle")


def legend(canvas: Canvas, parts: Sequence[str], *, last_is_token: bool = False) -> float:
    """The parts, named beside a sample; returns where the chart begins below them."""
    x, y = MARGIN, MARGIN + 4
    for index, part in enumerate(parts):
        is_token = last_is_token and index == len(parts) - 1
        width = 22 + text_width(part) + 10
        if x > MARGIN and x + width > WIDTH:
            x, y = MARGIN, y + 20
        size = TOKEN - 1 if is_token else 12.0
        kind = "gained" if is_token else f"fill-{tone_name(PART_TONES[index])}"
        canvas.add("rect", x=x, y=y + (12 - size) / 2, width=12.0, height=size, class_=kind)
        canvas.text(x + 18, y + 10.5, part)
        x += width
    return y + 26


def padded(places: Sequence[float]) -> tuple[float, float]:
    """The ends of an axis with some room beside the first and the last of ascending places."""
    if not places:
        return 0.0, 1.0
    room = (places[-1] - places[0]) * 0.04 or 0.5
    return places[0] - room, places[-1] + room


def frame(canvas: Canvas, up: Scale, left: float, right: float, y_axis: str) -> None:
    """Ticks of a vertical scale with their grid, and its name above them."""
    canvas.text(MARGIN, 14, y_axis, kind="quiet")
    for tick in up.ticks():
        canvas.line(left, up(tick), right, up(tick), "grid")
        canvas.text(left - 6, up(tick) + 4, tick_text(tick), kind="quiet", anchor="end")


def x_marks(canvas: Canvas, marks: Sequence[tuple[float, str]], bottom: float) -> None:
    """The last mark is always named; of the others those that leave it and one another room."""
    free_from, last = -WIDTH, marks[-1] if marks else None
    for x, text in marks:
        canvas.line(x, bottom, x, bottom + 4, "grid")
        half = text_width(text) / 2
        blocks_last = (x, text) != last and last and x + half > last[0] - text_width(last[1]) / 2
        if x - half >= free_from and not blocks_last:
            canvas.text(x, bottom + 18, text, kind="quiet", anchor="middle")
            free_from = x + half + 2


def name_ends(
    canvas: Canvas,
    ends: Sequence[tuple[float, float, str, int]],
    right: float,
    room: tuple[float, float],
) -> None:
    """Names beside the ends of their lines, moved apart where they would meet."""
    apart, (top, bottom) = 16.0, room
    places: list[float] = []
    for y, *_ in sorted(ends):
        places.append(max(y, places[-1] + apart if places else top))
    limit = bottom
    for index in reversed(range(len(places))):
        places[index] = min(places[index], limit)
        limit = places[index] - apart
    for place, (y, x, name, tone) in zip(places, sorted(ends), strict=True):
        canvas.add(
            "polyline",
            points=f"{number(x + 6)},{number(y)} {number(right + 8)},{number(place)}",
            class_=f"leader line-{tone_name(tone)}",
        )
        marker(canvas, tone, right + 14, place, name)
        canvas.text(right + 23, place + 4, shortened(name, WIDTH - right - 24))
