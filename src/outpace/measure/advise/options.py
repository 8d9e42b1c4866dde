"""What advice is asked for, and the time it may take."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from outpace import SamplingParams
from outpace.errors import OptionError
from outpace.measure.advise.candidates import candidates_of, with_draft
from outpace.measure.methods import Config

QUICK_MINUTES = 0.6
DEFAULT_MINUTES = 3.0
MOST_MINUTES = 600.0
MAX_PROMPT_TOKENS = 2048

Progress = Callable[[str, float, float], None]
"""Called with what is being done, the seconds that have passed and those promised."""


@dataclass(frozen=True, slots=True)
class AdviseOptions:
    """What is asked.

    configs: candidates; None considers `default_configs`. draft: directory or name of a draft, for
    the methods that take one. temperature, seed: of the answers. max_tokens: most of an answer.
    batch: requests that are to be decoded together. minutes: that all of it may take. quick: fewer
    candidates, and no search for the batch at which speculation stops to pay.
    Raises OptionError for values that make no sense.
    """

    configs: tuple[Config, ...] | None = None
    draft: str | None = None
    temperature: float = 0.0
    seed: int | None = None
    max_tokens: int = 96
    batch: int = 1
    minutes: float = DEFAULT_MINUTES
    quick: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.minutes <= MOST_MINUTES:
            raise OptionError(
                f"minutes must be more than 0 and at most {MOST_MINUTES:g}, got {self.minutes:g}"
            )
        if self.max_tokens < 8:
            raise OptionError(
                f"max_tokens must be at least 8, got {self.max_tokens}: shorter answers say "
                "nothing of decoding"
            )
        if not 1 <= self.batch <= 64:
            raise OptionError(f"batch must be from 1 to 64, got {self.batch}")
        _ = self.params(self.max_tokens)
        if self.configs is not None:
            candidates_of(with_draft(self.configs, self.draft))

    @property
    def seconds(self) -> float:
        return 60 * self.minutes

    @property
    def most_prompts(self) -> int:
        """Prompts looked at, if the model is fast enough."""
        return 4 if self.quick else max(6, min(48, round(4 * self.minutes)))

    def params(self, max_tokens: int, *, ignore_eos: bool = False) -> SamplingParams:
        return SamplingParams(
            temperature=self.temperature,
            seed=self.seed,
            max_tokens=max_tokens,
            ignore_eos=ignore_eos,
        )


class Clock:
    """The time promised, and how much of it is gone."""

    def __init__(self, seconds: float, progress: Progress) -> None:
        self.seconds = seconds
        self._progress = progress
        self._started = time.perf_counter()
        self._stage = ""

    @property
    def elapsed(self) -> float:
        return time.perf_counter() - self._started

    def stage(self, name: str) -> None:
        self._stage = name
        self.tick()

    def tick(self) -> None:
        """Tell how far it is."""
        self._progress(self._stage, self.elapsed, self.seconds)

    def left(self, share: float) -> float:
        """Seconds until this share of the time is gone; negative after it."""
        return share * self.seconds - self.elapsed
