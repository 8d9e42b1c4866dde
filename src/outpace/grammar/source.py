"""What is asked for, as the text that llguidance compiles, and why it cannot be."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from outpace.errors import OptionError
from outpace.params import StructuredOutputsParams

MAX_BYTES = {
    "json": 128 * 1024,
    "regex": 8 * 1024,
    "choice": 128 * 1024,
    "grammar": 16 * 1024,
}
"""Most bytes of each kind of source. Expressions that are built to be hard take seconds and a GB
from about 30 kB on."""
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
            schema = json.loads(schema)
        if not isinstance(schema, Mapping):
            raise unusable("json", f"a schema is a JSON object, got {schema!r:.80}")
        return json.dumps(dict(schema), ensure_ascii=False, allow_nan=False)
    except RecursionError:
        raise unusable("json", "it is nested too deeply") from None
    except (ValueError, TypeError) as error:
        if isinstance(error, OptionError):
            raise
        raise unusable("json", f"it is no JSON ({error})") from None


def to_llguidance(asked: StructuredOutputsParams, source: str) -> str:
    """What llguidance compiles, from a source in another notation."""
    from llguidance import LLMatcher
    from llguidance.gbnf_to_lark import any_to_lark

    if asked.kind == "regex":
        return LLMatcher.grammar_from_regex(source)
    if asked.kind == "grammar":
        return LLMatcher.grammar_from_lark(any_to_lark(source))
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
