"""What an experiment is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outpace.errors import OptionError

LENGTHS = (1, 2, 3, 5)
"""The draft lengths of the published study."""
QUICK: Mapping[str, Any] = {"lengths": (1, 3), "minutes": 0.5, "max_tokens": 32}
"""Values for a first look."""
MAX_LENGTH = 16
MAX_PROMPT_TOKENS = 192


@dataclass(frozen=True, slots=True)
class ExperimentOptions:
    """How an experiment is run.

    draft: a model that drafts in place of the random one; None: the random one is made.
    trained: directory of a trained draft for the second table; None: the one that is bundled for
        the target, if there is one.
    lengths: draft tokens per step (k), each of them tried with every draft.
    temperature: of the answers, above 0, for only then p and q decide.
    minutes: how long the run may take from its first measurement on; it ends with the last round
        that fits, and has at least one.
    max_tokens: most tokens of an answer. seed: of the random draft and of the order of runs; the
        answers themselves are sampled without one.
    prompts: files to take prompts from; none: the built-in ones.

    Raises OptionError for values that no experiment could be run with.
    """

    draft: str | None = None
    trained: Path | None = None
    lengths: Sequence[int] = LENGTHS
    temperature: float = 0.8
    minutes: float = 3.5
    max_tokens: int = 64
    seed: int = 0
    prompts: Sequence[Path] = ()

    def __post_init__(self) -> None:
        if not self.lengths or not all(1 <= k <= MAX_LENGTH for k in self.lengths):
            given = ",".join(map(str, self.lengths))
            raise OptionError(
                f"draft lengths (k) are numbers from 1 to {MAX_LENGTH}, such as 1,2,3,5; "
                f"got {given or 'none'}"
            )
        if not 0 < self.temperature <= 2:
            raise OptionError(
                f"the experiment samples at a temperature above 0 and at most 2, got "
                f"{self.temperature:g}; at 0 there is no p and q to compare"
            )
        if not 0 < self.minutes <= 600:
            raise OptionError(f"minutes must be above 0 and at most 600, got {self.minutes:g}")
        if self.max_tokens < 8:
            raise OptionError(
                f"answers of at least 8 tokens are needed to time them, got {self.max_tokens}"
            )
