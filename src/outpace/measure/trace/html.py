"""A trace as one HTML file: the text, the steps along time, acceptance, and every draft."""

from __future__ import annotations

import json
from collections.abc import Sequence

from outpace.measure.report.markup import Html, element, escape
from outpace.measure.report.numbers import decimals, milliseconds
from outpace.measure.report.page import (
    Section,
    facts,
    figure,
    folded,
    headline,
    page,
    paragraph,
    table_of,
    warning,
)
from outpace.measure.report.svg import Bar, Estimate, Group, Lane, grouped_bars, timeline
from outpace.measure.report.svg import Step as DrawnStep
from outpace.measure.report.table import Table
from outpace.measure.statistics import wilson
from outpace.measure.trace.html_text import (
    STYLE,
    answer_html,
    candidate_text,
    legend,
    prompt_html,
    q_text,
    quoted,
    raw,
)
from outpace.measure.trace.records import SequenceStep, Step, Summary, Trace
from outpace.measure.trace.timeline import TimelineStep, steps_of

PARTS = ("drafting", "target pass", "rest")
STEPS_IN_LANE = 40
MAX_LANES = 6


def trace_html(trace: Trace) -> str:
    """The whole document. Texts of the prompt and of the model are shown, never obeyed."""
    title = f"Trace: {trace.header.model.get('name')}, method {trace.header.method}"
    sections = [
        _answers(trace),
        *_timeline(trace),
        *(_acceptance(trace.summary) if trace.summary else ()),
        Section("Step by step", [_step(*each) for each in _parts(trace)]),
        _provenance(trace),
    ]
    return page(title, sections, lead=_lead(trace), style=STYLE)


def _lead(trace: Trace) -> list[Html]:
    found, pieces = trace.summary, []
    if found is None:
        return [warning(trace.missing_end)]
    if not found.complete:
        pieces.append(warning("The generation was interrupted."))
    if trace.header.lossy:
        pieces.append(warning(f"Not lossless: {trace.header.lossy} changes what the model says."))
    speed = found.decode_tokens_per_s
    pieces.append(
        headline(
            f"**{found.num_output_tokens} tokens** in **{found.num_steps} steps**: "
            f"{found.acceptance_length:.2f} tokens a step, where plain decoding has 1.",
            f"{found.num_accepted_tokens} of {found.num_draft_tokens} draft tokens were accepted."
            + (f" {speed:.1f} tokens/s after the first." if speed is not None else ""),
            f"Recording took {found.recorder_s:.2f} s, which no figure here contains.",
        )
    )
    return pieces


def _answers(trace: Trace) -> Section:
    pieces = [folded("The prompt", prompt_html(trace)), legend()]
    for answer in range(trace.num_answers):
        if trace.num_answers > 1:
            pieces.append(paragraph(f"**Answer {answer + 1}**"))
        pieces.append(answer_html(trace, answer))
    pieces.append(
        paragraph(
            "Point at a token, or move the focus to it, for its probabilities. p is the target's "
            "under the request's parameters, q the drafter's; raw is the model's own, before "
            "temperature and filters."
        )
    )
    return Section("The answer" if trace.num_answers == 1 else "The answers", pieces)


def _timeline(trace: Trace) -> list[Section]:
    steps = steps_of(trace)[1:]
    numbers = [step.step for step in trace.steps if step.sequences][1:]
    if not steps:
        return []
    shown = steps[: STEPS_IN_LANE * MAX_LANES]
    lanes = [
        Lane(
            f"steps {numbers[start]} to {numbers[min(start + STEPS_IN_LANE, len(shown)) - 1]}",
            [_drawn(step) for step in shown[start : start + STEPS_IN_LANE]],
        )
        for start in range(0, len(shown), STEPS_IN_LANE)
    ]
    chart = timeline("Steps along time", PARTS, lanes, description="Time and tokens of each step")
    caption = (
        "Each step with its parts and the tokens it gained. The first, which reads the prompt, is "
        "left out."
    )
    if len(steps) > len(shown):
        caption += f" {len(steps) - len(shown)} later ones are not drawn."
    headings = ("step", "drafting", "target pass", "rest", "drafted", "gained")
    rows = [
        (
            str(number),
            *(milliseconds(step[part]) for part in ("draft_ms", "pass_ms", "rest_ms")),
            str(step["num_drafted"]),
            str(step["num_tokens"]),
        )
        for number, step in zip(numbers, steps, strict=True)
    ]
    return [Section("Where the time went", [figure(chart, Table(headings, rows), caption=caption)])]


def _drawn(step: TimelineStep) -> DrawnStep:
    times = (step["draft_ms"], step["pass_ms"], step["rest_ms"])
    return DrawnStep(times, step["num_tokens"], f"{step['num_drafted']} drafted")


def _acceptance(found: Summary) -> list[Section]:
    if not found.positions:
        return []
    groups, rows = [], []
    for at in found.positions:
        share, (low, high) = (
            at.num_accepted / at.num_reached,
            wilson(at.num_accepted, at.num_reached),
        )
        bars = [
            Bar("counted", Estimate(share, low, high), 1),
            Bar("p and q", Estimate(at.alpha), 0),
        ]
        groups.append(Group(f"position {at.position}", bars))
        counts = (str(at.position), str(at.num_reached), str(at.num_accepted))
        rows.append((*counts, decimals(share), decimals(at.alpha)))
    chart = grouped_bars(
        "Acceptance by draft position", groups, axis="share accepted", reference=None
    )
    headings = ("position", "reached", "accepted", "share", "expected from p and q")
    caption = (
        "How often a draft token was accepted where all before it were, with a 95 % interval, and "
        "what p and q let one expect there."
    )
    return [Section("Acceptance", [figure(chart, Table(headings, rows), caption=caption)])]


def _parts(trace: Trace) -> list[tuple[Trace, Step, SequenceStep]]:
    return [(trace, step, part) for step in trace.steps for part in step.sequences]


def _step(trace: Trace, step: Step, part: SequenceStep) -> Html:
    gained = quoted("".join(token.text for token in part.output))
    drafted = f"{part.origin or 'draft'} drafted {len(part.nodes)}, " if part.nodes else ""
    answer = f", answer {part.answer + 1}" if trace.num_answers > 1 else ""
    line = f"Step {step.step}{answer}: {drafted}gained {len(part.output)} in "
    tables = [table_of(_nodes(part))] if part.nodes else []
    tables.append(table_of(_positions(part)))
    decision = []
    if step.decision and step.decision.get("predicted_s"):
        expected = decimals(step.decision.get("predicted_tokens"))
        predicted = milliseconds(1000 * float(step.decision["predicted_s"]))
        decision = [paragraph(f"auto expected {expected} tokens in {predicted}.")]
    said = element("summary", escape(f"{line}{milliseconds(1000 * step.step_s)}: {gained}"))
    return element("details", said, *decision, *tables)


def _nodes(part: SequenceStep) -> Table:
    headings = ("draft token", "outcome", "after", "position", "p", "q", "min(1, p/q)", "raw p")
    rows = [
        (
            f"{number}: {quoted(node.text)}",
            node.outcome,
            "-" if node.parent < 0 else str(node.parent),
            str(node.depth),
            decimals(node.p, 3),
            q_text(node),
            decimals(node.threshold, 3),
            raw(node.logprob),
        )
        for number, node in enumerate(part.nodes)
    ]
    return Table(headings, rows, num_names=2)


def _positions(part: SequenceStep) -> Table:
    headings = ("place reached", "the target's best", "entropy of p (nats)", "alpha")
    rows = [
        (
            f"position {at.depth}",
            ", ".join(map(candidate_text, at.top)),
            decimals(at.entropy),
            decimals(at.alpha, 3),
        )
        for at in part.reached
    ]
    return Table(headings, rows, num_names=2)


def _provenance(trace: Trace) -> Section:
    header = trace.header
    groups: Sequence[tuple[str, object]] = [
        *((f"model: {name}", value) for name, value in header.model.items()),
        ("method", header.method),
        ("speculative_config", header.speculative_config),
        *((name, value) for name, value in header.sampling.items() if value not in (None, [], "")),
        *header.provenance.items(),
    ]
    pairs = [(name, v if isinstance(v, str) else json.dumps(v)) for name, v in groups]
    return Section("What ran", [facts(pairs)])
