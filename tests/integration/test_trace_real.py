"""`outpace trace` on the default model: its bundled head, and auto's decisions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outpace import LLM, SamplingParams
from outpace.engine.instruments import Instruments
from outpace.measure.trace.files import read_trace
from outpace.measure.trace.html import trace_html
from outpace.measure.trace.records import Trace
from outpace.measure.trace.run import trace_generation
from outpace.models.load import LoadedModel

PROMPT = [{"role": "user", "content": "Repeat three times: the cat sat on the mat."}]

CODE = [{"role": "user", "content": "Write a Python class Point with x and y."}]
pytestmark = pytest.mark.model


def traced(
    model: LoadedModel,
    config: Any,
    path: Path | None = None,
    prompt: Any = PROMPT,
    **sampling: Any,
) -> Trace:
    def open_llm(instruments: Instruments) -> LLM:
        return LLM(model, speculative_config=config, max_num_seqs=1, instruments=instruments)

    params = SamplingParams(max_tokens=40, **sampling)
    return trace_generation(open_llm, prompt, params, speculative_config=config, path=path)


def test_auto_and_its_decisions(default_model: Callable[..., LoadedModel], tmp_path: Path) -> None:
    """The answer is plain decoding's; every step says what was decided and how it was predicted."""
    model, path = default_model(), tmp_path / "trace.jsonl"
    trace = traced(model, None, path, temperature=0)
    plain = traced(model, {"method": "none"}, temperature=0)
    assert trace.summary is not None
    assert plain.summary is not None
    assert trace.summary.answers == plain.summary.answers
    assert {token.kind for _, token, _ in plain.pieces(0)} == {"plain"}
    assert "".join(piece for piece, _, _ in trace.pieces(0)) == trace.summary.answers[0].text
    decided = [step.decision for step in trace.steps]
    for step, decision in zip(trace.steps, decided, strict=True):
        assert decision is not None
        [request] = decision["requests"]
        [part] = step.sequences
        assert request["drafted"] == len(part.nodes)
        assert request["accepted"] == sum(token.node is not None for token in part.output)
    assert any(decision["predicted_s"] > 0 for decision in decided if decision)
    assert read_trace(path) == trace
    assert trace_html(trace).count('tabindex="0"') >= trace.summary.num_output_tokens


def test_a_seeded_answer_with_the_bundled_head(default_model: Callable[..., LoadedModel]) -> None:
    model = default_model()
    trace = traced(model, {"method": "eagle3"}, prompt=CODE, temperature=0.8, seed=7)
    plain = traced(model, {"method": "none"}, prompt=CODE, temperature=0.8, seed=7)
    assert trace.summary is not None
    assert plain.summary is not None
    assert trace.summary.answers == plain.summary.answers
    # The same p at the same places, whoever drafted: from passes of one row or of several.
    for (_, mine, _), (_, other, _) in zip(trace.pieces(0), plain.pieces(0), strict=True):
        assert mine.token_id == other.token_id
        assert mine.p == pytest.approx(other.p, rel=0.05, abs=1e-3)
    assert trace.summary.num_accepted_tokens > 5
