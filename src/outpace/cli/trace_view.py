"""A trace in a terminal: the text in colours, a table of steps, and what they add up to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from outpace.cli.chat_local import ACCEPTED_COLOUR
from outpace.cli.printable import printable
from outpace.measure.trace.records import Node, SequenceStep, Step, Summary, Trace

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

STYLES = {"accepted": ACCEPTED_COLOUR, "recovered": "yellow", "bonus": "green", "plain": ""}
# With these a row fits 80 columns, several answers or not.
MAX_QUOTED, _MAX_REJECTED = 17, 15


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
        _say(console, trace.missing_end)
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

    table = Table(
        title="Steps (times in ms)",
        title_justify="left",
        box=SIMPLE,
        show_edge=False,
        padding=(0, 1, 0, 0),
    )
    several = trace.num_answers > 1
    table.add_column("step#\nanswer" if several else "step", justify="right", no_wrap=True)
    for heading in ("accepted", "first rejected", "own token"):
        table.add_column(heading, overflow="fold")
    for heading in ("draft", "pass", "rest"):
        table.add_column(heading, justify="right", no_wrap=True)
    for step, part in _rows(trace)[:num_steps]:
        times = (step.draft_s, step.target_s, step.rest_s)
        table.add_row(
            f"{step.step}#{part.answer + 1}" if several else str(step.step),
            Text(_accepted(part), style=STYLES["accepted"]),
            Text(_rejected(part)),
            _own(part),
            *(_milliseconds(seconds) for seconds in times),
        )
    return table


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.{1 if seconds < 0.1 else 0}f}"


def _accepted(part: SequenceStep) -> str:
    """ "2/3 ngram", and below it what the two say."""
    if not part.nodes:
        return "-"
    taken = [token for token in part.output if token.node is not None]
    said = f"{len(taken)}/{len(part.nodes)} {part.origin or 'drafted'}"
    return f"{said}\n{quoted(''.join(token.text for token in taken))}" if taken else said


def _own(part: SequenceStep) -> Text:
    from rich.text import Text

    own = [token for token in part.output if token.node is None]
    if not own:
        return Text("-")  # a stop rule cut it away
    [token] = own
    p = f"{token.p:.3f}"
    # A greedy request has 1 in every row.
    words = token.kind if p == "1.000" else f"{token.kind} p {p}"
    return Text(_beside(token.text, words, MAX_QUOTED), style=STYLES[token.kind])


def _rejected(part: SequenceStep) -> str:
    node = first_rejected(part.nodes)
    if node is None:
        return "-"
    q = "one-hot" if node.one_hot else f"q {node.q:.3f}"
    return _beside(node.text, f"p {node.p:.3f} {q}", _MAX_REJECTED)


def _beside(text: str, words: str, width: int) -> str:
    """A token and what is to be said of it, on one line where there is room for it, else on two."""
    from rich.cells import cell_len

    token = quoted(text, width)
    said = f"{token} {words}"
    return said if cell_len(said) <= width else f"{token}\n{words}"


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


def quoted(text: str, width: int = MAX_QUOTED) -> str:
    """A piece of text in quotes on one line, at most `width` columns wide."""
    from rich.cells import cell_len

    said = _as_json(text)
    text = text[:width]
    while cell_len(said) > width:
        text = text[:-1]
        said = _as_json(f"{text}...")
    return said


def _as_json(text: str) -> str:
    return printable(json.dumps(text, ensure_ascii=False))


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _say(console: Console, line: str) -> None:
    console.print(printable(line), highlight=False, markup=False, soft_wrap=True)
