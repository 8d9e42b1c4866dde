"""Does the audit notice? Every fault is planted, and has to be caught; a control must not be."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from outpace.engine.instruments import Instruments
from outpace.errors import OptionError
from outpace.measure.audit.exact_rules import RULES, enumerate_mistakes, enumerate_rule
from outpace.measure.audit.faults import (
    ArgmaxWithSoftQ,
    DropsUnlikely,
    InformedDrafter,
    RepeatingDrafter,
    bonus_by_argmax,
    has_copyable_cache,
    recovered_from_p,
    stale,
    wrong_last_token,
)
from outpace.measure.audit.progress import AuditProgress
from outpace.measure.audit.results import Planted, SelfTest
from outpace.measure.audit.same_text import Answer, answers, compare, greedy_params
from outpace.measure.audit.sampled import (
    LENGTH,
    PER_ROUND,
    Sample,
    check_level,
    laws_of,
    sampled_checks,
)
from outpace.measure.audit.subject import PLAIN, AuditPrompt, Subject, beginnings
from outpace.measure.audit.text_law import TextLaw

NUM_MODELS = 40
MAX_TOKENS = 32
NUM_SAMPLES = 4096
DURATION = (
    "The self-test takes two to three minutes on the default model, less with --samples 1024."
)
CONTROL = "nothing (control)"


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong: the drafter, or what is told to the engine."""

    name: str
    drafter: type[InformedDrafter] = InformedDrafter
    instruments: Instruments | None = None


SAMPLED_FAULTS = (
    Fault(CONTROL),
    Fault(
        "replacement from p instead of the residual",
        instruments=Instruments(judge=wrong_last_token(recovered_from_p)),
    ),
    Fault("bonus by argmax", instruments=Instruments(judge=wrong_last_token(bonus_by_argmax))),
    Fault("soft q on argmax drafts", ArgmaxWithSoftQ),
    Fault("draws dropped after a look at them", DropsUnlikely),
)
STALE = "a rejected token's cache entry kept"


def run_self_test(
    subject: Subject, progress: AuditProgress, *, samples: int = NUM_SAMPLES, level: float = 0.001
) -> SelfTest:
    """Plant every fault in this model's engine and look for it as the audit does.

    subject: its method does not matter, drafters of the self-test's own draft. samples: most
    answers that a fault has to show in. level: see `AuditResult`.
    Raises OptionError for greedy parameters, under which nothing is drawn, and for a level that is
    none.
    """
    check_level(level)
    if subject.params.is_greedy:
        raise OptionError("the self-test draws tokens: give a temperature above 0")
    loaded = subject.loaded
    progress.say(DURATION)
    result = SelfTest(loaded.name, loaded.dtype, loaded.runs_on, level)
    started = time.perf_counter()
    with suppress(KeyboardInterrupt):
        _enumerate(result, progress)
        _sample(result, subject, progress, samples)
        _stale(result, subject, progress)
        result.complete = True
    result.elapsed_s = time.perf_counter() - started
    return result


def _enumerate(result: SelfTest, progress: AuditProgress) -> None:
    progress.stage("enumerating tiny models", NUM_MODELS * (len(RULES) + 5))
    for name, (emit, cases) in RULES.items():
        right = enumerate_rule(emit, cases(NUM_MODELS), progress.tick)
        result.planted.append(
            Planted(
                f"{CONTROL}: {name}",
                "enumeration",
                "tiny models",
                right.num_models,
                right.num_biased > 0,
                is_control=True,
            )
        )
    for name, found in enumerate_mistakes(NUM_MODELS, progress.tick).items():
        count = found.first_biased
        caught = count is not None
        result.planted.append(
            Planted(name, "enumeration", "tiny models", count or found.num_models, caught)
        )


def _sample(result: SelfTest, subject: Subject, progress: AuditProgress, samples: int) -> None:
    prompts = _fitting(subject, LENGTH + 1)
    if not prompts:
        result.notes.append("the model's context is too short for sampled faults")
        return
    laws = laws_of(subject, prompts)
    for fault in SAMPLED_FAULTS:
        progress.stage(f"planting: {fault.name}", samples)
        result.planted.append(
            _sampled_fault(fault, subject, prompts, laws, samples, result.level, progress)
        )


def _sampled_fault(
    fault: Fault,
    subject: Subject,
    prompts: Sequence[AuditPrompt],
    laws: Sequence[TextLaw],
    samples: int,
    level: float,
    progress: AuditProgress,
) -> Planted:
    """Draw until it is caught, looking each time that the sample has doubled."""
    per_round = PER_ROUND * len(prompts)
    looks = _looks(samples, per_round)
    sample = Sample(laws)
    known = {prompt.token_ids: law for prompt, law in zip(prompts, laws, strict=True)}
    config: Mapping[str, Any] = {"method": fault.drafter, "laws": known}
    max_model_len = max(len(prompt.token_ids) for prompt in prompts) + LENGTH + 2
    p_value, caught = 1.0, False
    with subject.engine(max_model_len, config=config, instruments=fault.instruments) as llm:
        while sample.num_samples < looks[-1] and not caught:
            sample.draw_round(llm, subject, prompts)
            progress.tick(per_round)
            if sample.num_samples in looks:
                checks = sampled_checks(sample, prompts, level, fault.name)
                p_value = min(check.p_value or 0.0 for check in checks)
                caught = p_value < level / len(looks)
    is_control = fault.name == CONTROL
    return Planted(
        fault.name, "chi-square", "answers", sample.num_samples, caught, p_value, is_control
    )


def _looks(samples: int, per_round: int) -> list[int]:
    """The sample sizes at which is looked: one round, twice as many, and so on."""
    looks = [per_round]
    while looks[-1] < samples:
        looks.append(2 * looks[-1])
    return looks


def _stale(result: SelfTest, subject: Subject, progress: AuditProgress) -> None:
    """Greedy texts of a drafter that is nearly always wrong: with an honest cache, and a stale."""
    prompts = _fitting(subject, MAX_TOKENS)
    if not prompts or not has_copyable_cache(subject.loaded):
        result.notes.append(f"{STALE}: cannot be planted in this model's cache or context")
        return
    progress.stage(f"planting: {STALE}", 3 * len(prompts))
    expected = _greedy(subject, PLAIN, prompts, progress)
    config = {"method": RepeatingDrafter, "num_speculative_tokens": 2}
    for name, loaded in ((CONTROL, subject.loaded), (STALE, stale(subject.loaded))):
        found = _greedy(replace(subject, loaded=loaded), config, prompts, progress)
        count, caught = _first_violation(subject, expected, found)
        is_control = name == CONTROL
        result.planted.append(
            Planted(name, "greedy texts", "texts", count, caught, is_control=is_control)
        )


def _greedy(
    subject: Subject,
    config: Mapping[str, Any],
    prompts: Sequence[AuditPrompt],
    progress: AuditProgress,
) -> list[Answer]:
    params = [greedy_params(subject, MAX_TOKENS)] * len(prompts)
    max_model_len = max(len(prompt.token_ids) for prompt in prompts) + MAX_TOKENS + 1
    with subject.engine(max_model_len, config=config) as llm:
        return answers(llm, prompts, params, together=1, salt="stale", tick=progress.tick)[0]


def _first_violation(
    subject: Subject, expected: Sequence[Answer], found: Sequence[Answer]
) -> tuple[int, bool]:
    """After how many texts the first violation came, and whether one came."""
    for count, (plain, other) in enumerate(zip(expected, found, strict=True), 1):
        difference = compare(subject.loaded, plain, other, greedy_params(subject, MAX_TOKENS))
        if difference is not None and not difference.is_tie:
            return count, True
    return len(expected), False


def _fitting(subject: Subject, num_tokens: int) -> list[AuditPrompt]:
    return [
        prompt
        for prompt in beginnings(subject.loaded.tokenizer)
        if len(prompt.token_ids) + num_tokens + 1 < subject.max_len
    ]
