"""An answer as HTML, each token with how it came about; what shows it is style alone."""

from __future__ import annotations

import json
import math

from outpace.measure.report.markup import Html, element, escape, join
from outpace.measure.trace.records import Candidate, Node, OutputToken, SequenceStep, Trace

STYLE = """
.answer { position: relative; white-space: pre-wrap; background: var(--raised);
  border-radius: 8px; padding: 0.9rem 1.1rem; margin: 0 0 1rem; line-height: 1.9; }
.prompt { white-space: pre-wrap; overflow-wrap: anywhere; background: var(--raised);
  border-radius: 8px; padding: 0.9rem 1.1rem; margin: 0 0 1rem; font: inherit; }
.token { border-bottom: 2px solid transparent; border-radius: 2px; cursor: help; }
.token:focus-visible { outline: 2px solid var(--link); outline-offset: 1px; }
.token:hover, .token:focus { background: var(--line); }
.accepted { color: var(--tone-0); border-bottom-color: var(--tone-0); }
.recovered { color: var(--tone-1); border-bottom: 2px dashed var(--tone-1); }
.bonus { color: var(--tone-2); border-bottom: 2px dotted var(--tone-2); }
.newline::before { content: "\\21b5"; opacity: 0.6; }
.silent::before { content: "\\00b7"; opacity: 0.6; }
.tip { display: none; position: absolute; left: 0; right: 0; margin-top: 0.1em; z-index: 1;
  white-space: normal; user-select: none; color: var(--ink); background: var(--surface);
  border: 1px solid var(--line); border-radius: 8px; padding: 0.5rem 0.8rem;
  font-size: 0.875rem; line-height: 1.5; box-shadow: 0 4px 14px rgb(0 0 0 / 0.18); }
.tip > span { display: block; }
.token:hover > .tip, .token:focus > .tip { display: block; }
.legend > span { margin-right: 1.1rem; }
.legend > .accepted { border-bottom: 2px solid var(--tone-0); }
@media print { .tip { display: none !important; } }
"""


def legend() -> Html:
    """What the colours and underlines mean."""
    words = {
        "accepted": "accepted draft token",
        "recovered": "the target's own after a rejection",
        "bonus": "the target's own after everything drafted was accepted",
        "": "plain: nothing was drafted",
    }
    said = [element("span", escape(text), class_=kind or None) for kind, text in words.items()]
    return element("p", *said, class_="legend")


def answer_html(trace: Trace, answer: int) -> Html:
    """The text of one answer; pointing at a token, or moving the focus to it, tells of it."""
    steps = {id(part): step.step for step, part in trace.parts(answer)}
    places: dict[int, int] = {}
    tokens = []
    for piece, token, part in trace.pieces(answer):
        place = places.get(id(part), 0)
        places[id(part)] = place + 1
        tip = _tip(token, part, place, steps[id(part)])
        tokens.append(
            element("span", escape(piece), tip, class_=_classes(token, piece), tabindex=0)
        )
    return element("div", *tokens, class_="answer", dir="auto")


def _classes(token: OutputToken, piece: str) -> str:
    shown = "silent" if not piece else "newline" if "\n" in piece and not piece.strip() else ""
    return " ".join(filter(None, ["token", token.kind, shown]))


def _tip(token: OutputToken, part: SequenceStep, place: int, step: int) -> Html:
    lines = [_origin(token, part, step)]
    if token.node is not None:
        lines.append(_judged(part.nodes[token.node]))
    elif token.kind == "recovered":
        after = part.reached[place].after
        rejected = [n for n in part.nodes if n.parent == after and n.outcome == "rejected"]
        lines.extend(f"instead of {quoted(node.text)}: {_judged(node)}" for node in rejected)
    best = part.reached[place].top
    if best:
        lines.append("the target's best here: " + ", ".join(map(candidate_text, best)))
    return element("span", *(element("span", escape(line)) for line in lines), class_="tip")


def _origin(token: OutputToken, part: SequenceStep, step: int) -> str:
    said = f"{quoted(token.text)} (id {token.token_id}), {token.kind} in step {step}"
    by = f", drafted by {part.origin}" if token.node is not None and part.origin else ""
    return f"{said}{by}: p {token.p:.3f}"


def _judged(node: Node) -> str:
    return f"p {node.p:.3f}, q {q_text(node)}, accepted with probability {node.threshold:.3f}"


def q_text(node: Node) -> str:
    """q of a draft token, and whether it was chosen deterministically."""
    return "1 (one-hot)" if node.one_hot else f"{node.q:.3f}"


def candidate_text(found: Candidate) -> str:
    """ "the" 0.832 (raw 0.411): p, and what the model gave it before temperature and filters."""
    return f"{quoted(found.text)} {found.p:.3f} (raw {raw(found.logprob)})"


def raw(logprob: float | None) -> str:
    """A probability from its logarithm."""
    return f"{math.exp(logprob) if logprob is not None else 0.0:.3f}"


def quoted(text: str) -> str:
    """A piece of text in quotes and on one line."""
    return json.dumps(text, ensure_ascii=False)


def prompt_html(trace: Trace) -> Html:
    """The prompt as it was given; a conversation message by message."""
    given = trace.header.prompt.get("given")
    messages = given.get("messages") if isinstance(given, dict) else given
    if isinstance(messages, list) and all(isinstance(each, dict) for each in messages):
        return join(
            element("pre", escape(f"{each.get('role')}: {each.get('content')}"), class_="prompt")
            for each in messages
        )
    text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    return element("pre", escape(text), class_="prompt")
