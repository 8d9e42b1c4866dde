"""Advice about the default model: replays count what real runs count, of the trained draft too."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from outpace import LLM, SamplingParams
from outpace.measure.advise import costs
from outpace.measure.advise.candidates import candidates_of, default_configs, families_of
from outpace.measure.advise.findings import Findings
from outpace.measure.advise.options import AdviseOptions
from outpace.measure.advise.replay import Recorded, Replay
from outpace.measure.advise.run import advise
from outpace.measure.advise.steps import summarise_steps
from outpace.measure.advise.verdict import decide
from outpace.measure.methods import parse_methods
from outpace.measure.prompts import BUILT_IN, BenchPrompt, pick_questions
from outpace.models.load import LoadedModel

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def questions(default_model: Callable[..., LoadedModel]) -> list[BenchPrompt]:
    tokenizer = default_model().tokenizer
    found = pick_questions([BUILT_IN], tokenizer, per_category=1, max_tokens=120, seed=0)
    return [question.prompt(tokenizer) for question in found][:3]


def recorded(
    model: LoadedModel, prompts: list[BenchPrompt], params: SamplingParams
) -> list[Recorded]:
    with LLM(model, speculative_config={"method": "none"}, max_model_len=512) as llm:
        outputs = llm.generate([{"prompt_token_ids": p.token_ids} for p in prompts], params)
    return [
        Recorded(p.label, p.category, p.token_ids, tuple(o.outputs[0].token_ids))
        for p, o in zip(prompts, outputs, strict=True)
    ]


@pytest.mark.parametrize(
    "methods", ["eagle3:1-3", pytest.param("eagle3:6:tree", marks=pytest.mark.slow)]
)
def test_the_trained_draft_is_scored_as_it_runs(
    default_model: Callable[..., LoadedModel], questions: list[BenchPrompt], methods: str
) -> None:
    model, params = default_model(), SamplingParams(temperature=0, max_tokens=12)
    answers = recorded(model, questions[:2], params)
    for family in families_of(candidates_of(parse_methods(methods))):
        replay = Replay(model, family, max_model_len=512, max_num_seqs=4)
        replay.score(answers, params)
        replay.close()
        score = replay.scores[-1]
        assert score.num_disagreements == 0
        with LLM(
            model, speculative_config=score.candidate.config, max_num_seqs=1, max_model_len=512
        ) as llm:
            for each, steps in zip(answers, score.answers, strict=True):
                request = {"prompt_token_ids": each.prompt, "cache_salt": each.label}
                (output,) = llm.generate([request], params)
                assert tuple(output.outputs[0].token_ids) == each.answer
                assert len(steps) == output.stats.num_steps
                assert sum(s.num_drafted for s in steps) == output.stats.num_draft_tokens
                assert sum(s.num_accepted for s in steps) == output.stats.num_accepted_tokens


@pytest.mark.slow
def test_drawn_drafts_are_accepted_about_as_often_as_in_real_runs(
    default_model: Callable[..., LoadedModel], questions: list[BenchPrompt]
) -> None:
    model = default_model()
    params = SamplingParams(temperature=0.7, max_tokens=40, ignore_eos=True)
    prompts = questions * 2
    (family,) = families_of(candidates_of(parse_methods("eagle3:3")))
    replay = Replay(model, family, max_model_len=512, max_num_seqs=4)
    replay.score(recorded(model, prompts, params), params)
    replay.close()
    found = summarise_steps(replay.scores[0].answers)
    config = family.longest.config
    with LLM(model, speculative_config=config, max_num_seqs=4, max_model_len=512) as llm:
        outputs = llm.generate([{"prompt_token_ids": p.token_ids} for p in prompts], params)
    steps = sum(output.stats.num_steps - 1 for output in outputs)
    tokens = sum(output.stats.num_output_tokens - 1 for output in outputs)
    # Texts differ from run to run; without any acceptance this would be 1.
    assert tokens / steps > 1.25
    assert found.expected == pytest.approx(tokens / steps, rel=0.2)


def test_advice_comes_in_a_few_seconds(
    default_model: Callable[..., LoadedModel],
    questions: list[BenchPrompt],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(costs, "ROWS", (1, 2, 3, 5))
    model = default_model()
    options = AdviseOptions(
        configs=tuple(parse_methods("auto,suffix:2,eagle3:2")),
        minutes=0.02,
        max_tokens=12,
        quick=True,
    )
    findings, stages = Findings({}, 0.0, 1), []
    advise(model, questions[:1], options, lambda stage, *_: stages.append(stage), findings)
    assert findings.is_complete
    assert {m.candidate.method for m in findings.measured} == {"auto", "suffix", "eagle3"}
    assert all(m.num_equal == m.num_compared for m in findings.measured)
    assert findings.memory["eagle3 K=2"].weights > 10**6
    # A busy machine may have made times that cannot be right.
    assert set(findings.errors) == {m.candidate.name for m in findings.measured if m.is_reliable}
    verdict = decide(findings)
    assert verdict is not None
    assert "at temperature 0" in verdict.text
    assert stages[0] == "recording plain answers"


def test_the_default_candidates_are_those_of_the_page(
    default_model: Callable[..., LoadedModel],
) -> None:
    configs = default_configs(default_model().fingerprint, None, quick=False)
    assert {config["method"] for config in configs} == {"auto", "suffix", "ngram", "eagle3"}
    unknown = default_configs("of another model", None, quick=False)
    assert {config["method"] for config in unknown} == {"auto", "suffix", "ngram"}
