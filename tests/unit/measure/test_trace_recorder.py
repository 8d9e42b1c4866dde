"""A trace tells what happened, and changes nothing of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from engine_cases import PROMPT, TARGET, feed_in_chunks
from plain import plain_llm
from scripted import scripted
from tiny import fresh_logits
from trace_cases import Q, drafting, opener, traced

from outpace import LLM, SamplingParams
from outpace.engine import setup
from outpace.measure.bench.steps import StepRecorder
from outpace.measure.trace.recorder import Recorder
from outpace.measure.trace.records import SequenceStep, Trace
from outpace.measure.trace.run import trace_generation
from outpace.measure.trace.timeline import steps_of
from outpace.measure.trace.watch import SeenStep, Watcher
from outpace.sampling import History, probabilities
from outpace.types import Draft, Sequence, StepTimes
from outpace.verification.judge import verify

KINDS = ("chain", "tree", "probes", "sampled", "siblings")
GREEDY = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
SEEDED = SamplingParams(temperature=0.9, seed=11, max_tokens=30, ignore_eos=True)
SAMPLED = SamplingParams(temperature=0.9, max_tokens=30, ignore_eos=True)


@pytest.fixture(scope="module", autouse=True)
def _unchecked(unchecked_shapes_in_module: None) -> None:
    """Whole engines run here."""


@pytest.fixture(scope="module")
def answer() -> list[int]:
    with plain_llm(TARGET, max_num_seqs=1) as llm:
        params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
        return llm.generate([{"prompt_token_ids": PROMPT}], params)[0].outputs[0].token_ids


@pytest.fixture
def seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every engine draws the same."""
    make = np.random.Generator
    monkeypatch.setattr(
        setup.np.random, "default_rng", lambda *given: make(np.random.PCG64(*given or (2,)))
    )


def law_after(tokens: list[int], params: SamplingParams) -> np.ndarray:
    """p recomputed by a pass over an empty cache."""
    seq = Sequence(0, list(tokens), len(PROMPT), params)
    return probabilities(fresh_logits(TARGET, tokens).numpy(), History(seq))


def path_to(part: SequenceStep, node: int) -> list[int]:
    tokens: list[int] = []
    while node >= 0:
        tokens.insert(0, part.nodes[node].token_id)
        node = part.nodes[node].parent
    return tokens


@pytest.mark.parametrize("params", [GREEDY, SEEDED, SAMPLED], ids=["greedy", "seeded", "sampled"])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_changes(
    kind: str, params: SamplingParams, answer: list[int], seeded: None
) -> None:
    method = drafting(kind, answer)  # its draws go on from run to run: a new one for each
    with opener(method)(setup.Instruments()) as llm:
        untraced = llm.generate([{"prompt_token_ids": PROMPT}], params)[0]
    trace = traced(drafting(kind, answer), params)
    assert trace.summary is not None
    [found] = trace.summary.answers
    assert found.token_ids == untraced.outputs[0].token_ids
    assert found.text == untraced.outputs[0].text
    stats = untraced.stats
    assert trace.summary.num_steps == stats.num_steps
    assert trace.summary.num_draft_tokens == stats.num_draft_tokens
    assert trace.summary.num_accepted_tokens == stats.num_accepted_tokens
    assert trace.summary.acceptance_length == stats.acceptance_length
    accepted = [at.num_accepted for at in trace.summary.positions]
    assert accepted == (stats.accepted_per_position + [0] * len(accepted))[: len(accepted)]
    assert [at.num_reached for at in trace.summary.positions] == stats.reached_per_position


def test_a_recorder_that_draws_is_noticed(answer: list[int], seeded: None) -> None:
    """The control: one draw more from the engine's generator, and the answer is another one."""

    def drawing(*given: Any) -> Any:
        given[3].random()
        return verify(*given)

    honest = traced(drafting("siblings", answer), SAMPLED)
    with LLM(
        TARGET,
        speculative_config={"method": drafting("siblings", answer), "num_speculative_tokens": 6},
        instruments=Watcher(lambda step: None, judge=drawing).instruments,
    ) as llm:
        other = llm.generate([{"prompt_token_ids": PROMPT}], SAMPLED)[0].outputs[0].token_ids
    assert honest.summary is not None
    assert honest.summary.answers[0].token_ids != other


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("kind", ["chain", "tree", "sampled", "siblings"])
def test_p_and_q_are_those_recomputed(
    kind: str, params: SamplingParams, answer: list[int], seeded: None
) -> None:
    trace = traced(drafting(kind, answer), params)
    tokens, num_drafted = list(PROMPT), 0
    for _, part in trace.parts(0):
        assert part.num_output == len(tokens) - len(PROMPT)
        laws: dict[int, np.ndarray] = {}
        for at in part.positions:
            laws[at.after] = law_after([*tokens, *path_to(part, at.after)], params)
            law = laws[at.after]
            positive = law[law > 0]
            assert at.entropy == pytest.approx(
                -float((positive * np.log(positive)).sum()), abs=1e-9
            )
            _check_alpha(part, at.after, at.alpha, law)
            for best in at.top:
                assert best.p == pytest.approx(law[best.token_id], abs=1e-9)
        for node in part.nodes:
            assert node.p == pytest.approx(laws[node.parent][node.token_id], abs=1e-9)
            assert node.threshold == pytest.approx(min(1, node.p / node.q), abs=1e-9)
            assert node.one_hot == (kind in ("chain", "tree"))
            if kind == "sampled":
                assert node.q == Q[node.token_id]
            num_drafted += 1
        place = -1
        for token in part.output:
            assert token.p == pytest.approx(laws[place][token.token_id], abs=1e-9)
            tokens.append(token.token_id)
            place = place if token.node is None else token.node
    assert trace.summary is not None
    assert tokens == PROMPT + trace.summary.answers[0].token_ids
    assert num_drafted > 30


def _check_alpha(part: SequenceStep, after: int, alpha: float | None, law: np.ndarray) -> None:
    following = [node for node in part.nodes if node.parent == after]
    if not following:
        assert alpha is None
    elif len(following) == 1 and not following[0].one_hot:
        assert alpha == pytest.approx(np.minimum(law, Q).sum(), abs=1e-9)
    elif all(node.one_hot for node in following):
        assert alpha == pytest.approx(
            sum(law[t] for t in {n.token_id for n in following}), abs=1e-9
        )
    else:
        assert alpha is not None
        assert 0 <= alpha <= 1


@pytest.mark.parametrize("kind", KINDS)
def test_outcomes_follow_the_verdict(kind: str, answer: list[int], seeded: None) -> None:
    seen = set()
    for params in (GREEDY, SAMPLED):
        for _, part in traced(drafting(kind, answer), params).parts(0):
            accepted = [i for i, node in enumerate(part.nodes) if node.outcome == "accepted"]
            assert [t.node for t in part.output if t.node is not None] == accepted
            assert len(part.reached) == len(accepted) + 1
            for node in part.nodes:
                parent_is_in = node.parent < 0 or node.parent in accepted
                assert node.outcome != "rejected" or parent_is_in
                assert parent_is_in or node.outcome == "unreached"
            [own] = [t for t in part.output if t.node is None]
            last = accepted[-1] if accepted else -1
            more = any(node.parent == last for node in part.nodes)
            expected = "plain" if not part.nodes else "recovered" if more else "bonus"
            assert own.kind == expected
            seen |= {node.outcome for node in part.nodes} | {own.kind}
    assert {"rejected", "recovered"} <= seen


def test_a_stop_rule_cuts_the_record(answer: list[int]) -> None:
    """The second of two accepted tokens ends the answer: the third and the own one never were."""
    stop = answer[4]
    place = answer.index(stop)
    params = SamplingParams(temperature=0, max_tokens=60, stop_token_ids=[stop], ignore_eos=True)
    always_right = scripted(
        lambda seq, budget: Draft(tuple(answer[seq.num_output : seq.num_output + budget]))
    )
    trace = traced(always_right, params, k=place + 3)
    assert trace.summary is not None
    [found] = trace.summary.answers
    assert found.token_ids == answer[: place + 1]
    assert [token.token_id for _, token, _ in trace.pieces(0)] == answer[: place + 1]
    *_, (_, last) = trace.parts(0)
    assert [node.outcome for node in last.nodes].count("cut") >= 1
    assert last.num_cut > 0
    assert all(token.kind == "accepted" for token in last.output)
    assert len(last.reached) >= len(last.output)


def test_pieces_make_up_the_text(answer: list[int]) -> None:
    """Also where characters take several tokens, and where a stop string takes back text."""
    text = "a€b"
    ids = TARGET.tokenizer.encode(text, add_special_tokens=False)
    assert len(ids) == 5  # the tokenizer has a token for every byte
    forced = SamplingParams(temperature=0, max_tokens=5, structured_outputs={"choice": [text]})
    trace = traced("ngram", forced)
    pieces = [piece for piece, _, _ in trace.pieces(0)]
    assert "".join(pieces) == text
    assert pieces.count("") == 2

    whole = TARGET.tokenizer.decode(answer[:20])
    stop = whole[6:9]
    stopped = traced(drafting("chain", answer), SamplingParams(temperature=0, stop=[stop]))
    assert stopped.summary is not None
    shown = stopped.summary.answers[0].text
    assert shown == whole[: whole.index(stop)]
    assert "".join(piece for piece, _, _ in stopped.pieces(0)) == shown


def test_several_answers(answer: list[int], seeded: None) -> None:
    params = SamplingParams(temperature=1.0, n=3, max_tokens=12, ignore_eos=True)
    trace = traced(drafting("sampled", answer), params, max_num_seqs=3)
    assert trace.summary is not None
    assert trace.num_answers == 3
    for place, found in enumerate(trace.summary.answers):
        ids = [token.token_id for _, token, _ in trace.pieces(place)]
        assert ids == found.token_ids
    assert max(len(step.sequences) for step in trace.steps) == 3


def test_steps_that_only_read_the_prompt(
    answer: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    feed_in_chunks(3, monkeypatch)
    trace = traced(drafting("chain", answer), GREEDY)
    reading = [step for step in trace.steps if not step.sequences]
    assert len(reading) == 2
    assert all(step.num_sequences == 1 for step in reading)
    assert [step.step for step in trace.steps] == list(range(len(trace.steps)))
    assert len(steps_of(trace)) == len(trace.steps) - 2


def test_times_are_the_engines_less_the_recorders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copying is inside of the step's time and taken out; handing on comes after it."""
    seen: list[SeenStep] = []
    watcher = Watcher(seen.append)
    monkeypatch.setattr(watcher, "_copying_s", 0.25)
    watcher.timed(StepTimes(draft_s=1.0, target_s=2.0, step_s=4.0))
    [step] = seen
    assert (step.times.draft_s, step.times.target_s, step.times.rest_s) == (1.0, 2.0, 0.75)
    assert step.watching_s == 0.25
    assert watcher.spent_s >= 0.25


def test_the_steps_of_a_trace_are_those_that_bench_records(answer: list[int]) -> None:
    """Collected without a trace they are those of a trace, but for their times."""
    recorder = StepRecorder()
    with opener(drafting("tree", answer))(recorder.instruments) as llm:
        llm.generate([{"prompt_token_ids": PROMPT}], GREEDY)
    trace = traced(drafting("tree", answer), GREEDY)
    steps = [step for step in recorder.newest(len(trace.steps)) if step.num_tokens]
    counts = [(step.num_drafted, step.num_tokens) for step in steps]
    assert counts == [(step["num_drafted"], step["num_tokens"]) for step in steps_of(trace)]
    assert sum(tokens for _, tokens in counts) == 30
    assert all(step.pass_s > 0 for step in steps)
    recorder.clear()
    assert recorder.newest(len(trace.steps)) == ()


def test_stopped_from_outside(answer: list[int]) -> None:
    steps: list[Any] = []
    trace = traced(
        drafting("chain", answer), GREEDY, on_step=steps.append, stopped=lambda: len(steps) > 3
    )
    assert trace.summary is not None
    assert not trace.summary.complete
    [found] = trace.summary.answers
    assert found.finish_reason == "abort"
    assert [token.token_id for _, token, _ in trace.pieces(0)] == found.token_ids
    assert 0 < len(found.token_ids) < 30
    assert steps == trace.steps


def test_a_recorder_must_be_attached() -> None:
    recorder = Recorder(lambda step: None)
    with pytest.raises(AssertionError, match="attach"):
        recorder._record(SeenStep(StepTimes(0, 0, 0), 0.0, 1, []))


def test_the_header_names_everything(answer: list[int]) -> None:
    def processor(prompt: list[int], output: list[int], logits: Any) -> Any:
        return logits

    params = SamplingParams(temperature=0, max_tokens=4, logits_processors=[processor])
    trace: Trace = trace_generation(
        opener("ngram"),
        [{"role": "user", "content": "hello"}],
        params,
        speculative_config={"method": "ngram", "model": TARGET},
    )
    header = trace.header
    assert header.model["fingerprint"] == TARGET.fingerprint
    assert header.sampling["logits_processors"] == ["processor"]
    assert header.speculative_config == {"method": "ngram", "model": TARGET.name}
    assert header.prompt["given"] == [{"role": "user", "content": "hello"}]
    assert TARGET.tokenizer.decode(header.prompt["token_ids"]).startswith("user\nhello")
    assert header.lossy is None
