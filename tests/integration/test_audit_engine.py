"""The audit over whole engines: right ones pass, and each planted fault is caught."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from audit_cases import MODEL, PROMPTS, SMALL, Said, informed, subject

from outpace import LLM, SamplingParams
from outpace.errors import OptionError
from outpace.measure.audit import self_test
from outpace.measure.audit.faults import (
    ArgmaxWithSoftQ,
    InformedDrafter,
    RepeatingDrafter,
    has_copyable_cache,
    stale,
)
from outpace.measure.audit.results import INCOMPLETE, LOSSLESS, SAYS_LITTLE, VIOLATION
from outpace.measure.audit.run import run_audit
from outpace.measure.audit.self_test import SAMPLED_FAULTS, STALE, run_self_test
from outpace.measure.audit.subject import Subject, audited_configs, beginnings
from outpace.models.load import LoadedModel

# An audit is wrong about a lossless engine with this probability.
OPTIONS = replace(SMALL, level=1e-6)


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ({"method": "suffix"}, {}),
        ({"method": "ngram"}, {"top_k": 5, "top_p": 0.9, "presence_penalty": 0.5}),
        ({"method": "recycling", "shape": "tree"}, {}),
    ],
    ids=["chain", "filters", "tree"],
)
def test_a_lossless_engine_passes(method: dict[str, str], params: dict[str, float]) -> None:
    progress = Said()
    options = replace(OPTIONS, samples=512)
    result = run_audit(subject(method, **params), options, progress, texts=PROMPTS)
    assert result.complete
    assert result.verdict in (LOSSLESS, SAYS_LITTLE)
    assert not any(check.num_wrong for check in result.checks)
    assert {check.kind for check in result.checks} == {"exact", "greedy", "seeded", "sampled"}
    [overall] = result.sampled_overall
    assert overall.num_samples == 512
    assert overall.detectable_bias is not None
    [said] = progress.said
    assert f"{overall.detectable_bias:.1%}" in said


def test_a_drafter_that_lies_about_its_draws_is_a_violation() -> None:
    config = informed(ArgmaxWithSoftQ, PROMPTS)
    audited = replace(OPTIONS, samples=1536, level=1e-3)  # what has to be found may be looked for
    result = run_audit(subject(config), audited, Said(), texts=PROMPTS)
    assert result.verdict == VIOLATION
    assert {check.kind for check in result.checks if check.verdict == VIOLATION} == {"sampled"}


def test_an_informed_drafter_is_honest_and_judged_often() -> None:
    config = informed(InformedDrafter, PROMPTS)
    result = run_audit(subject(config), OPTIONS, Said(), texts=PROMPTS)
    assert result.verdict == LOSSLESS
    # Of four prompts it knows two.
    [overall] = result.sampled_overall
    assert overall.num_drafts is not None
    assert overall.num_drafts > 50
    assert overall.num_accepted is not None
    assert overall.num_accepted > 50


def test_a_stale_cache_is_a_violation() -> None:
    wrong = replace(
        subject({"method": RepeatingDrafter, "num_speculative_tokens": 2}), loaded=stale(MODEL)
    )
    result = run_audit(wrong, replace(OPTIONS, samples=64), Said(), texts=PROMPTS)
    assert has_copyable_cache(MODEL)
    assert result.verdict == VIOLATION
    greedy = [check for check in result.checks if check.kind == "greedy"]
    assert all(check.num_wrong for check in greedy)
    assert "VIOLATION" in greedy[0].differences[0]


def test_greedy_parameters_leave_the_greedy_comparison() -> None:
    result = run_audit(subject({"method": "suffix"}, temperature=0), OPTIONS, Said(), texts=PROMPTS)
    assert result.complete
    assert {check.kind for check in result.checks} == {"exact", "greedy"}
    assert "temperature 0" in result.notes[0]


def test_without_time_there_are_fewer_checks_and_a_note_says_which() -> None:
    hurried = replace(OPTIONS, samples=None, minutes=1e-9, num_seeds=0)
    result = run_audit(subject({"method": "auto"}), hurried, Said(), texts=PROMPTS)
    assert result.complete
    assert {check.num_samples for check in result.checks if check.kind == "exact"} == {1}
    assert [check.method for check in result.checks if check.kind == "greedy"] == ["auto K=16"]
    # One prompt, and one round of answers.
    assert result.law_prompts == [PROMPTS[0].label]
    assert [check.num_samples for check in result.checks if check.kind == "sampled"] == [64, 64]
    [note] = result.notes
    assert note.startswith("left out for lack of time (--minutes): auto K=16, 2 at a time; suffix")


def test_prompts_of_the_user_are_the_only_ones() -> None:
    texts = [replace(PROMPTS[i % 2], label=f"mine {i}") for i in range(6)]
    result = run_audit(
        subject({"method": "suffix"}), OPTIONS, Said(), texts=texts, own_prompts=True
    )
    assert result.text_prompts == ["mine 0", "mine 1"]
    assert result.law_prompts == [f"mine {i}" for i in range(4)]
    assert [check.name for check in result.of_kind("sampled")][:4] == result.law_prompts
    [note] = result.notes
    assert "of the 6 prompts given that fit, the texts took 2" in note
    assert "the chi-square test 4" in note


def test_the_engines_keep_to_max_model_len(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    engine = Subject.engine

    def recorded(self: Subject, max_model_len: int, **options: Any) -> LLM:
        asked.append(max_model_len)
        return engine(self, max_model_len, **options)

    monkeypatch.setattr(Subject, "engine", recorded)
    shortest = min(len(prompt.token_ids) for prompt in PROMPTS)
    limited = replace(subject({"method": "suffix"}), max_model_len=shortest + 8)
    texts = [prompt for prompt in PROMPTS if len(prompt.token_ids) == shortest]
    result = run_audit(limited, replace(OPTIONS, samples=64), Said(), texts=texts)
    assert set(asked) == {shortest + 8}
    assert texts[0].label in result.law_prompts
    assert max(asked) < max(len(p.token_ids) for p in beginnings(MODEL.tokenizer)) + 8


def test_lossy_acceptance_is_noted() -> None:
    config = {"method": "suffix", "acceptance_method": "typical"}
    result = run_audit(subject(config), replace(OPTIONS, samples=64), Said(), texts=PROMPTS)
    assert "not lossless" in result.notes[0]


def test_an_interrupted_audit_keeps_what_it_has() -> None:
    progress = Said()

    def interrupt() -> None:
        if progress.stages[-1].startswith("decoding with"):
            raise KeyboardInterrupt

    progress.on_tick = interrupt
    result = run_audit(subject({"method": "suffix"}), OPTIONS, progress, texts=PROMPTS)
    assert not result.complete
    assert result.verdict == INCOMPLETE
    assert {check.kind for check in result.checks} == {"exact"}


def test_auto_is_audited_with_what_it_drafts_with() -> None:
    found = audited_configs({"method": "auto", "acceptance_method": "typical"}, MODEL)
    assert [config["method"] for config in found] == ["auto", "suffix"]
    assert {config["acceptance_method"] for config in found} == {"typical"}
    assert audited_configs({"method": "ngram"}, MODEL) == [{"method": "ngram"}]


def test_samples_that_are_not_drawn_cannot_be_tested() -> None:
    with pytest.raises(OptionError, match="temperature above 0"):
        run_self_test(subject({"method": "none"}, temperature=0), Said())


def test_planted_faults_are_caught_and_controls_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of sampled faults the one that is found soonest; the others have a test of their own."""
    monkeypatch.setattr(self_test, "SAMPLED_FAULTS", (SAMPLED_FAULTS[0], SAMPLED_FAULTS[2]))
    monkeypatch.setattr(self_test, "NUM_MODELS", 4)
    progress = Said()
    result = run_self_test(subject({"method": "none"}), progress, samples=1024, level=1e-4)
    assert result.passed, [each for each in result.planted if not each.is_right]
    assert "minutes" in progress.said[0]
    assert [stage for stage in progress.stages if stage.startswith("planting")] == [
        f"planting: {name}" for name in (self_test.CONTROL, SAMPLED_FAULTS[2].name, STALE)
    ]


@pytest.mark.slow
def test_every_planted_fault_is_caught_and_no_control_is() -> None:
    """The sizes that docs/audit.md states, over a tiny model."""
    result = run_self_test(subject({"method": "none"}), Said(), samples=2048, level=1e-4)
    assert result.passed, [each for each in result.planted if not each.is_right]
    assert not result.notes
    by_chance = {each.fault: each for each in result.planted if each.check == "chi-square"}
    assert by_chance.keys() == {fault.name for fault in SAMPLED_FAULTS}
    greedy = {each.fault for each in result.planted if each.check == "greedy texts"}
    assert greedy == {self_test.CONTROL, STALE}


def test_a_fault_that_is_not_planted_fails_the_self_test(monkeypatch: pytest.MonkeyPatch) -> None:
    harmless = self_test.Fault("a fault that is none")
    monkeypatch.setattr(self_test, "SAMPLED_FAULTS", (harmless,))
    monkeypatch.setattr(self_test, "NUM_MODELS", 2)
    result = run_self_test(subject({"method": "none"}), Said(), samples=256, level=1e-4)
    assert not result.passed
    [missed] = [each for each in result.planted if each.fault == harmless.name]
    assert not missed.caught
    assert missed.num_samples == 256


def test_seeds_of_chance_do_not_matter_to_wrong_rules() -> None:
    """Planted rules spare greedy and seeded requests, so that only the law shows them."""
    fault = SAMPLED_FAULTS[1]
    config = informed(InformedDrafter, PROMPTS)
    prompt = {"prompt_token_ids": list(PROMPTS[0].token_ids)}
    audited = subject(config)
    for params in (SamplingParams(temperature=0, max_tokens=6), SamplingParams(seed=4)):
        texts = []
        for instruments in (None, fault.instruments):
            with audited.engine(160, instruments=instruments) as llm:
                texts.append(llm.generate(prompt, params)[0].outputs[0].token_ids)
        assert texts[0] == texts[1]


@pytest.fixture(scope="module")
def loaded(default_model: Callable[..., LoadedModel]) -> LoadedModel:
    return default_model("auto")


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_fault_in_the_default_model_is_caught(loaded: LoadedModel) -> None:
    real = Subject(loaded, {"method": "none"}, SamplingParams(temperature=1.0))
    result = run_self_test(real, Said())
    assert result.passed, [each for each in result.planted if not each.is_right]


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_default_method_passes(loaded: LoadedModel) -> None:
    real = Subject(loaded, {"method": "auto"}, SamplingParams(temperature=0.7, top_p=0.95))
    prompts = beginnings(loaded.tokenizer)
    result = run_audit(real, replace(OPTIONS, samples=1024), Said(), texts=prompts)
    assert result.verdict == LOSSLESS
    assert {check.method for check in result.sampled_overall} == {"suffix K=16", "eagle3 K=3"}
