"""POST /v1/chat/completions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from outpace.engine.request import RequestGroup
from outpace.models.tokenizer import Tokenizer
from outpace.outputs import CompletionOutput, Event, Logprob, RequestOutput
from outpace.serving.answers import Envelope, events_of, finished, prepared, run_to_end
from outpace.serving.body import read_json
from outpace.serving.logprobs import chat_logprobs, prompt_logprobs
from outpace.serving.models import ServedModel, served_model
from outpace.serving.progress import StepLog, TokenTexts
from outpace.serving.protocol.chat import ChatRequest, Message, NamedToolChoice, Tool
from outpace.serving.protocol.parse import parse
from outpace.serving.protocol.schema import ERRORS, STREAMED, request_body
from outpace.serving.sampling import chat_params
from outpace.serving.service import Service, api_key_of, service_of
from outpace.serving.sse import EventStreamResponse, while_connected
from outpace.serving.tools import ToolSetup

router = APIRouter(tags=["completions"])


@router.post(
    "/v1/chat/completions",
    openapi_extra=request_body(ChatRequest),
    responses=STREAMED | ERRORS,
)
async def create_chat_completion(request: Request) -> Response:
    """Answer a conversation."""
    service = service_of(request)
    body = parse(ChatRequest, await read_json(request))
    served = served_model(service)
    served.check_name(body.model)
    tools = _tools(service, body)
    defaults = service.llm.get_default_sampling_params()
    params = chat_params(body, defaults, service.settings, tools)
    prompt = await _prompt(service, body, tools)
    group = await prepared(service, body, prompt, params, api_key_of(request))
    reply = ChatReply(service, served, body, group, tools)
    if body.stream:
        return EventStreamResponse(reply.chunks(), send_timeout_s=service.settings.send_timeout_s)
    return await while_connected(request, reply.whole())


def _tools(service: Service, body: ChatRequest) -> ToolSetup | None:
    choice = body.tool_choice
    return ToolSetup.from_request(
        as_plain_tools(body.tools),
        choice.model_dump() if isinstance(choice, NamedToolChoice) else choice,
        body.parallel_tool_calls,
        service.llm.tokenizer,
        service.settings.max_schema_bytes,
    )


async def _prompt(service: Service, body: ChatRequest, tools: ToolSetup | None) -> dict[str, Any]:
    """The prompt as `LLM.prepare` takes it."""
    messages = [as_plain(message) for message in body.messages]
    shown = None if tools is None else tools.tools_for_prompt
    if body.add_generation_prompt is False:
        ids = await asyncio.to_thread(
            conversation_ids,
            service.llm.tokenizer,
            messages,
            add_generation_prompt=False,
            tools=shown,
        )
        return {"prompt_token_ids": ids}
    return {"messages": messages} | ({} if shown is None else {"tools": shown})


def as_plain(message: Message) -> dict[str, Any]:
    """A message as chat templates take it, whose word for OpenAI's developer is system."""
    plain = message.model_dump(exclude_none=True)
    if plain["role"] == "developer":
        plain["role"] = "system"
    return plain


def as_plain_tools(tools: Sequence[Tool] | None) -> list[dict[str, Any]] | None:
    """Tools as chat templates take them."""
    return None if tools is None else [tool.model_dump(exclude_none=True) for tool in tools]


def conversation_ids(
    tokenizer: Tokenizer,
    messages: list[dict[str, Any]],
    *,
    add_generation_prompt: bool = True,
    add_special_tokens: bool = False,
    tools: list[dict[str, Any]] | None = None,
) -> list[int]:
    """Token ids of a conversation. Raises OptionError for what the chat template refuses."""
    text = tokenizer.apply_chat_template(messages, add_generation_prompt, tools)
    return tokenizer.encode(text, add_special_tokens=add_special_tokens)


class ChatReply:
    """The answers to one conversation, whole or as a stream."""

    def __init__(
        self,
        service: Service,
        served: ServedModel,
        body: ChatRequest,
        group: RequestGroup,
        tools: ToolSetup | None,
    ) -> None:
        self._service = service
        self._served = served
        self._body = body
        self._group = group
        self._tools = tools
        self._envelope = Envelope(
            body, served, "chatcmpl", "chat.completion", "chat.completion.chunk"
        )

    async def whole(self) -> Response:
        """The response. Raises ApiError if the answers cannot be given."""
        [output] = await run_to_end(self._service, [self._group])
        # Log-probabilities of a long answer are much to write.
        return await asyncio.to_thread(self._response, output)

    def _response(self, output: RequestOutput) -> Response:
        more: dict[str, Any] = {}
        if output.prompt_logprobs is not None:
            more["prompt_logprobs"] = prompt_logprobs(
                output.prompt_token_ids, output.prompt_logprobs, self._body.prompt_logprobs or 0
            )
        if self._body.return_token_ids:
            more["prompt_token_ids"] = output.prompt_token_ids
        choices = [self._choice(answer) for answer in output.outputs]
        return JSONResponse(self._envelope.response(choices, [self._group], **more))

    def _choice(self, answer: CompletionOutput) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None}
        reason = finished(answer.finish_reason)
        if self._tools is not None:
            message["content"], calls = self._tools.whole(answer.text)
            reason = self._tools.finish_reason(reason, len(calls))
            if calls:
                message["tool_calls"] = calls
        choice: dict[str, Any] = {
            "index": answer.index,
            "message": message,
            "logprobs": self._logprobs(answer.token_ids, answer.logprobs),
            "finish_reason": reason,
            "stop_reason": answer.stop_reason,
        }
        if self._body.return_token_ids:
            choice["token_ids"] = answer.token_ids
        return choice

    def _logprobs(
        self, token_ids: Sequence[int], logprobs: Sequence[Mapping[int, Logprob]] | None
    ) -> dict[str, Any] | None:
        if not self._body.logprobs:
            return None
        return chat_logprobs(
            token_ids, logprobs or (), self._body.top_logprobs or 0, self._served.token_bytes
        )

    async def chunks(self) -> AsyncGenerator[dict[str, Any], None]:
        """The response in parts."""
        envelope = self._envelope
        more: dict[str, Any] = {}
        if self._body.return_token_ids:
            more["prompt_token_ids"] = self._group.output().prompt_token_ids
        async with self._service.running([self._group]) as streams:
            choices = [
                _StreamedChoice(self._service, self._body, self._tools, index, envelope.has_steps)
                for index in range(len(self._group.requests))
            ]
            for choice in choices:
                yield envelope.chunk(choice.part({"role": "assistant", "content": ""}), **more)
                more = {}
            async for _, event in events_of(streams):
                for part in self._parts(choices[event.index], event):
                    yield envelope.chunk(part)
        if envelope.has_usage:
            yield envelope.usage([self._group])

    def _parts(self, choice: _StreamedChoice, event: Event) -> Iterator[dict[str, Any]]:
        """What an event adds to its choice; its end comes by itself."""
        deltas = choice.deltas(event)
        has_more = self._body.logprobs or self._body.return_token_ids or self._envelope.has_steps
        if not deltas and event.token_ids and has_more:
            deltas = [{}] if self._tools is not None else [{"content": ""}]
        for place, delta in enumerate(deltas):
            part = choice.part(delta)
            # Of several parts the first has the tokens: which of them made which is not known.
            if place == 0:
                part["logprobs"] = self._logprobs(event.token_ids, event.logprobs)
                part |= choice.tokens(event)
            yield part
        if event.finish_reason is not None:
            yield choice.part({}) | {
                "finish_reason": choice.finish_reason(event),
                "stop_reason": self._group.requests[event.index].fold.stop_reason,
            }


class _StreamedChoice:
    """One choice of a stream: what has been sent of it."""

    def __init__(
        self,
        service: Service,
        body: ChatRequest,
        tools: ToolSetup | None,
        index: int,
        has_steps: bool,
    ) -> None:
        tokenizer = service.llm.tokenizer
        self._body = body
        self._index = index
        self._tools = tools
        self._parser = None if tools is None else tools.parser()
        self._texts = TokenTexts(tokenizer, body.skip_special_tokens is not False)
        self._steps = StepLog(tokenizer) if has_steps else None

    def part(self, delta: dict[str, Any]) -> dict[str, Any]:
        """A part with nothing but a delta."""
        part = {"index": self._index, "delta": delta, "logprobs": None, "finish_reason": None}
        return part if self._steps is None else part | {"steps": []}

    def deltas(self, event: Event) -> list[dict[str, Any]]:
        """What an event's text adds to the message."""
        if self._parser is None:
            return [{"content": event.text}] if event.text else []
        found = self._parser.feed(event.text)
        if event.finish_reason is not None:
            found += self._parser.finish()
        return [one.as_delta() for one in found]

    def tokens(self, event: Event) -> dict[str, Any]:
        """What a part says of an event's tokens, where that was asked for."""
        fields: dict[str, Any] = {}
        if self._body.return_token_ids:
            fields["token_ids"] = list(event.token_ids)
        if self._steps is not None:
            pieces = self._texts.push(event.token_ids, is_last=event.finish_reason is not None)
            fields["steps"] = [self._steps.entry(event, pieces)]
        return fields

    def finish_reason(self, event: Event) -> str | None:
        """Of the choice that this event ends."""
        if self._tools is None or self._parser is None:
            return event.finish_reason
        return self._tools.finish_reason(event.finish_reason, self._parser.num_calls)
