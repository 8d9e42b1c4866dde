"""HTML that is known to be safe to put into a page."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape as escape_text

# Characters that no document may hold: controls but tab and line end, and halves of pairs, which
# could not even be encoded.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f]")
_UNWRITABLE = re.compile("[\x80-\x9f\ud800-\udfff\ufffe\uffff]")


class Html(str):
    """Markup, as opposed to text. What comes from outside becomes Html through `escape` only."""

    __slots__ = ()


def escape(text: object) -> Html:
    """`text` as markup that shows it, in element content and in quoted attributes. Control
    characters become their pictures (U+2400 and up)."""
    pictured = _CONTROLS.sub(
        lambda found: "\u2421" if found[0] == "\x7f" else chr(0x2400 + ord(found[0])), str(text)
    )
    return Html(escape_text(_UNWRITABLE.sub("\ufffd", pictured), quote=True))


def join(parts: Iterable[Html], separator: str = "") -> Html:
    """Several pieces of markup as one."""
    return Html(separator.join(parts))


def element(name: str, *content: Html, **attributes: object) -> Html:
    """`<name ...>content</name>`. Attribute values are escaped; those that are None are left out;
    a trailing underscore of a name is dropped (`class_`) and other underscores become hyphens."""
    said = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Html(f"<{name}{said}>{''.join(content)}</{name}>")
