"""A trace as a page: every token with its origin, and no text that is obeyed."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser

import pytest
from engine_cases import PROMPT, TARGET
from plain import plain_llm
from trace_cases import drafting, opener, traced

from outpace import SamplingParams
from outpace.measure.report.markup import escape
from outpace.measure.trace.html import trace_html
from outpace.measure.trace.records import Trace
from outpace.measure.trace.run import trace_generation

EVIL = '<script>alert("p")</script><b onclick=x>'


@pytest.fixture(scope="module", autouse=True)
def _unchecked(unchecked_shapes_in_module: None) -> None:
    """Whole engines run here."""


@pytest.fixture(scope="module")
def trace() -> Trace:
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    with plain_llm(TARGET, max_num_seqs=1) as llm:
        answer = llm.generate([{"prompt_token_ids": PROMPT}], params)[0].outputs[0].token_ids
    return traced(drafting("chain", answer), replace(params, temperature=0.5, seed=2))


class Tokens(HTMLParser):
    """Collects the tokens' texts with their classes, and all elements."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tokens: list[tuple[str, str]] = []
        self.elements: set[str] = set()
        self._open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        classes = dict(attrs).get("class") or ""
        if tag == "span":
            self._open.append(classes)
            if classes.startswith("token"):
                self.tokens.append((classes, ""))

    def handle_endtag(self, tag: str) -> None:
        if tag == "span":
            self._open.pop()

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1].startswith("token"):
            classes, text = self.tokens[-1]
            self.tokens[-1] = (classes, text + data)


def test_every_token_stands_in_it(trace: Trace) -> None:
    found = Tokens(trace_html(trace))
    # Control characters are shown as their pictures.
    expected = [(unescape(escape(piece)), token.kind) for piece, token, _ in trace.pieces(0)]
    assert [(text, classes.split()[1]) for classes, text in found.tokens] == expected
    assert {kind for _, kind in expected} >= {"accepted", "recovered"}


def test_probabilities_are_told(trace: Trace) -> None:
    page = trace_html(trace)
    for _, token, part in trace.pieces(0):
        assert f"p {token.p:.3f}" in page
        for node in part.nodes:
            assert f"{node.threshold:.3f}" in page
    assert "instead of" in page
    assert "the target&#x27;s best here: " in page


def test_texts_are_not_obeyed(trace: Trace) -> None:
    """Of the prompt, of tokens, and of what was configured."""
    step = trace.steps[0]
    part = step.sequences[0]
    token = replace(part.output[0], text=EVIL)
    evil_step = replace(step, sequences=[replace(part, output=[token, *part.output[1:]])])
    header = replace(
        trace.header,
        prompt={"given": [{"role": EVIL, "content": EVIL}], "token_ids": []},
        model={"name": EVIL},
        method=EVIL,
        speculative_config={"model": EVIL},
    )
    page = trace_html(Trace(header, [evil_step, *trace.steps[1:]], None))
    found = Tokens(page)
    assert "script" not in found.elements
    assert "b" not in found.elements
    assert "<script" not in page
    assert found.tokens[0][1] == EVIL
    assert "default-src &#x27;none&#x27;" in page
    assert not re.search(r"(src|href)=\"(?!#)", page)
    assert "This trace has no end" in page


def test_the_charts_and_their_tables(trace: Trace) -> None:
    page = trace_html(trace)
    assert page.count("<svg") == 3  # the patterns, the timeline, acceptance
    assert page.count("These figures as a table") == 2
    assert "Step 3: " in page


def test_a_plain_trace_and_several_answers() -> None:
    params = SamplingParams(temperature=0.9, seed=3, n=2, max_tokens=5, ignore_eos=True)
    trace = trace_generation(opener("none", k=0, max_num_seqs=2), "hello", params)
    page = trace_html(trace)
    assert "Answer 2" in page
    assert "Acceptance" not in page
    assert len(Tokens(page).tokens) == 10


def test_nothing_was_generated() -> None:
    trace = trace_generation(opener("ngram"), "hello", SamplingParams(max_tokens=0))
    assert trace.steps == []
    assert "The answer" in trace_html(trace)
