"""Chi-square on the model itself: the first tokens of many answers against their exact law."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Int

from outpace import LLM
from outpace.errors import OptionError
from outpace.measure.audit.results import ALL_PROMPTS, LOSSLESS, SAYS_LITTLE, VIOLATION, Check
from outpace.measure.audit.subject import AuditPrompt, Subject
from outpace.measure.audit.text_law import TextLaw, text_law
from outpace.measure.statistics import chi_square, chi_square_power, hardest_bias, holm
from outpace.measure.ties import request_sequence
from outpace.outputs import SpeculationStats

LENGTH = 3
"""Tokens of an answer that are looked at."""
PER_ROUND = 64
"""Answers to each prompt in one round."""
LEAST = 0.02
"""Texts at least this probable are cells of their own. Fewer cells notice smaller biases."""
POWER = 0.9
MIN_SHARE_DRAFTED = 0.05
"""Where fewer answers than this had a draft judged, the test says little about drafting."""

# A draft of two tokens shows how the second is judged where the first was accepted, a draft of one
# what comes after it is accepted: half of the answers each.
_MAX_TOKENS = (LENGTH, LENGTH + 1)


def check_level(level: float) -> None:
    """Raises OptionError for what is no level of a test."""
    if not 0 < level < 1:
        raise OptionError(f"the level must lie between 0 and 1, got {level}")


def laws_of(subject: Subject, prompts: Sequence[AuditPrompt]) -> list[TextLaw]:
    """The exact law of the first tokens after each prompt, from plain passes."""
    params = subject.with_params(max_tokens=max(_MAX_TOKENS))
    laws = []
    for prompt in prompts:
        seq = request_sequence(subject.loaded, prompt.token_ids, params, len(prompt.token_ids))
        laws.append(text_law(subject.loaded, seq, length=LENGTH, least=LEAST))
    return laws


@dataclass(slots=True)
class Sample:
    """Counts of answers to each prompt, in the cells of its law, and what drafting did there."""

    laws: Sequence[TextLaw]
    counts: list[Int[np.ndarray, " cells"]] = field(init=False)
    stats: list[SpeculationStats] = field(init=False)

    def __post_init__(self) -> None:
        self.counts = [law.counts(()) for law in self.laws]
        self.stats = [SpeculationStats() for _ in self.laws]

    @property
    def num_per_prompt(self) -> int:
        return int(self.counts[0].sum())

    @property
    def num_samples(self) -> int:
        return sum(int(counts.sum()) for counts in self.counts)

    def draw_round(self, llm: LLM, subject: Subject, prompts: Sequence[AuditPrompt]) -> None:
        """Draw `PER_ROUND` answers to each prompt, all decoded together.

        Counts change only when the round is over, so that an interrupted one leaves no trace.
        """
        each = PER_ROUND // len(_MAX_TOKENS)
        requests = [
            (i, subject.with_params(max_tokens=most, n=each))
            for i in range(len(prompts))
            for most in _MAX_TOKENS
        ]
        outputs = llm.generate(
            [{"prompt_token_ids": list(prompts[i].token_ids)} for i, _ in requests],
            [params for _, params in requests],
        )
        for (i, _), output in zip(requests, outputs, strict=True):
            texts = [answer.token_ids[:LENGTH] for answer in output.outputs]
            self.counts[i] += self.laws[i].counts(texts)
            self.stats[i].add(output.stats)


def pooled(
    laws: Sequence[TextLaw], counts: Sequence[Int[np.ndarray, " cells"]]
) -> tuple[Int[np.ndarray, " all_cells"], Float[np.ndarray, " all_cells"]]:
    """(counts, law) of all prompts together, each of which has as many samples.

    That their numbers are fixed takes away as many degrees of freedom, which are counted all the
    same: p values come out a little too high, never too low.
    """
    law = np.concatenate([law.probabilities for law in laws]) / len(laws)
    return np.concatenate(list(counts)), law


def detectable_bias(
    law: Float[np.ndarray, " cells"], num_samples: int, level: float
) -> float | None:
    """The smallest total-variation distance from `law` that chi-square at `level` finds with
    probability `POWER` however it is spread over the cells; None where even 1/2 is not found."""

    def is_found(distance: float) -> bool:
        other = hardest_bias(law, distance)
        return chi_square_power(law, other, num_samples, level) >= POWER

    try:
        if not num_samples or not is_found(0.5):
            return None
    except OptionError:  # the parameters leave a single text
        return None
    low, high = 0.0, 0.5
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (low, middle) if is_found(middle) else (middle, high)
    return high


def promise(laws: Sequence[TextLaw], num_per_prompt: int, level: float) -> float | None:
    """Which bias so many samples will find, known before they are drawn; see `sampled_checks`."""
    _, law = pooled(laws, [law.counts(()) for law in laws])
    return detectable_bias(law, num_per_prompt * len(laws), _each(level, laws))


def sampled_checks(
    sample: Sample, prompts: Sequence[AuditPrompt], level: float, method: str
) -> list[Check]:
    """A check for each prompt, and one for all together."""
    laws = sample.laws
    tables = [
        *zip(sample.counts, [law.probabilities for law in laws], strict=True),
        pooled(laws, sample.counts),
    ]
    tests = [chi_square(counts, law, simulate=True) for counts, law in tables]
    adjusted = holm([test.p_value for test in tests])
    total = SpeculationStats()
    for stats in sample.stats:
        total.add(stats)
    names = [*(prompt.label for prompt in prompts), ALL_PROMPTS]
    checks = []
    for name, (_, law), test, p_value, stats in zip(
        names, tables, tests, adjusted, [*sample.stats, total], strict=True
    ):
        verdict = LOSSLESS
        if stats.num_drafts < MIN_SHARE_DRAFTED * test.num_samples:
            verdict = SAYS_LITTLE
        if p_value < level:
            verdict = VIOLATION
        checks.append(
            Check(
                kind="sampled",
                name=name,
                unit="answers",
                num_samples=test.num_samples,
                num_wrong=test.impossible,
                verdict=verdict,
                p_value=p_value,
                detectable_bias=detectable_bias(law, test.num_samples, _each(level, laws)),
                num_drafts=stats.num_drafts,
                num_accepted=stats.num_accepted_tokens,
                method=method,
            )
        )
    return checks


def _each(level: float, laws: Sequence[TextLaw]) -> float:
    """The level of a single test such that all together keep to `level`, at the least."""
    return level / (len(laws) + 1)
