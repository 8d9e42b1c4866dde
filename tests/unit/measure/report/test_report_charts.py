"""Charts: what they show is to scale, and whatever they are given stays a chart."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from outpace.measure.report.drawing import WIDTH, Scale, covering, shortened, tick_text
from outpace.measure.report.markup import Html
from outpace.measure.report.svg import (
    PLAIN,
    Bar,
    Estimate,
    Group,
    Lane,
    Line,
    Stack,
    Step,
    grouped_bars,
    lines,
    stacked_bars,
    timeline,
)

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = '</title><script>alert("x")</script>&\x00\ud800'


def parsed(chart: Html) -> ElementTree.Element:
    """The chart, which has to be well-formed and writable."""
    root = ElementTree.fromstring(chart.encode())
    assert root.get("role") == "img"
    assert root.get("aria-label")
    return root


def shapes(root: ElementTree.Element, name: str, kind: str = "") -> list[ElementTree.Element]:
    return [
        each for each in root.iter(SVG + name) if kind in each.get("class", "").split() or not kind
    ]


def texts(root: ElementTree.Element) -> list[str]:
    return [each.text or "" for each in root.iter(SVG + "text")]


def at(shape: ElementTree.Element, name: str) -> float:
    value = shape.get(name)
    assert value is not None
    return float(value)


def test_bars_are_as_long_as_their_values_and_the_reference_lies_at_its_value() -> None:
    bars = [Bar("a", Estimate(2.0, 1.5, 2.5), 0), Bar("b", Estimate(0.5), 1)]
    root = parsed(grouped_bars("T", [Group("all", bars)], axis="times"))
    long, short = shapes(root, "rect", "fill-0")[0], shapes(root, "rect", "fill-1")[0]
    assert at(long, "width") == pytest.approx(4 * at(short, "width"), abs=0.3)
    (reference,) = shapes(root, "line", "reference")
    assert at(reference, "x1") - at(long, "x") == pytest.approx(at(long, "width") / 2, abs=0.2)
    assert {"a", "b", "2.00", "0.50", "all", "times"} <= set(texts(root))
    (whisker,) = shapes(root, "path", "whisker")
    low, high = re.match(r"M([\d.]+) [\d.]+L([\d.]+)", whisker.get("d", "")).groups()  # type: ignore[union-attr]
    unit = at(long, "width") / 2
    assert float(low) - at(long, "x") == pytest.approx(1.5 * unit, abs=0.2)
    assert float(high) - at(long, "x") == pytest.approx(2.5 * unit, abs=0.2)


def test_what_is_not_known_is_said_and_not_drawn() -> None:
    bars = [
        Bar("a", Estimate(None)),
        Bar("b", Estimate(math.inf)),
        Bar("c", Estimate(1.0, 0.5, None)),
    ]
    root = parsed(grouped_bars("T", [Group("", bars)], axis="times", reference=None))
    assert len(shapes(root, "rect")) == 1
    assert texts(root).count("not known") == 2
    assert not shapes(root, "path", "whisker")
    assert not shapes(root, "line", "reference")


def test_a_method_keeps_its_tone_and_plain_decoding_has_none() -> None:
    bars = [Bar("a", Estimate(1.0), 5), Bar("plain", Estimate(1.0), PLAIN)]
    root = parsed(grouped_bars("T", [Group("", bars)], axis="times"))
    assert [each.get("class") for each in shapes(root, "rect")] == ["fill-5", "fill-plain"]
    line = Line("a", [(1, Estimate(1.0))], 5)
    root = parsed(lines("T", [line], x_axis="x", y_axis="y"))
    assert shapes(root, "path", "line-5")


def test_parts_of_a_stack_follow_one_another() -> None:
    root = parsed(
        stacked_bars("T", ["draft", "verify"], [Stack("a", [1.0, 3.0], "4 ms")], axis="ms")
    )
    first, second = shapes(root, "rect")[-2:]
    assert at(first, "x") + at(first, "width") == pytest.approx(at(second, "x"), abs=0.15)
    assert at(second, "width") == pytest.approx(3 * at(first, "width"), abs=0.3)
    assert {"draft", "verify", "a", "4 ms"} <= set(texts(root))


def test_a_line_is_interrupted_where_a_value_is_missing() -> None:
    points = [(1, Estimate(1.0)), (2, Estimate(None)), (3, Estimate(2.0)), (4, Estimate(3.0))]
    root = parsed(lines("T", [Line("a", points)], x_axis="x", y_axis="y"))
    (curve,) = shapes(root, "path", "curve")
    assert curve.get("d", "").count("M") == 2
    assert curve.get("d", "").count("L") == 1
    # Three points, and the one beside the name.
    assert len(shapes(root, "circle", "marker")) == 4


def test_points_lie_where_their_values_are() -> None:
    line = Line("a", [(1, Estimate(0.0)), (2, Estimate(0.5)), (8, Estimate(1.0))])
    root = parsed(lines("T", [line], x_axis="x", y_axis="y", y_to=1.0, reference=0.5))
    marks = shapes(root, "circle", "marker")
    heights = [at(each, "cy") for each in marks]
    assert heights[1] == pytest.approx((heights[0] + heights[2]) / 2, abs=0.1)
    (reference,) = shapes(root, "line", "reference")
    assert at(reference, "y1") == pytest.approx(heights[1], abs=0.1)
    places = [at(each, "cx") for each in marks]
    assert places[2] - places[0] == pytest.approx(7 * (places[1] - places[0]), abs=0.8)
    evenly = parsed(lines("T", [line], x_axis="x", y_axis="y", even=True))
    places = [at(each, "cx") for each in shapes(evenly, "circle", "marker")]
    assert places[2] - places[1] == pytest.approx(places[1] - places[0], abs=0.2)


def test_names_of_lines_that_end_together_are_moved_apart() -> None:
    series = [Line(f"line {n}", [(1, Estimate(1.0)), (2, Estimate(2.0))]) for n in range(6)]
    root = parsed(lines("T", series, x_axis="x", y_axis="y"))
    named = [each for each in root.iter(SVG + "text") if (each.text or "").startswith("line ")]
    heights = sorted(at(each, "y") for each in named)
    assert all(b - a >= 15.5 for a, b in pairwise(heights))


def test_steps_are_as_long_as_they_took_and_show_their_tokens() -> None:
    steps = [Step((1.0, 3.0), 3, "4 drafted"), Step((0.0, 4.0), 1)]
    root = parsed(timeline("T", ["draft", "verify"], [Lane("a", steps)]))
    gained = shapes(root, "path", "gained")
    assert [each.get("d", "").count("z") for each in gained] == [3, 1]
    assert "step 1: 3 tokens, 4.00 ms. 4 drafted" in [
        each.text for each in root.iter(SVG + "title")
    ]
    assert "4 tokens, 2 steps, 8.00 ms" in texts(root)
    first, second = shapes(root, "line", "divide")
    origin = at(shapes(root, "rect", "fill-1")[-1], "x")
    assert at(second, "x1") - origin == pytest.approx(2 * (at(first, "x1") - origin), abs=0.2)
    last = shapes(root, "rect", "fill-0")[-1]
    assert at(second, "x1") == pytest.approx(at(last, "x") + at(last, "width"), abs=0.2)


def test_lanes_share_one_axis() -> None:
    lanes = [Lane("slow", [Step((8.0,), 1)]), Lane("quick", [Step((2.0,), 1)])]
    root = parsed(timeline("T", ["all"], lanes))
    slow, quick = (at(each, "width") for each in shapes(root, "rect", "fill-1")[1:])
    assert slow == pytest.approx(4 * quick, abs=0.3)


def hostile_charts() -> list[Html]:
    bad = Estimate(math.nan, -math.inf, math.inf)
    return [
        grouped_bars(HOSTILE, [Group(HOSTILE, [Bar(HOSTILE, bad, text=HOSTILE)])], axis=HOSTILE),
        lines(HOSTILE, [Line(HOSTILE, [(1, Estimate(1.0))])], x_axis=HOSTILE, y_axis=HOSTILE),
        stacked_bars(HOSTILE, [HOSTILE], [Stack(HOSTILE, [1.0], HOSTILE)], axis=HOSTILE),
        timeline(
            HOSTILE, [HOSTILE], [Lane(HOSTILE, [Step((1.0,), 1, HOSTILE)])], description=HOSTILE
        ),
    ]


def test_texts_never_become_markup() -> None:
    for chart in hostile_charts():
        root = parsed(chart)
        assert not list(root.iter(SVG + "script"))
        assert "script" in "".join(root.itertext())


def empty_charts() -> list[Html]:
    nothing = Estimate(None)
    return [
        grouped_bars("T", [], axis="a"),
        grouped_bars("T", [Group("g", [Bar("b", Estimate(0.0))])], axis="a", reference=None),
        grouped_bars("T", [Group("g", [Bar("b", Estimate(-3.0, -4.0, -2.0))])], axis="a"),
        stacked_bars("T", [], [], axis="a"),
        stacked_bars("T", ["p"], [Stack("s", [0.0])], axis="a"),
        lines("T", [], x_axis="x", y_axis="y"),
        lines("T", [Line("l", [])], x_axis="x", y_axis="y"),
        lines("T", [Line("l", [(1, nothing)])], x_axis="x", y_axis="y", y_from=None),
        lines("T", [Line("l", [(3, Estimate(5.0)), (4, Estimate(5.0))])], x_axis="x", y_axis="y"),
        timeline("T", [], []),
        timeline("T", ["p"], [Lane("l", [])]),
        timeline("T", ["p"], [Lane("l", [Step((0.0,), 0)])]),
    ]


def test_little_or_nothing_is_still_a_chart() -> None:
    for chart in empty_charts():
        parsed(chart)
        assert "nan" not in chart
        assert "inf" not in chart


def test_bars_begin_at_zero_and_never_leave_the_chart() -> None:
    bars = [Bar("a" * 80, Estimate(value, value / 2, value * 3)) for value in (0.001, 7.3, 1e6)]
    root = parsed(grouped_bars("T", [Group("g", bars)], axis="a"))
    for each in shapes(root, "rect"):
        assert 0 <= at(each, "x") <= at(each, "x") + at(each, "width") <= WIDTH


@pytest.mark.parametrize(
    ("low", "high"),
    [(0.0, 1.0), (0.0, 2.26), (0.3, 0.31), (0.0, 17.4), (0.0, 123_456.0), (-3.0, 5.0)],
)
def test_ticks_are_few_round_and_within_the_axis(low: float, high: float) -> None:
    ticks = Scale(low, high, 0.0, 100.0).ticks()
    assert 3 <= len(ticks) <= 8
    assert all(low - 1e-6 <= tick <= high + 1e-6 for tick in ticks)
    assert len({tick_text(tick) for tick in ticks}) == len(ticks)


def test_an_axis_covers_its_values() -> None:
    assert covering([0.2, 0.93], 0.0, 1.0) == (0.0, 1.0)
    low, high = covering([-0.4, 2.26], 0.0, None)
    assert low <= -0.4
    assert high >= 2.26
    assert covering([1.3], 0.0, 1.0)[1] >= 1.3
    assert covering([], None, None) == (0.0, 1.0)


def test_long_names_are_cut_and_short_ones_are_not() -> None:
    assert shortened("suffix K=4", 200) == "suffix K=4"
    assert shortened("a very long name indeed", 60).endswith("…")
    assert len(shortened("a very long name indeed", 60)) < 10
