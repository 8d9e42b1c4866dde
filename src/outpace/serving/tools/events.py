"""What a parser makes of an answer's text, piece by piece."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """More of what was said. Never empty."""

    text: str

    def as_delta(self) -> dict[str, Any]:
        """Its part of the `delta` of a streamed chunk."""
        return {"content": self.text}


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """A call begins: its place among the answer's calls, its id and the function's name."""

    index: int
    id: str
    name: str

    def as_delta(self) -> dict[str, Any]:
        """Its part of the `delta` of a streamed chunk."""
        function = {"name": self.name, "arguments": ""}
        call = {"index": self.index, "id": self.id, "type": "function", "function": function}
        return {"tool_calls": [call]}


@dataclass(frozen=True, slots=True)
class ArgumentsDelta:
    """More of the JSON text of a call's arguments. Never empty."""

    index: int
    text: str

    def as_delta(self) -> dict[str, Any]:
        """Its part of the `delta` of a streamed chunk."""
        return {"tool_calls": [{"index": self.index, "function": {"arguments": self.text}}]}


ToolEvent = ContentDelta | ToolCallStart | ArgumentsDelta
