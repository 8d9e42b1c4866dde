"""Sampling parameters: what a request may ask for, and what is refused.

Importing this module is cheap on purpose (no torch, no numpy): the command line reads
`SamplingParams` from it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from outpace.errors import OptionError

if TYPE_CHECKING:
    import torch


@runtime_checkable
class LogitsProcessor(Protocol):
    """A caller's own change of the logits at one position.

    prompt_token_ids, output_token_ids: what stands before the position. Under speculation the
        position may be one that is only drafted: then `output_token_ids` ends with the draft
        tokens before it, which may yet be rejected. Lists are the processor's own.
    logits: [V] float32 (float64 for a float64 model), already changed by the request's other
        parameters except `structured_outputs`, temperature and the filters after it. May be changed
        in place.

    Returns the logits to use, [V]; -inf forbids a token, and one at least must stay possible.
    It must be a pure function of its arguments: positions are asked about in any order, some
    twice and some in vain, so that anything remembered between calls would be wrong.
    """

    def __call__(
        self, prompt_token_ids: list[int], output_token_ids: list[int], logits: torch.Tensor, /
    ) -> torch.Tensor: ...


@dataclass(frozen=True, kw_only=True)
class StructuredOutputsParams:
    """What an answer must be a word of: exactly one of the first five. Names follow vLLM.

    json: a JSON schema, as a mapping or as text.
    regex: a regular expression that matches the whole answer.
    choice: texts, one of which the answer is.
    grammar: a context-free grammar in Lark's syntax (it begins at `start`) or GBNF (at `root`).
    json_object: any JSON object.
    disable_any_whitespace: JSON without spaces and line breaks between its parts. What may come
        then follows from the schema more often, and less is left to the model.

    A model that reaches max_tokens before the end leaves the beginning of such a word.
    Raises OptionError for none or several of them, and for values of another kind. Whether a schema
    or an expression can be used shows when it is compiled for a model.
    """

    json: str | Mapping[str, Any] | None = None
    regex: str | None = None
    choice: tuple[str, ...] | list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False

    def __new__(cls, *_: object, **values: object) -> StructuredOutputsParams:
        refuse_unknown("structured_outputs key", values, [f.name for f in fields(cls)])
        return object.__new__(cls)

    def __post_init__(self) -> None:
        if self.json_object not in (None, True, False):
            raise OptionError(f"json_object must be true or false, got {self.json_object!r:.80}")
        if not isinstance(self.disable_any_whitespace, bool):
            given = self.disable_any_whitespace
            raise OptionError(f"disable_any_whitespace must be true or false, got {given!r:.80}")
        given_kinds = [kind for kind in STRUCTURES if getattr(self, kind) not in (None, False)]
        if len(given_kinds) != 1:
            raise OptionError(
                f"structured_outputs takes exactly one of {', '.join(STRUCTURES)}, got "
                f"{' and '.join(given_kinds) or 'none'}"
            )
        self._check_value()
        if self.disable_any_whitespace and self.kind not in ("json", "json_object"):
            raise OptionError(
                f"disable_any_whitespace is about JSON and has no meaning for {self.kind}"
            )

    def _check_value(self) -> None:
        value = getattr(self, self.kind)
        if self.kind == "json" and not isinstance(value, str | Mapping):
            raise OptionError(f"json must be a JSON schema, a mapping or text, got {value!r:.80}")
        if self.kind in ("regex", "grammar") and not isinstance(value, str):
            raise OptionError(f"{self.kind} must be text, got {value!r:.80}")
        if self.kind == "choice":
            object.__setattr__(self, "choice", _as_tuple("choice", value))
            if not self.choice:
                raise OptionError("choice is empty: no answer would be possible")
            for text in self.choice:
                if not isinstance(text, str) or not text:
                    raise OptionError(f"choice must hold non-empty strings, got {text!r:.80}")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> StructuredOutputsParams:
        """Build from a mapping; an unknown key is an error that names the known ones."""
        refuse_unknown("structured_outputs key", values, [f.name for f in fields(cls)])
        return cls(**values)

    @property
    def kind(self) -> str:
        """Which of `STRUCTURES` was asked for."""
        return next(kind for kind in STRUCTURES if getattr(self, kind) not in (None, False))


STRUCTURES = ("json", "regex", "choice", "grammar", "json_object")


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How the next token is drawn, and when to stop. Names and meaning follow vLLM and OpenAI.

    Every parameter is applied exactly at every drafted position, or refused here.

    repetition_penalty: divides the positive logits of tokens that prompt or output hold already,
        and multiplies their negative ones (CTRL, 1909.05858); 1 changes nothing.
    presence_penalty: subtracted from the logits of tokens the output holds already.
    frequency_penalty: subtracted as often as the output holds the token.
    logit_bias: token id -> number added to its logit (-100 all but forbids it).
    allowed_token_ids: only these ids may be generated (None: all may).
    bad_words: texts that no output token may complete, written with or without a leading space.
    min_tokens: end tokens and stop_token_ids cannot come before this many output tokens.
    logits_processors: further changes of the logits, in order; see `LogitsProcessor`.
    structured_outputs: what the answer must be a word of, a `StructuredOutputsParams` or a mapping
        with its fields: a JSON schema, a regular expression, a list of choices or a grammar.
    temperature: divides the logits; 0 means greedy.
    top_k: keep the k most probable tokens; 0 or -1 keeps all.
    top_p: keep the smallest set of most probable tokens whose mass reaches top_p.
    min_p: drop tokens less probable than min_p times the most probable one.
    typical_p: keep the smallest set of locally typical tokens whose mass reaches typical_p
        (2202.00666); 1 keeps all.
    n: number of answers to the prompt. Each draws by itself, also where they share a seed.
    seed: same seed, same text, whatever the drafter, draft length or batch (None: independent).
    max_tokens: most output tokens (None: on to the end of the context).
    stop: strings that end the output; the text ends before the first one to be completed.
    stop_token_ids: ids that end the output, besides the model's own end tokens.
    ignore_eos: go on past the model's own end tokens.
    logprobs: report this many most probable tokens beside the chosen one (0: the chosen only).
        Values are log-softmax of the target's raw logits, before penalties and temperature.
    prompt_logprobs: the same for every prompt token after the first.
    include_stop_str_in_output: keep the stop string that ended the output in the text.
    skip_special_tokens: leave special tokens (end of text, turn markers) out of the text; their
        ids stay in token_ids.

    Raises OptionError for values out of range.
    """

    n: int = 1
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: tuple[int, ...] | list[int] | None = None
    bad_words: tuple[str, ...] | list[str] = ()
    min_tokens: int = 0
    logits_processors: tuple[LogitsProcessor, ...] | list[LogitsProcessor] = ()
    structured_outputs: StructuredOutputsParams | Mapping[str, Any] | None = None
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    seed: int | None = None
    max_tokens: int | None = 16
    stop: str | tuple[str, ...] | list[str] = ()
    stop_token_ids: tuple[int, ...] | list[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True

    def __new__(cls, *_: object, **values: object) -> SamplingParams:
        # Before the generated __init__, whose TypeError would not say what is known.
        refuse_unknown("sampling parameter", values, [f.name for f in fields(cls)])
        return object.__new__(cls)

    def __post_init__(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else _as_tuple("stop", self.stop)
        object.__setattr__(self, "stop", stop)
        for name in ("stop_token_ids", "bad_words", "logits_processors"):
            object.__setattr__(self, name, _as_tuple(name, getattr(self, name)))
        for name, (low, high, low_open) in _NUMBERS.items():
            _check_number(name, getattr(self, name), low, high, low_open)
        for name, (least, most, optional) in _INTEGERS.items():
            if getattr(self, name) is not None or not optional:
                _check_integer(name, getattr(self, name), least, most)
        for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"):
            if not isinstance(getattr(self, name), bool):
                raise OptionError(f"{name} must be true or false, got {getattr(self, name)!r}")
        for name in ("stop", "bad_words"):
            for text in getattr(self, name):
                if not isinstance(text, str) or not text:
                    raise OptionError(f"{name} must hold non-empty strings, got {text!r}")
        for token_id in self.stop_token_ids:
            _check_integer("stop_token_ids", token_id, 0)
        for processor in self.logits_processors:
            if not callable(processor):
                raise OptionError(f"logits_processors must hold functions, got {processor!r:.80}")
        self._check_token_choice()
        self._check_structure()
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise OptionError(
                f"min_tokens ({self.min_tokens}) must not exceed max_tokens ({self.max_tokens})"
            )

    def _check_token_choice(self) -> None:
        if self.allowed_token_ids is not None:
            allowed = _as_tuple("allowed_token_ids", self.allowed_token_ids)
            object.__setattr__(self, "allowed_token_ids", allowed)
            if not allowed:
                raise OptionError("allowed_token_ids is empty: no token could be generated")
            for token_id in allowed:
                _check_integer("allowed_token_ids", token_id, 0)
            # Each once: they are looked up at every position.
            object.__setattr__(self, "allowed_token_ids", tuple(dict.fromkeys(allowed)))
        if self.logit_bias is not None:
            object.__setattr__(self, "logit_bias", _checked_bias(self.logit_bias))

    def _check_structure(self) -> None:
        asked = self.structured_outputs
        if asked is None:
            return
        if isinstance(asked, Mapping):
            object.__setattr__(self, "structured_outputs", StructuredOutputsParams.from_dict(asked))
        elif not isinstance(asked, StructuredOutputsParams):
            raise OptionError(
                "structured_outputs must be StructuredOutputsParams or a mapping with its fields, "
                f"got {asked!r:.80}"
            )
        if self.ignore_eos:
            raise OptionError(
                "ignore_eos=True cannot be combined with structured_outputs: the model's end token "
                "is what may follow a complete answer; leave ignore_eos out"
            )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SamplingParams:
        """Build from a mapping; an unknown key is an error that names the known ones."""
        if not isinstance(values, Mapping):
            raise OptionError(f"sampling parameters must be a mapping, got {values!r:.80}")
        refuse_unknown("sampling parameter", values, [f.name for f in fields(cls)])
        return cls(**values)

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0


# Parameter -> least and greatest value, and whether the least itself is excluded.
_NUMBERS: dict[str, tuple[float, float, bool]] = {
    "repetition_penalty": (0.001, 1000.0, False),
    "presence_penalty": (-2.0, 2.0, False),
    "frequency_penalty": (-2.0, 2.0, False),
    "temperature": (0.0, math.inf, False),
    "top_p": (0.0, 1.0, True),
    "min_p": (0.0, 1.0, False),
    "typical_p": (0.0, 1.0, True),
}
# Parameter -> least and greatest value, and whether it may be None.
_INTEGERS: dict[str, tuple[int, int | None, bool]] = {
    "n": (1, 1024, False),
    "min_tokens": (0, None, False),
    "top_k": (-1, None, False),
    "seed": (-(2**63), 2**64 - 1, True),
    "max_tokens": (0, None, True),
    "logprobs": (0, None, True),
    "prompt_logprobs": (0, None, True),
}


def _checked_bias(bias: object) -> dict[int, float]:
    if not isinstance(bias, Mapping):
        raise OptionError(f"logit_bias must map token ids to numbers, got {bias!r:.80}")
    checked: dict[int, float] = {}
    for key, value in bias.items():
        # JSON has no whole-number keys: OpenAI's clients send {"50256": -100}.
        token_id = int(key) if isinstance(key, str) and key.isdecimal() else key
        _check_integer("a token id of logit_bias", token_id, 0)
        _check_number(f"logit_bias of token {token_id}", value, -100.0, 100.0)
        if token_id in checked:
            raise OptionError(f"logit_bias names token {token_id} twice, as text and as number")
        checked[token_id] = float(value)
    return checked


def refuse_unknown(kind: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise OptionError if `given` holds names that are not `known`."""
    unknown = sorted(str(name) for name in set(given) - set(known))
    if unknown:
        raise OptionError(
            f"{kind} {', '.join(unknown)} is not supported; supported: {', '.join(known)}"
        )


def _as_tuple(name: str, values: object) -> tuple[Any, ...]:
    if values is None:
        return ()
    if not isinstance(values, list | tuple):
        raise OptionError(f"{name} must be a list, got {values!r:.80}")
    return tuple(values)


def _check_number(
    name: str, value: object, low: float, high: float, low_open: bool = False
) -> None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        inside = (low < value if low_open else low <= value) and value <= high
        # Compared first: an int too large for a float cannot be asked whether it is finite.
        if inside and value <= sys.float_info.max:
            return
    bracket = "(" if low_open else "["
    upper = "infinity)" if high == math.inf else f"{high:g}]"
    raise OptionError(f"{name} must be a number in {bracket}{low:g}, {upper}, got {value!r}")


def _check_integer(name: str, value: object, low: int, high: int | None = None) -> None:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if is_whole and low <= value and (high is None or value <= high):  # type: ignore[operator]
        return
    limit = f"of at least {low}" if high is None else f"from {low} to {high}"
    raise OptionError(f"{name} must be a whole number {limit}, got {value!r}")
