"""A tiny model to audit, quickly, and what an audit says while it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tiny import tiny_model

from outpace import SamplingParams
from outpace.measure.audit.run import AuditOptions
from outpace.measure.audit.sampled import laws_of
from outpace.measure.audit.subject import AuditPrompt, Subject, beginnings

MODEL = tiny_model()
PROMPTS = beginnings(MODEL.tokenizer)[:2]
SMALL = AuditOptions(
    samples=256, num_models=3, num_texts=2, max_tokens=16, num_seeds=1, max_seeded_tokens=8
)


@dataclass
class Said:
    """stages, said: everything that was told; `on_tick` is called at each step."""

    stages: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    on_tick: Callable[[], None] = lambda: None

    def stage(self, name: str, total: int) -> None:
        self.stages.append(name)

    def tick(self, count: int = 1) -> None:
        self.on_tick()

    def say(self, text: str) -> None:
        self.said.append(text)


def subject(config: Mapping[str, Any], **changes: Any) -> Subject:
    """The tiny model with a method, at temperature 0.7 unless told otherwise."""
    params = SamplingParams(**({"temperature": 0.7} | changes))
    return Subject(MODEL, config, params, batch=32)


def informed(drafter: type, prompts: list[AuditPrompt]) -> dict[str, Any]:
    """A method that knows what follows these prompts; see `faults.InformedDrafter`."""
    laws = laws_of(subject({"method": "none"}), prompts)
    known = {prompt.token_ids: law for prompt, law in zip(prompts, laws, strict=True)}
    return {"method": drafter, "laws": known}
