"""The audit: enumeration, greedy and seeded texts, then chi-square for the rest of the time."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from outpace import LLM
from outpace.errors import OptionError
from outpace.measure.audit.exact_rules import RULES, enumerate_rule
from outpace.measure.audit.progress import AuditProgress
from outpace.measure.audit.results import LOSSLESS, VIOLATION, AuditResult, Check
from outpace.measure.audit.same_text import answers, greedy_params, seeded_params, text_check
from outpace.measure.audit.sampled import (
    LENGTH,
    PER_ROUND,
    Sample,
    check_level,
    laws_of,
    promise,
    sampled_checks,
)
from outpace.measure.audit.subject import (
    PLAIN,
    AuditPrompt,
    Subject,
    audited_configs,
    beginnings,
)
from outpace.measure.audit.text_law import TextLaw
from outpace.measure.methods import name_of
from outpace.params import SamplingParams

_OVERTIME = 1.25
"""How much longer than planned the samples may take before fewer have to do."""
_PILOT_ROUNDS = 2
_MOST_SAMPLED = 4
"""Prompts of the chi-square test: more of them have fewer answers each."""
_MAX_MODEL_LEN = 8192
_RULES_UNTIL, _TEXTS_UNTIL = 0.25, 0.75
"""Shares of the time after which no further model is enumerated, and no further text begun."""
_LAWS_SHARE = 0.3
"""Of the time then left, for computing laws."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """How much is tested.

    minutes: of the whole audit; what the texts leave is for chi-square. Where a machine is too slow
    for it, checks are left out, and a note says which. samples: answers of the chi-square test, all
    prompts together, whatever time that takes; None: what fits.
    num_models: tiny models for each rule. num_texts, max_tokens: prompts that are answered
    greedily, and most tokens of an answer. num_seeds: seeds with which they are answered too, up
    to `max_seeded_tokens` tokens.
    level: the probability with which the chi-square tests together may call a lossless installation
    biased.
    Raises OptionError for what cannot be.
    """

    minutes: float = 2.5
    samples: int | None = None
    num_models: int = 100
    num_texts: int = 8
    max_tokens: int = 64
    num_seeds: int = 3
    max_seeded_tokens: int = 32
    level: float = 0.001

    def __post_init__(self) -> None:
        if not 0 < self.minutes < math.inf:
            raise OptionError(f"the minutes must be a number above 0, got {self.minutes}")
        check_level(self.level)
        least = {
            "samples": PER_ROUND,
            "num_models": 1,
            "num_texts": 1,
            "max_tokens": 2,
            "num_seeds": 0,
            "max_seeded_tokens": 2,
        }
        for name, low in least.items():
            value = getattr(self, name)
            if value is not None and value < low:
                raise OptionError(f"{name} must be at least {low}, got {value}")


QUICK = AuditOptions(minutes=0.3, num_models=30, num_texts=3, max_tokens=32, num_seeds=1)
"""What fits into some 20 seconds on the default model."""


def run_audit(
    subject: Subject,
    options: AuditOptions,
    progress: AuditProgress,
    *,
    texts: Sequence[AuditPrompt],
    own_prompts: bool = False,
) -> AuditResult:
    """Test everything and return what was found; what was found so far if interrupted.

    texts: prompts, the first `options.num_texts` of which are answered greedily and with seeds.
    own_prompts: they are the user's, and the chi-square test takes its own from them too.
    """
    audit = _Audit(subject, options, progress, list(texts), own_prompts)
    with suppress(KeyboardInterrupt):
        audit.run()
    audit.note_what_was_left_out()
    audit.result.elapsed_s = time.perf_counter() - audit.started
    return audit.result


class _Audit:
    def __init__(
        self,
        subject: Subject,
        options: AuditOptions,
        progress: AuditProgress,
        texts: list[AuditPrompt],
        own_prompts: bool,
    ) -> None:
        self.started = time.perf_counter()
        self._subject, self._options, self._progress = subject, options, progress
        self._texts = texts[: options.num_texts]
        self._num_given = len(texts) if own_prompts else None
        self._left_out: list[str] = []
        self._pilot_s = 0.0
        loaded = subject.loaded
        self._configs = audited_configs(subject.config, loaded)
        limit = min(subject.max_len, _MAX_MODEL_LEN)
        sampled = texts if own_prompts else beginnings(loaded.tokenizer)
        fitting = [p for p in sampled if len(p.token_ids) + LENGTH + 1 < limit]
        self._sampled = fitting[:_MOST_SAMPLED]
        longest = max(len(p.token_ids) for p in [*self._texts, *self._sampled])
        # One more than is asked for, so that no text ends because the context does.
        self._max_model_len = min(limit, longest + options.max_tokens + LENGTH + 1)
        self.result = AuditResult(
            model=loaded.name,
            dtype=loaded.dtype,
            runs_on=loaded.runs_on,
            method=name_of(subject.config),
            sampling=_changed(subject.params),
            level=options.level,
            text_prompts=[prompt.label for prompt in self._texts],
        )

    def run(self) -> None:
        self._enumerate()
        with self._subject.engine(self._max_model_len, config=PLAIN) as plain:
            self._compare_texts(plain)
        if not self._subject.params.is_greedy:
            self._sample_all()
        self.result.complete = True

    def note_what_was_left_out(self) -> None:
        if self._left_out:
            self.result.notes.append(
                f"left out for lack of time (--minutes): {'; '.join(self._left_out)}"
            )
        if self._num_given not in (None, 1):
            self.result.notes.append(
                f"of the {self._num_given} prompts given that fit, the texts took "
                f"{len(self.result.text_prompts)} (--num-texts), the chi-square test "
                f"{len(self.result.law_prompts)}"
            )

    def _at(self, share: float) -> float:
        """When this share of the time will be over."""
        return self.started + share * 60 * self._options.minutes

    def _enumerate(self) -> None:
        num_models = self._options.num_models
        self._progress.stage("enumerating tiny models", num_models * len(RULES))
        for i, (name, (emit, cases)) in enumerate(RULES.items(), 1):
            in_time = _until(self._at(_RULES_UNTIL * i / len(RULES)), cases(num_models))
            found = enumerate_rule(emit, in_time, self._progress.tick)
            self.result.checks.append(
                Check(
                    kind="exact",
                    name=name,
                    unit="tiny models",
                    num_samples=found.num_models,
                    num_wrong=found.num_biased,
                    verdict=VIOLATION if found.num_biased else LOSSLESS,
                    num_drafts=found.num_drafts,
                )
            )

    def _compare_texts(self, plain: LLM) -> None:
        """Greedy texts and seeded ones, of every method against plain decoding's.

        In the time for texts, every method comes to its first trial before any takes the time of
        another for its further ones.
        """
        texts, options, batch = self._texts, self._options, self._subject.batch
        seeds = range(1, options.num_seeds + 1)
        if self._subject.params.is_greedy:
            seeds = range(0)
            self.result.notes.append(
                "temperature 0: nothing was sampled, so no law and no seeds were tested"
            )
        greedy = [greedy_params(self._subject, options.max_tokens)] * len(texts)
        seeded = [
            seeded_params(self._subject, seed, options.max_seeded_tokens)
            for seed in seeds
            for _ in texts
        ]
        trials = [("one at a time", 1, texts, greedy)]
        if min(batch, len(texts)) > 1:
            together = min(batch, len(texts))
            trials.append((f"{together} at a time", together, texts, greedy))
        if seeds:
            name = f"{len(seeds)} {'seeds' if len(seeds) > 1 else 'seed'}, {batch} at a time"
            trials.append((name, batch, texts * len(seeds), seeded))
        count = len(greedy) + len(seeded)
        self._progress.stage("decoding plainly", count)
        tick = self._progress.tick
        expected = answers(plain, texts, greedy, together=1, salt="plain", tick=tick)[0]
        expected_seeded = answers(
            plain, texts * len(seeds), seeded, together=batch, salt="plain", tick=tick
        )[0]
        began, end = time.perf_counter(), self._at(_TEXTS_UNTIL)
        for i, config in enumerate(self._configs):
            method = name_of(config)
            own_end = began + (end - began) * (i + 1) / len(self._configs)
            self._progress.stage(f"decoding with {method}", sum(len(t[2]) for t in trials))
            with self._subject.engine(self._max_model_len, config=config) as llm:
                self._note_lossy(llm)
                for j, (name, together, prompts, params) in enumerate(trials):
                    if i + j and time.perf_counter() > (own_end if j else end):
                        self._left_out.append(f"{method}, {name}")
                        continue
                    found, stats = answers(
                        llm, prompts, params, together=together, salt=name, tick=tick
                    )
                    right = expected if params is greedy else expected_seeded
                    self.result.checks.append(
                        text_check(self._subject, method, name, right, found, params, stats)
                    )

    def _note_lossy(self, llm: LLM) -> None:
        note = f"drafts are accepted by {llm.lossy}, which is not lossless"
        if llm.lossy and note not in self.result.notes:
            self.result.notes.append(note)

    def _sample_all(self) -> None:
        if not self._sampled:
            self.result.notes.append("the model's context is too short for the chi-square test")
            return
        laws = self._laws()
        # What decides for itself whether to draft is left to what it drafts with.
        configs = self._configs[1:] or self._configs
        level = self._options.level / len(configs)
        for i, config in enumerate(configs):
            left = self._at(1) - time.perf_counter()
            if i and left < self._pilot_s and self._options.samples is None:
                self._left_out.append(f"the law of {name_of(config)}")
                continue
            self._sample(config, laws, level, seconds=left / (len(configs) - i))

    def _laws(self) -> list[TextLaw]:
        """Of as many prompts as the time allows, at least one; further ones are not sampled."""
        now = time.perf_counter()
        end = now + _LAWS_SHARE * (self._at(1) - now)
        in_time = _until(math.inf if self._options.samples else end, self._sampled)
        self._progress.stage("computing laws", len(self._sampled))
        laws: list[TextLaw] = []
        for prompt in in_time:
            laws += laws_of(self._subject, [prompt])
            self._progress.tick()
        self._sampled = self._sampled[: len(laws)]
        self.result.law_prompts = [prompt.label for prompt in self._sampled]
        return laws

    def _sample(
        self, config: Mapping[str, Any], laws: list[TextLaw], level: float, seconds: float
    ) -> None:
        prompts, method = self._sampled, name_of(config)
        sample = Sample(laws)
        began = time.perf_counter()
        until = began + seconds
        try:
            with self._subject.engine(self._max_model_len, config=config) as llm:
                self._progress.stage(f"sampling with {method}", _PILOT_ROUNDS)
                round_s = self._pilot(sample, llm, until)
                self._pilot_s = time.perf_counter() - began
                num_rounds = self._num_rounds(sample, round_s, until)
                promised = promise(laws, num_rounds * PER_ROUND, level)
                self._progress.say(f"{method}: {promise_in_words(promised, num_rounds, prompts)}")
                self._progress.stage(f"sampling with {method}", num_rounds)
                self._progress.tick(_drawn(sample))
                # When to stop may depend on the clock, and never on what the samples say.
                latest = time.perf_counter() + _OVERTIME * round_s * num_rounds
                for _ in range(num_rounds - _drawn(sample)):
                    if self._options.samples is None and time.perf_counter() > latest:
                        break
                    sample.draw_round(llm, self._subject, prompts)
                    self._progress.tick()
        finally:
            if sample.num_samples:
                self.result.checks += sampled_checks(sample, prompts, level, method)

    def _pilot(self, sample: Sample, llm: LLM, until: float) -> float:
        """Seconds of a round; the first one is warm-up besides, and all there is time for where it
        lasts beyond `until`."""
        before = 0.0
        for i in range(_PILOT_ROUNDS):
            if i and time.perf_counter() > until and self._options.samples is None:
                break
            before = time.perf_counter()
            sample.draw_round(llm, self._subject, self._sampled)
            self._progress.tick()
        return time.perf_counter() - before

    def _num_rounds(self, sample: Sample, round_s: float, until: float) -> int:
        per_round = PER_ROUND * len(self._sampled)
        if self._options.samples is not None:
            wanted = -(-self._options.samples // per_round)
        else:
            wanted = _drawn(sample) + int((until - time.perf_counter()) / round_s)
        return max(_drawn(sample), wanted)


def _drawn(sample: Sample) -> int:
    """Rounds so far."""
    return sample.num_per_prompt // PER_ROUND


def _until(end: float, items: Iterable[_T]) -> Iterator[_T]:
    """The first item, and further ones until the clock says `end`."""
    for i, item in enumerate(items):
        if i and time.perf_counter() > end:
            return
        yield item


def promise_in_words(bias: float | None, num_rounds: int, prompts: Sequence[AuditPrompt]) -> str:
    """What the samples to come can show, in words."""
    count = f"{num_rounds * PER_ROUND * len(prompts):,} answers to {len(prompts)} prompts"
    if bias is None:
        return f"{count}: too few to find any bias with 90 % probability"
    return f"{count}: a bias of {bias:.1%} (total variation) is found with 90 % probability"


def _changed(params: SamplingParams) -> dict[str, object]:
    """The temperature, and the other parameters that change a law and are not at rest."""
    return {
        f.name: getattr(params, f.name)
        for f in fields(params)
        if f.name == "temperature"
        or (f.name != "max_tokens" and getattr(params, f.name) != f.default)
    }
