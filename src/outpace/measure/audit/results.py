"""What an audit found, in values that become JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Verdict = Literal["lossless", "violation", "says little", "incomplete"]

ALL_PROMPTS = "all prompts"
LOSSLESS: Verdict = "lossless"
VIOLATION: Verdict = "violation"
SAYS_LITTLE: Verdict = "says little"
INCOMPLETE: Verdict = "incomplete"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was tested.

    kind: "exact" (enumeration over tiny models), "sampled" (chi-square on this model), "seeded" or
        "greedy" (token for token against plain decoding). method: what drafted; None in the first.
    num_samples: what `unit` counts: models, samples or texts. num_wrong: those of them that show a
        violation. num_ties: those that differ by a rounding tie.
    p_value: adjusted for being one of several (Holm), as every other of its kind; None where
        nothing is left to chance. detectable_bias: the total-variation distance at which a bias
        would be found with 90 % probability, however it is spread; None where that is no question.
    num_drafts, num_accepted: drafts judged while this was tested, and draft tokens accepted.
    num_drafted: texts in which a draft was judged; None where that was not counted.
    differences: the first ones, in words.
    """

    kind: str
    name: str
    unit: str
    num_samples: int
    num_wrong: int
    verdict: Verdict
    num_ties: int = 0
    p_value: float | None = None
    detectable_bias: float | None = None
    num_drafts: int | None = None
    num_accepted: int | None = None
    method: str | None = None
    num_drafted: int | None = None
    differences: tuple[str, ...] = ()


@dataclass(slots=True)
class AuditResult:
    """Everything an audit tested, as far as it came.

    level: the probability with which the chi-square tests together call a lossless installation
        biased. text_prompts, law_prompts: labels of the prompts that were answered for the texts
        and for the chi-square tests. complete: False where it was interrupted. elapsed_s: seconds.
    """

    model: str
    dtype: str
    runs_on: str
    method: str
    sampling: dict[str, Any]
    level: float
    checks: list[Check] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    text_prompts: list[str] = field(default_factory=list)
    law_prompts: list[str] = field(default_factory=list)
    complete: bool = False
    elapsed_s: float = 0.0

    @property
    def verdict(self) -> Verdict:
        """ "violation" if any check found one, else "incomplete" after an interruption.

        "says little" where hardly a draft was judged in the chi-square tests, or, where nothing
        was to be sampled, in greedy texts.
        """
        if any(check.verdict == VIOLATION for check in self.checks):
            return VIOLATION
        if not self.complete:
            return INCOMPLETE
        is_greedy = self.sampling.get("temperature") == 0
        deciding = self.of_kind("greedy") if is_greedy else self.sampled_overall
        judged = any(check.verdict == LOSSLESS for check in deciding)
        return LOSSLESS if judged else SAYS_LITTLE

    def of_kind(self, kind: str) -> list[Check]:
        return [check for check in self.checks if check.kind == kind]

    @property
    def sampled_overall(self) -> list[Check]:
        """The chi-square tests over all prompts together, one for each method that was sampled."""
        return [check for check in self.of_kind("sampled") if check.name == ALL_PROMPTS]

    def to_json(self) -> dict[str, Any]:
        return {"schema": 1, "verdict": self.verdict, **asdict(self)}


@dataclass(frozen=True, slots=True)
class Planted:
    """A fault, and what it took to notice it.

    check: which of the audit's checks noticed, or had to. num_samples: after how many of `unit` it
    was caught, or how many were looked at in vain. p_value: of the chi-square test then.
    caught: of a control, where nothing is wrong, it must be False.
    """

    fault: str
    check: str
    unit: str
    num_samples: int
    caught: bool
    p_value: float | None = None
    is_control: bool = False

    @property
    def is_right(self) -> bool:
        return self.caught != self.is_control


@dataclass(slots=True)
class SelfTest:
    """What became of every planted fault."""

    model: str
    dtype: str
    runs_on: str
    level: float
    planted: list[Planted] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    complete: bool = False
    elapsed_s: float = 0.0

    @property
    def passed(self) -> bool:
        return self.complete and all(each.is_right for each in self.planted)

    def to_json(self) -> dict[str, Any]:
        return {"schema": 1, "passed": self.passed, **asdict(self)}
