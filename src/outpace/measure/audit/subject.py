"""What is audited: a loaded model, a drafting method and sampling parameters; and on what texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from outpace import LLM
from outpace.drafters.auto import AutoOptions
from outpace.drafters.parts.trained import bundled_for, given_draft
from outpace.engine.instruments import Instruments
from outpace.engine.speculative_config import parse_speculative_config
from outpace.models.load import LoadedModel
from outpace.models.tokenizer import Tokenizer
from outpace.params import SamplingParams

_ACCEPTANCE_KEYS = ("acceptance_method", "posterior_threshold", "posterior_alpha")
PLAIN: Mapping[str, Any] = {"method": "none"}

# How answers begin where a model is undecided and a drafter is often right: copies are likely, and
# of bits every text of three tokens is frequent enough to be counted by itself.
_BEGINNINGS = (
    ("bits", "Write a random sequence of bits.", "01101000101110010110100111010001"),
    ("digits", "Write a random sequence of digits.", "4819277305268114093357"),
    ("sum", "What is 12 + 7 * 3?", "To find the answer, we need to"),
    (
        "pens",
        "Sally has 3 boxes with 4 pens in each. How many pens?",
        "Sally has 3 boxes with 4 pens in each, so",
    ),
)


@dataclass(frozen=True, slots=True)
class AuditPrompt:
    """A prompt by its name in tables, and its token ids."""

    label: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Subject:
    """config: the method as `speculative_config` has it. batch: sequences decoded together.
    max_model_len: most tokens of prompt and answer together; None: what the model allows."""

    loaded: LoadedModel
    config: Mapping[str, Any]
    params: SamplingParams
    batch: int = 16
    max_model_len: int | None = None

    @property
    def max_len(self) -> int:
        """Most tokens of prompt and answer together, of the model and as asked for."""
        if self.max_model_len is None:
            return self.loaded.max_len
        return min(self.loaded.max_len, self.max_model_len)

    def engine(
        self,
        max_model_len: int,
        *,
        config: Mapping[str, Any] | None = None,
        instruments: Instruments | None = None,
    ) -> LLM:
        """An engine over the model: with the audited method, or with another."""
        return LLM(
            self.loaded,
            speculative_config=self.config if config is None else config,
            max_model_len=max_model_len,
            max_num_seqs=self.batch,
            generation_config="none",
            instruments=instruments,
        )

    def with_params(self, **changes: Any) -> SamplingParams:
        """The audited parameters for texts of a fixed length, whatever their tokens are."""
        return replace(self.params, ignore_eos=True, stop=(), stop_token_ids=(), **changes)


def audited_configs(config: Mapping[str, Any], loaded: LoadedModel) -> list[dict[str, Any]]:
    """The method, and of "auto", which drafts only where that pays, also what it drafts with: by
    themselves these draft in every step, so that few samples show much."""
    parsed = parse_speculative_config(config)
    found = [{"method": parsed.method, **config}]
    if not isinstance(parsed.options, AutoOptions):
        return found
    rule = {key: value for key, value in config.items() if key in _ACCEPTANCE_KEYS}
    found.append({"method": "suffix", **rule})
    given = parsed.options.model
    trained = bundled_for(loaded) if given is None else given_draft(given)
    if trained is not None:
        model = {} if trained.model is None else {"model": trained.model}
        found.append({"method": trained.method, **model, **rule})
    return found


def beginnings(tokenizer: Tokenizer) -> list[AuditPrompt]:
    """The built-in prompts of the chi-square test."""
    return [
        AuditPrompt(label, tuple(_encode(tokenizer, question, answer)))
        for label, question, answer in _BEGINNINGS
    ]


def _encode(tokenizer: Tokenizer, question: str, answer: str) -> list[int]:
    if tokenizer.chat_template is None:
        return tokenizer.encode(f"{question}\n{answer}")
    asked = tokenizer.apply_chat_template([{"role": "user", "content": question}])
    return tokenizer.encode(asked + answer, add_special_tokens=False)
