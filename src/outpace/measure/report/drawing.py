"""What the charts are drawn with: a canvas, scales, the width of texts, patterns and markers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from outpace.measure.report.markup import Html, element, escape

WIDTH = 480.0
"""Of every chart, in its own units: narrow, so that its texts stay readable on a phone."""
PLAIN = -1
NUM_TONES = 8
# Of a letter on a phone, where texts are set larger (style.css).
_LETTER = 8.4
_TICK_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_PATTERN_SIZE = 6

# What lies over the colour, so that no two tones differ by hue alone. Tone 0 is plain colour.
_OVERLAYS = {
    1: '<path class="over" d="M-1.5 1.5l3-3M0 6l6-6M4.5 7.5l3-3"/>',
    2: '<circle class="dot" cx="3" cy="3" r="1.3"/>',
    3: '<path class="over" d="M3 0v6"/>',
    4: '<path class="over" d="M0 3h6"/>',
    5: '<path class="over" d="M-1.5 4.5l3 3M0 0l6 6M4.5-1.5l3 3"/>',
    6: '<path class="over" d="M3 0v6M0 3h6"/>',
    7: '<path class="over" d="M0 6l6-6M0 0l6 6"/>',
}


class Canvas:
    """Collects the elements of one chart, which is WIDTH wide and as high as it turns out."""

    def __init__(self, title: str, description: str) -> None:
        self._parts: list[Html] = [
            element("title", escape(title)),
            *([element("desc", escape(description))] if description else []),
        ]
        self._label = f"{title}. {description}" if description else title

    def add(self, name: str, *content: Html, **attributes: object) -> None:
        """An element; numbers among the attributes are rounded to tenths."""
        self._parts.append(_shape(name, content, attributes))

    def text(self, x: float, y: float, text: str, *, kind: str = "", anchor: str = "start") -> None:
        """`text` with its baseline at y; `anchor` start, middle or end."""
        self.add("text", escape(text), x=x, y=y, class_=kind or None, text_anchor=anchor)

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str) -> None:
        self.add("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=kind)

    def whisker(self, low: tuple[float, float], high: tuple[float, float]) -> None:
        """A line from `low` to `high` with caps, visible on bars of any colour."""
        (x1, y1), (x2, y2) = low, high
        cap_x, cap_y = (0.0, 3.5) if y1 == y2 else (3.5, 0.0)
        ends = [
            f"M{number(x - cap_x)} {number(y - cap_y)}L{number(x + cap_x)} {number(y + cap_y)}"
            for x, y in (low, high)
        ]
        path = f"M{number(x1)} {number(y1)}L{number(x2)} {number(y2)}{''.join(ends)}"
        self.add("path", d=path, class_="halo")
        self.add("path", d=path, class_="whisker")

    def finished(self, height: float) -> Html:
        """The chart as one `<svg>`."""
        return element(
            "svg",
            *self._parts,
            class_="chart",
            viewBox=f"0 0 {number(WIDTH)} {number(height)}",
            role="img",
            aria_label=self._label,
            xmlns="http://www.w3.org/2000/svg",
        )


class Scale:
    """From values to places: `low` lies at `start`, `high` at `end`."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self.low, self.high = low, high
        self._start, self._step = start, (end - start) / (high - low)

    def __call__(self, value: float) -> float:
        return self._start + (value - self.low) * self._step

    def ticks(self) -> list[float]:
        """Round values from low to high, four to eight of them."""
        step = tick_step(self.high - self.low)
        first = math.ceil(self.low / step - 1e-9)
        return [n * step for n in range(first, math.floor(self.high / step + 1e-9) + 1)]


def tick_step(span: float) -> float:
    """A round distance that divides `span` (above 0) into four to eight parts."""
    size = 10.0 ** math.floor(math.log10(span / 5))
    return next(size * step for step in _TICK_STEPS if span / (size * step) <= 7)


def covering(values: Sequence[float], low: float | None, high: float | None) -> tuple[float, float]:
    """The bounds of an axis on which all `values` lie: rounded outwards to ticks, except where
    `low` or `high` is given and reaches far enough."""
    least = min([*values, *([] if low is None else [low])], default=0.0)
    most = max([*values, *([] if high is None else [high])], default=1.0)
    if most <= least:
        most = least + (abs(least) or 1.0)
    step = tick_step(most - least)
    bottom = least if least == low else math.floor(least / step + 1e-9) * step
    top = most if most == high else math.ceil(most / step - 1e-9) * step
    return bottom, top


def tick_text(value: float) -> str:
    """`value` without superfluous zeros: 0, 0.5, 1, 12, 1,500."""
    return f"{value:,.4f}".rstrip("0").rstrip(".") if abs(value) < 1e6 else f"{value:.3g}"


def text_width(text: str) -> float:
    """At most what `text` takes, in the chart's units, in the usual letters."""
    return len(text) * _LETTER


def shortened(text: str, width: float) -> str:
    """`text`, cut to `width` with an ellipsis where it is longer."""
    room = max(1, int(width / _LETTER))
    return text if len(text) <= room else f"{text[: room - 1].rstrip()}…"


def tone_name(tone: int) -> str:
    """As the style sheet calls it."""
    return "plain" if tone == PLAIN else str(tone % NUM_TONES)


def marker(canvas: Canvas, tone: int, x: float, y: float, title: str) -> None:
    """A mark whose outline tells the tone without its colour."""
    kind = f"marker line-{tone_name(tone)}"
    said = element("title", escape(title))
    shape = 0 if tone == PLAIN else tone % 4
    if shape == 0:
        canvas.add("circle", said, cx=x, cy=y, r=3.5, class_=kind)
        return
    corners = {
        1: [(-3.4, -3.4), (3.4, -3.4), (3.4, 3.4), (-3.4, 3.4)],
        2: [(0, -4.4), (4.2, 3.2), (-4.2, 3.2)],
        3: [(0, -4.8), (4.8, 0), (0, 4.8), (-4.8, 0)],
    }[shape]
    points = " ".join(f"{number(x + dx)},{number(y + dy)}" for dx, dy in corners)
    canvas.add("polygon", said, points=points, class_=kind)


def patterns() -> Html:
    """The patterns of the tones; once in a page, before its charts."""
    drawn = [
        element(
            "pattern",
            Html(f'<rect class="base-{tone}" width="{_PATTERN_SIZE}" height="{_PATTERN_SIZE}"/>'),
            Html(overlay),
            id=f"pattern-{tone}",
            width=_PATTERN_SIZE,
            height=_PATTERN_SIZE,
            patternUnits="userSpaceOnUse",
        )
        for tone, overlay in _OVERLAYS.items()
    ]
    return element("svg", element("defs", *drawn), class_="patterns", aria_hidden="true")


def number(value: float) -> str:
    """A coordinate, to tenths."""
    text = f"{value:.1f}"
    return text.removesuffix(".0") if text != "-0.0" else "0"


def _shape(name: str, content: tuple[Html, ...], attributes: dict[str, object]) -> Html:
    rounded = {
        key: number(value) if isinstance(value, float) else value
        for key, value in attributes.items()
    }
    return element(name, *content, **rounded)
