"""What is asked for, as the text that llguidance compiles, and why it cannot be."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from outpace.errors import OptionError
from outpace.grammar.special import names_as_ids
from outpace.params import StructuredOutputsParams
from outpace.strict_json import without_duplicates

MAX_BYTES = {
    "json": 128 * 1024,
    "regex": 8 * 1024,
    "choice": 128 * 1024,
    "grammar": 16 * 1024,
}
"""Most bytes of each kind of source. Expressions that are built to be hard take seconds and a GB
from about 30 kB on."""
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_KEPT = ("const", "enum", *_BOUNDS)
_LIMITS = (2**63 - 1, 2**64 - 1)
"""Bounds of common types, which the library takes for the largest number that it knows."""
MAX_REASON = 300
"""Characters of the library's explanations that are passed on."""


def source_of(asked: StructuredOutputsParams) -> str:
    """The text that is compiled, the same for equal requests. Raises OptionError where it is no
    JSON, or too long."""
    source: str
    if asked.kind == "json":
        source = _schema_text(asked.json)
    elif asked.kind == "json_object":
        return '{"type": "object"}'
    elif asked.kind == "choice":
        source = json.dumps(asked.choice, ensure_ascii=False)
    else:
        source = str(getattr(asked, asked.kind))
    try:
        num_bytes = len(source.encode())
    except UnicodeEncodeError:
        raise unusable(asked.kind, "it holds a lone surrogate, which is no valid text") from None
    if num_bytes > MAX_BYTES[asked.kind]:
        raise unusable(
            asked.kind, f"it has {num_bytes} bytes, more than {MAX_BYTES[asked.kind]}; shorten it"
        )
    return source


def _schema_text(schema: str | Mapping[str, Any] | None) -> str:
    try:
        if isinstance(schema, str):
            if len(schema) > MAX_BYTES["json"]:
                return schema  # refused for its length, without being read
            schema = json.loads(schema, object_pairs_hook=without_duplicates)
        if not isinstance(schema, Mapping):
            raise unusable("json", f"a schema is a JSON object, got {schema!r:.80}")
        _check_numbers(schema)
        return json.dumps(dict(schema), ensure_ascii=False, allow_nan=False)
    except RecursionError:
        raise unusable("json", "it is nested too deeply") from None
    except (ValueError, TypeError) as error:
        if isinstance(error, OptionError):
            raise
        raise unusable("json", f"it is no JSON ({error})") from None


def _check_numbers(schema: Any, *, is_kept: bool = False) -> None:
    """Raise OptionError for a whole number that the library, whose numbers are doubles, would write
    as another one. is_kept: the value is part of what an answer must equal or keep to."""
    if isinstance(schema, Mapping):
        for key, value in schema.items():
            if not (key in _BOUNDS and value in _LIMITS):
                _check_numbers(value, is_kept=is_kept or key in _KEPT)
    elif isinstance(schema, list | tuple):
        for value in schema:
            _check_numbers(value, is_kept=is_kept)
    elif is_kept and isinstance(schema, int) and not _is_double(schema):
        raise unusable(
            "json", f"the number {schema!s:.40} has more digits than can be kept (2**53 is safe)"
        )


def _is_double(number: int) -> bool:
    try:
        return float(number) == number
    except OverflowError:
        return False


def to_llguidance(
    asked: StructuredOutputsParams, source: str, special: Mapping[str, int] | None = None
) -> str:
    """What llguidance compiles, from a source in another notation. special: the ids of the special
    tokens, which a grammar may name."""
    from llguidance import LLMatcher
    from llguidance.gbnf_to_lark import any_to_lark

    if asked.kind == "regex":
        return LLMatcher.grammar_from_regex(source)
    if asked.kind == "grammar":
        return LLMatcher.grammar_from_lark(names_as_ids(any_to_lark(source), special or {}))
    if asked.kind == "choice":
        texts = [json.dumps(text, ensure_ascii=False) for text in asked.choice or ()]
        return LLMatcher.grammar_from_lark("start: " + " | ".join(texts))
    # Keywords of a schema that it does not know how to keep are refused, not passed over.
    overrides: dict[str, Any] = {"lenient": False}
    if asked.disable_any_whitespace:
        overrides["whitespace_flexible"] = False
    return LLMatcher.grammar_from_json_schema(source, overrides=overrides)  # type: ignore[arg-type]


def unusable(kind: str, reason: str) -> OptionError:
    return OptionError(f"structured_outputs: this {kind} cannot be used: {readable(reason)}")


def readable(reason: str) -> str:
    """The library's message on one line, without the lines that quote what was given."""
    lines = [line.strip() for line in reason.replace("<non-verbose/>", "").splitlines()]
    text = " ".join(line for line in lines if line)
    return text if len(text) <= MAX_REASON else f"{text[:MAX_REASON]}..."
