"""A trace in a terminal: the text in colours, a table of steps, and what they add up to."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from outpace.cli.chat_local import ACCEPTED_COLOUR
from outpace.measure.trace.records import Node, SequenceStep, Step, Summary, Trace

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

STYLES = {"accepted": ACCEPTED_COLOUR, "recovered": "yellow", "bonus": "green", "plain": ""}
MAX_QUOTED = 24
# What a terminal would obey instead of showing.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def show_trace(trace: Trace, console: Console, *, num_steps: int) -> None:
    """Print all of it. num_steps: most rows of the table of steps."""
    for answer in range(trace.num_answers):
        if trace.num_answers > 1:
            _say(console, f"--- answer {answer + 1} of {trace.num_answers} ---")
        console.print(_coloured(trace, answer), soft_wrap=True, highlight=False)
    if not console.is_terminal or console.color_system is None:
        console.print()
    else:
        console.print(_legend())
    if trace.header.lossy:
        _say(console, f"LOSSY: {trace.header.lossy} changes what the model says.")
    if num_steps and trace.steps:
        console.print(_table_of_steps(trace, num_steps))
        left = len(_rows(trace)) - num_steps
        if left > 0:
            _say(console, f"{left} more; --steps shows more of them, --out keeps all.")
    if trace.summary is None:
        _say(console, "This trace has no end: whatever wrote it was interrupted.")
        return
    if trace.summary.positions:
        console.print(_table_of_positions(trace.summary))
    for line in summary_lines(trace):
        _say(console, line)


def summary_lines(trace: Trace) -> list[str]:
    """What the steps add up to, in sentences."""
    found = trace.summary
    assert found is not None
    tokens, steps = _many(found.num_output_tokens, "token"), _many(found.num_steps, "step")
    lines = [f"{tokens} in {steps} by method {trace.header.method}."]
    if found.num_draft_tokens:
        lines.append(
            f"{found.num_accepted_tokens} of {_many(found.num_draft_tokens, 'draft token')} "
            f"accepted; acceptance length {found.acceptance_length:.2f}, plain decoding's is 1."
        )
    total = found.draft_s + found.target_s + found.rest_s
    if total > 0:
        shares = (("drafting", found.draft_s), ("passes", found.target_s), ("rest", found.rest_s))
        said = ", ".join(f"{name} {100 * part / total:.0f} %" for name, part in shares)
        speed = found.decode_tokens_per_s
        rate = f"; {speed:.1f} tokens/s after the first" if speed is not None else ""
        lines.append(f"{total:.2f} s in steps: {said}{rate}.")
    lines.append(f"Recording took {found.recorder_s:.2f} s more, which no figure here contains.")
    if not found.complete:
        lines.append("The generation was interrupted.")
    return lines


def _coloured(trace: Trace, answer: int) -> Text:
    from rich.text import Text

    text = Text()
    for piece, token, _ in trace.pieces(answer):
        text.append(printable(piece), style=STYLES[token.kind])
    return text


def _legend() -> Text:
    from rich.text import Text

    words = {
        "accepted": "accepted",
        "recovered": "recovered after a rejection",
        "bonus": "bonus after everything drafted was accepted",
        "plain": "plain",
    }
    parts = [Text(word, style=STYLES[kind]) for kind, word in words.items()]
    return Text(", ").join(parts)


def _rows(trace: Trace) -> list[tuple[Step, SequenceStep]]:
    return [(step, part) for step in trace.steps for part in step.sequences]


def _table_of_steps(trace: Trace, num_steps: int) -> Table:
    from rich.box import SIMPLE
    from rich.table import Table
    from rich.text import Text

    table = Table(title="Steps (times in ms)", title_justify="left", box=SIMPLE, pad_edge=False)
    numbers, several = {"justify": "right", "no_wrap": True}, trace.num_answers > 1
    table.add_column("step", **numbers)  # type: ignore[arg-type]
    if several:
        table.add_column("answer", **numbers)  # type: ignore[arg-type]
    table.add_column("drafted by")
    table.add_column("accepted")
    table.add_column("first rejected")
    table.add_column("own token")
    for heading in ("draft", "pass", "rest"):
        table.add_column(heading, **numbers)  # type: ignore[arg-type]
    for step, part in _rows(trace)[:num_steps]:
        times = (step.draft_s, step.target_s, step.rest_s)
        table.add_row(
            str(step.step),
            *([str(part.answer + 1)] if several else []),
            Text(f"{part.origin or 'draft'} ({len(part.nodes)})" if part.nodes else "-"),
            Text(_accepted(part), style=STYLES["accepted"]),
            Text(_rejected(part)),
            _own(part),
            *(f"{1000 * seconds:.1f}" for seconds in times),
        )
    return table


def _accepted(part: SequenceStep) -> str:
    taken = [token for token in part.output if token.node is not None]
    return f"{len(taken)}: {quoted(''.join(token.text for token in taken))}" if taken else "-"


def _own(part: SequenceStep) -> Text:
    from rich.text import Text

    own = [token for token in part.output if token.node is None]
    if not own:
        return Text("-")  # a stop rule cut it away
    [token] = own
    said = f"{quoted(token.text)} {token.kind} p {token.p:.3f}"
    return Text(said, style=STYLES[token.kind])


def _rejected(part: SequenceStep) -> str:
    node = first_rejected(part.nodes)
    if node is None:
        return "-"
    q = "q one-hot" if node.one_hot else f"q {node.q:.3f}"
    return f"{quoted(node.text)} p {node.p:.3f} {q}"


def first_rejected(nodes: Sequence[Node]) -> Node | None:
    """The first node that the rule came to and that was not accepted, where the draft ended."""
    rejected = [node for node in nodes if node.outcome == "rejected"]
    deepest = max((node.depth for node in rejected), default=0)
    ended = not any(node.outcome == "accepted" and node.depth >= deepest for node in nodes)
    return next((node for node in rejected if node.depth == deepest), None) if ended else None


def _table_of_positions(found: Summary) -> Table:
    from rich.box import SIMPLE
    from rich.table import Table

    table = Table(
        title="Acceptance by draft position", title_justify="left", box=SIMPLE, pad_edge=False
    )
    for heading in ("position", "reached", "accepted", "share", "expected from p and q"):
        table.add_column(heading, justify="right")
    for at in found.positions:
        share = at.num_accepted / at.num_reached
        table.add_row(
            str(at.position),
            str(at.num_reached),
            str(at.num_accepted),
            f"{100 * share:.0f} %",
            f"{100 * at.alpha:.0f} %",
        )
    return table


def printable(text: str) -> str:
    """The text with control characters that a terminal would obey as their pictures."""
    return _CONTROLS.sub(_picture, text)


def quoted(text: str) -> str:
    """A piece of text in quotes, short and on one line."""
    if len(text) > MAX_QUOTED:
        text = text[: MAX_QUOTED - 3] + "..."
    return printable(json.dumps(text, ensure_ascii=False))


def _picture(found: re.Match[str]) -> str:
    code = ord(found[0])
    return chr(0x2400 + code) if code < 0x20 else "\ufffd"


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _say(console: Console, line: str) -> None:
    console.print(printable(line), highlight=False, markup=False, soft_wrap=True)
