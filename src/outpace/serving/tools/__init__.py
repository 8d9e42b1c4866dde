"""Tools in requests and answers: `tools`, `tool_choice` and calls in OpenAI's shape."""

from outpace.serving.tools.events import ArgumentsDelta, ContentDelta, ToolCallStart, ToolEvent
from outpace.serving.tools.parser import ToolParser
from outpace.serving.tools.setup import ToolSetup

__all__ = [
    "ArgumentsDelta",
    "ContentDelta",
    "ToolCallStart",
    "ToolEvent",
    "ToolParser",
    "ToolSetup",
]
