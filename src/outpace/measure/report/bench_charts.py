"""A benchmark's summary as charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from outpace.measure.report.bench_views import (
    Values,
    column,
    columns,
    estimate,
    ours,
    total,
)
from outpace.measure.report.markup import Html
from outpace.measure.report.numbers import milliseconds
from outpace.measure.report.svg import (
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

PARTS = ("draft", "verify", "rest")
Tones = Mapping[str, int]


def speedup_chart(setting: Values, tones: Tones, place: str) -> Html:
    """Times plain decoding, by column, our methods alone."""
    groups = []
    for name in columns(setting):
        found = [(method["method"], column(method, name)) for method in ours(setting)]
        bars = [
            Bar(method, estimate(values["ratio"]), tones[method])
            for method, values in found
            if values
        ]
        prompts = max((values["num_prompts"] for _, values in found if values), default=0)
        if bars:
            groups.append(Group(f"{name} ({prompts})", bars))
    return grouped_bars(
        f"Speed-up by column, {place}",
        groups,
        axis="times plain decoding's tokens per second",
        description="Bars by column and method, with 95 % intervals, and a line at 1.",
    )


def acceptance_chart(setting: Values, tones: Tones, place: str) -> Html:
    """Conditional acceptance by position."""
    series = []
    for method in ours(setting):
        values = total(method)
        if values and values["conditional_acceptance"]:
            points = [
                (float(position), Estimate(share if reached else None))
                for position, (share, reached) in enumerate(
                    zip(
                        values["conditional_acceptance"],
                        values["reached_per_position"],
                        strict=False,
                    ),
                    1,
                )
            ]
            series.append(Line(method["method"], points, tones[method["method"]]))
    return lines(
        f"Acceptance by position, {place}",
        series,
        x_axis="position in the draft",
        y_axis="accepted, of the drafts that stood up to there",
        y_to=1.0,
        description="One line for each method; the table below has the figures.",
    )


def steps_chart(setting: Values, place: str) -> Html:
    """Mean times of a step."""
    stacks = []
    for method in setting["methods"]:
        values = total(method)
        if values and values["step"]:
            step = values["step"]
            times = [step["draft_ms"], step["pass_ms"], step["rest_ms"]]
            stacks.append(Stack(method["method"], times, milliseconds(sum(times))))
    return stacked_bars(
        f"Where a step's time goes, {place}",
        PARTS,
        stacks,
        axis="milliseconds per step",
        description="One bar for each method, divided into drafting, verification and the rest.",
    )


def timeline_chart(timelines: Sequence[Values], place: str) -> Html:
    """The steps of one prompt's generations."""
    lanes = [
        Lane(
            each["method"],
            [
                Step(
                    (step["draft_ms"], step["pass_ms"], step["rest_ms"]),
                    step["num_tokens"],
                    f"{step['num_drafted']} drafted",
                )
                for step in each["steps"]
            ],
        )
        for each in timelines
    ]
    return timeline(
        f"Step by step, {place}",
        PARTS,
        lanes,
        description="One lane for each method: its steps along time, and the tokens each gained.",
    )


def passes_chart(path: Values) -> Html:
    """v(n), a line for every context length and shape."""
    several = len({each["shape"] for each in path["passes"]}) > 1
    found: dict[str, list[tuple[float, Estimate]]] = {}
    for each in path["passes"]:
        name = f"after {each['context_len']:,}"
        if several:
            name = f"{name}, {each['shape']}"
        found.setdefault(name, []).append((float(each["num_rows"]), Estimate(each["v"])))
    return lines(
        f"v(n), {path['path']}",
        [Line(name, sorted(points, key=lambda p: p[0])) for name, points in found.items()],
        x_axis="rows n in a pass",
        y_axis="v(n): cost in passes over one row",
        reference=1.0,
        description="One line for each number of cached tokens.",
    )


def crossover_chart(entries: Sequence[Values], tones: Tones, place: str) -> Html:
    """Times plain decoding by batch."""
    series = [
        Line(
            entry["method"],
            [(float(each["batch"]), estimate(each["ratio"])) for each in entry["ratios"]],
            tones.get(entry["method"]),
        )
        for entry in entries
    ]
    return lines(
        f"Speed-up by batch, {place}",
        series,
        x_axis="requests decoded together",
        y_axis="times plain decoding, same batch",
        reference=1.0,
        even=True,
        description="One line for each method, with 95 % intervals; below 1 it is slower.",
    )
