"""The bodies of POST /tokenize and /detokenize, as in vLLM."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from outpace.serving.protocol.chat import Message, Tool
from outpace.serving.protocol.common import Body, TokenId, refused


class TokenizeRequest(Body):
    """A prompt, or messages to be put through the chat template, but not both.

    add_special_tokens: put the model's beginning token before a prompt (default: true) or before
    what the template wrote (default: false, because templates write it themselves).
    return_token_strs: say each token's text as well.
    """

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    tools: list[Tool] | None = None
    add_generation_prompt: bool | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None

    continue_final_message: Annotated[None, refused("give a prompt instead", False)] = None
    chat_template: Annotated[None, refused("the model's own is used")] = None
    chat_template_kwargs: Annotated[None, refused("the model's own template is used", {})] = None
    mm_processor_kwargs: Annotated[None, refused("nothing but text is taken")] = None

    @model_validator(mode="before")
    @classmethod
    def _one_of_two(cls, data: Any) -> Any:
        if isinstance(data, dict):
            given = [name for name in ("prompt", "messages") if data.get(name) is not None]
            if len(given) != 1:
                raise PydanticCustomError("one_of_two", "give either prompt or messages")
        return data


class DetokenizeRequest(Body):
    model: str | None = None
    tokens: list[TokenId]
