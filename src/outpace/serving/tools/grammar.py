"""The grammar of an answer that may say anything, but calls functions only as it should.

In Lark's syntax as llguidance extends it: `%json` takes a schema, `<[7]>` is the token with id 7,
and a lazy rule ends at the first place where it can, which keeps the mark out of the text before.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from outpace.serving.tools.schema import one_call_schema
from outpace.serving.tools.syntax import Syntax

# At most one space between the parts of a call; an endless run of them would never end the answer.
_SPACING = {"whitespace_flexible": True, "whitespace_pattern": " ?"}
_ANY_TEXT = r"/(.|\n)*/"
# Where a call may begin the answer, other text begins otherwise.
_NO_CALL = r"/([ \t\r\n]*[^ \t\r\n{](.|\n)*)?/"


def answer_grammar(
    functions: Sequence[dict[str, Any]], syntax: Syntax, vocab: Mapping[str, int], only_one: bool
) -> str:
    """A grammar: text, and calls of these functions, those of strict ones with valid arguments.

    vocab: the ids of the tokens. A mark that is a token may come as that, or spelled.
    only_one: there is one call at most, and it ends the answer.
    """
    schema = one_call_schema(functions, syntax.arguments_key) | {"x-guidance": _SPACING}
    start = "TEXT | called" if only_one else "called* TEXT"
    lines = [
        "%llguidance {}",
        f"start: {'calls | ' if syntax.is_bare else ''}{start}",
        "called: opened calls",
        "opened: opened_by_text" + (" | opened_by_token" if syntax.opener in vocab else ""),
        f"opened_by_text[lazy]: TEXT {json.dumps(syntax.opener)}",
        f"calls: {_calls(syntax, vocab, only_one)}",
        f"call: %json {json.dumps(schema, ensure_ascii=False)}",
        f"TEXT: {_NO_CALL if syntax.is_bare else _ANY_TEXT}",
    ]
    if syntax.opener in vocab:
        lines.append(f"opened_by_token: TEXT <[{vocab[syntax.opener]}]>")
    return "\n".join(lines)


def _calls(syntax: Syntax, vocab: Mapping[str, int], only_one: bool) -> str:
    """What follows an opener, or begins the answer."""
    if syntax.is_list:
        return '"[" call "]"' if only_one else '"[" call (", " call)* "]"'
    if syntax.is_bare:
        return "call" if only_one else 'call ("; " call)*'
    closer = json.dumps(syntax.closer)
    if syntax.closer in vocab:
        closer = f"({closer} | <[{vocab[syntax.closer]}]>)"
    return rf"/\n?/ call /\n?/ {closer}"
