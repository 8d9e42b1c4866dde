"""The body of POST /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from outpace.serving.protocol.common import Body, GenerationRequest, refused

_ELSEWHERE = "nothing but text is taken, and nothing is fetched"


class TextPart(Body):
    type: Literal["text"]
    text: str


def _kind_of_content(value: Any) -> str:
    return "parts" if isinstance(value, list) else "text"


def _refuse_other_media(value: Any) -> Any:
    for part in value if isinstance(value, list) else ():
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(kind, str) and kind != "text":
            raise PydanticCustomError(
                "refused",
                "is not supported with a part of type {kind}: " + _ELSEWHERE,
                {"kind": repr(kind[:40])},
            )
    return value


Content = Annotated[
    Annotated[
        Annotated[str, Tag("text")] | Annotated[list[TextPart], Tag("parts")],
        Discriminator(_kind_of_content),
    ],
    BeforeValidator(_refuse_other_media),
]
Name = Annotated[
    None, refused("chat templates do not know it; write the name into the content", "")
]


class FunctionCall(Body):
    """arguments: JSON text, as the model wrote it."""

    name: str
    arguments: str


class ToolCall(Body):
    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class InstructionMessage(Body):
    """developer is OpenAI's newer name for system; templates get the older one."""

    role: Literal["system", "developer"]
    content: Content
    name: Name = None


class UserMessage(Body):
    role: Literal["user"]
    content: Content
    name: Name = None


class AssistantMessage(Body):
    """An earlier answer. content may be null only beside tool_calls."""

    role: Literal["assistant"]
    content: Content | None = None
    tool_calls: list[ToolCall] | None = None
    name: Name = None
    refusal: Annotated[None, refused("models here do not mark refusals")] = None
    annotations: Annotated[None, refused("there are none here", [])] = None
    audio: Annotated[None, refused(_ELSEWHERE)] = None
    function_call: Annotated[None, refused("use tool_calls")] = None
    reasoning_content: Annotated[None, refused("write it into the content", "")] = None


class ToolMessage(Body):
    """What a tool answered to the call with the id tool_call_id."""

    role: Literal["tool"]
    content: Content
    tool_call_id: str


Message = Annotated[
    InstructionMessage | UserMessage | AssistantMessage | ToolMessage,
    Field(discriminator="role"),
]


class FunctionDefinition(Body):
    """parameters: a JSON schema; none: the function takes no arguments. strict: calls whose
    arguments must satisfy the schema."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Body):
    type: Literal["function"]
    function: FunctionDefinition


class NamedFunction(Body):
    name: str


class NamedToolChoice(Body):
    type: Literal["function"]
    function: NamedFunction


def _kind_of_choice(value: Any) -> str:
    return "word" if isinstance(value, str) else "named"


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("word")]
    | Annotated[NamedToolChoice, Tag("named")],
    Discriminator(_kind_of_choice),
]


class ChatRequest(GenerationRequest):
    """max_completion_tokens and max_tokens are the same; without either an answer may go on to the
    end of the context. logprobs: whether to report them, with the top_logprobs most probable
    tokens at each place. add_generation_prompt: whether the prompt ends with the beginning of an
    answer, as it does if nothing is said."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    add_generation_prompt: bool | None = None

    modalities: Annotated[None, refused("answers are text", ["text"])] = None
    audio: Annotated[None, refused("answers are text")] = None
    prediction: Annotated[
        None, refused("drafts are made here; see speculative_config for the methods")
    ] = None
    functions: Annotated[None, refused("use tools")] = None
    function_call: Annotated[None, refused("use tool_choice")] = None
    reasoning_effort: Annotated[None, refused("the model does not reason apart", "none")] = None
    verbosity: Annotated[None, refused("say in the messages how long to answer")] = None
    web_search_options: Annotated[None, refused("nothing is fetched")] = None
    echo: Annotated[None, refused("the messages are not repeated", False)] = None
    add_special_tokens: Annotated[None, refused("the chat template writes them", False)] = None
    continue_final_message: Annotated[None, refused("use /v1/completions", False)] = None
    chat_template: Annotated[None, refused("the model's own is used")] = None
    chat_template_kwargs: Annotated[None, refused("the model's own template is used", {})] = None
    documents: Annotated[None, refused("write them into the messages", [])] = None
    include_reasoning: Annotated[None, refused("the model does not reason apart", True)] = None
    mm_processor_kwargs: Annotated[None, refused(_ELSEWHERE)] = None
