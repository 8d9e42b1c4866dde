"""POST /v1/completions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from outpace.engine.request import RequestGroup
from outpace.models.tokenizer import Tokenizer
from outpace.outputs import CompletionOutput, Event, Logprob, RequestOutput
from outpace.params import SamplingParams
from outpace.serving.answers import Envelope, events_of, finished, prepared, run_to_end
from outpace.serving.body import read_json
from outpace.serving.logprobs import completion_logprobs, prompt_logprobs
from outpace.serving.models import ServedModel, served_model
from outpace.serving.progress import Piece, StepLog, TokenTexts
from outpace.serving.protocol.completions import CompletionRequest
from outpace.serving.protocol.parse import parse
from outpace.serving.protocol.schema import ERRORS, STREAMED, request_body
from outpace.serving.sampling import completion_params
from outpace.serving.service import RunningStream, Service, api_key_of, service_of
from outpace.serving.sse import EventStreamResponse, while_connected

router = APIRouter(tags=["completions"])


@router.post(
    "/v1/completions",
    openapi_extra=request_body(CompletionRequest),
    responses=STREAMED | ERRORS,
)
async def create_completion(request: Request) -> Response:
    """Continue one prompt or several, which run together."""
    service = service_of(request)
    body = parse(CompletionRequest, await read_json(request))
    served = served_model(service)
    served.check_name(body.model)
    params = completion_params(body, service.llm.get_default_sampling_params(), service.settings)
    groups = await _prepared(service, body, params, api_key_of(request))
    reply = CompletionReply(service, served, body, groups)
    if body.stream:
        return EventStreamResponse(reply.chunks(), send_timeout_s=service.settings.send_timeout_s)
    return await while_connected(request, reply.whole())


async def _prepared(
    service: Service, body: CompletionRequest, params: SamplingParams, api_key: str | None
) -> list[RequestGroup]:
    """All prompts, checked; one that cannot be honoured refuses the whole request."""
    service.admission.check(len(body.prompts) * params.n)
    groups = []
    for given in body.prompts:
        key = "prompt" if isinstance(given, str) else "prompt_token_ids"
        groups.append(await prepared(service, body, {key: given}, params, api_key))
    return groups


class _Echo:
    """A prompt as the beginning of its answers: its text and, if asked for, its tokens."""

    def __init__(self, service: Service, group: RequestGroup) -> None:
        tokenizer = service.llm.tokenizer
        output = group.output()
        self.token_ids = output.prompt_token_ids
        self.first_text = tokenizer.token_text(self.token_ids[0])
        given = output.prompt
        self.text: str = (
            tokenizer.decode(self.token_ids, skip_special_tokens=False) if given is None else given
        )
        # The beginning token that the tokenizer puts before a text is not in it.
        is_added = self.token_ids[0] == tokenizer.bos_id and not self.text.startswith(
            self.first_text
        )
        texts = TokenTexts(tokenizer, skip_special_tokens=False)
        pieces = texts.push(self.token_ids[is_added:], is_last=True)
        self.offsets = [0] * is_added + [piece.offset for piece in pieces]


class CompletionReply:
    """The answers to the prompts of one request, whole or as a stream.

    Answer i to prompt p of a request for n each has the index p * n + i.
    """

    def __init__(
        self,
        service: Service,
        served: ServedModel,
        body: CompletionRequest,
        groups: list[RequestGroup],
    ) -> None:
        self._service = service
        self._served = served
        self._body = body
        self._groups = groups
        self._n = len(groups[0].requests)
        self._envelope = Envelope(body, served, "cmpl", "text_completion", "text_completion")
        self._skip_special = body.skip_special_tokens is not False

    async def whole(self) -> Response:
        """The response. Raises ApiError if the answers cannot be given."""
        outputs = await run_to_end(self._service, self._groups)
        # Log-probabilities of long answers are much to write.
        return await asyncio.to_thread(self._response, outputs)

    def _response(self, outputs: list[RequestOutput]) -> Response:
        choices: list[dict[str, Any]] = []
        for output, echo in zip(outputs, self._echoes(), strict=True):
            for answer in output.outputs:
                index = len(choices)
                choices.append({"index": index} | self._choice(output, answer, echo))
        return JSONResponse(self._envelope.response(choices, self._groups))

    def _echoes(self) -> list[_Echo | None]:
        """Each prompt as the beginning of its answers, if that was asked for."""
        if not self._body.echo:
            return [None] * len(self._groups)
        return [_Echo(self._service, group) for group in self._groups]

    def _choice(
        self, output: RequestOutput, answer: CompletionOutput, echo: _Echo | None
    ) -> dict[str, Any]:
        start = "" if echo is None else echo.text
        pieces: list[Piece] = []
        if self._body.logprobs is not None:
            texts = TokenTexts(self._service.llm.tokenizer, self._skip_special, len(start))
            pieces = texts.push(answer.token_ids, is_last=True)
        offsets = [piece.offset for piece in pieces]
        logprobs = self._logprobs(
            answer.token_ids, answer.logprobs, offsets, echo, output.prompt_logprobs
        )
        choice: dict[str, Any] = {
            "text": start + answer.text,
            "logprobs": logprobs,
            "finish_reason": finished(answer.finish_reason),
            "stop_reason": answer.stop_reason,
        }
        if self._body.prompt_logprobs is not None and output.prompt_logprobs is not None:
            choice["prompt_logprobs"] = prompt_logprobs(
                output.prompt_token_ids, output.prompt_logprobs, self._body.prompt_logprobs
            )
        if self._body.return_token_ids:
            choice["prompt_token_ids"] = output.prompt_token_ids
            choice["token_ids"] = answer.token_ids
        return choice

    def _logprobs(
        self,
        token_ids: Sequence[int],
        logprobs: Sequence[Mapping[int, Logprob]] | None,
        offsets: Sequence[int],
        echo: _Echo | None = None,
        of_prompt: Sequence[Mapping[int, Logprob] | None] | None = None,
    ) -> dict[str, Any] | None:
        num_top = self._body.logprobs
        if num_top is None:
            return None
        places: list[Mapping[int, Logprob] | None] = list(logprobs or ())
        first_text = ""
        if echo is not None:
            token_ids = [*echo.token_ids, *token_ids]
            places = [*(of_prompt or ()), *places]
            offsets = [*echo.offsets, *offsets]
            first_text = echo.first_text
        return completion_logprobs(
            token_ids, places, offsets, num_top, self._served.token_bytes, first_text
        )

    async def chunks(self) -> AsyncGenerator[dict[str, Any], None]:
        """The response in parts."""
        envelope = self._envelope
        echoes = await asyncio.to_thread(self._echoes)
        tokenizer = self._service.llm.tokenizer
        async with self._service.running(self._groups) as streams:
            choices = [
                _StreamedChoice(tokenizer, self._body, group, echo, envelope.has_steps)
                for group, echo in zip(self._groups, echoes, strict=True)
                for _ in range(self._n)
            ]
            async for position, event in _once_scored(streams):
                index = position * self._n + event.index
                choice = choices[index]
                if not choice.is_begun:
                    part = await asyncio.to_thread(self._first_part, choice)
                    if part is not None:
                        yield envelope.chunk({"index": index} | part)
                for part in self._parts(choice, event):
                    yield envelope.chunk({"index": index} | part)
        if envelope.has_usage:
            yield envelope.usage(self._groups)

    def _first_part(self, choice: _StreamedChoice) -> dict[str, Any] | None:
        part = choice.begin()
        if part is not None and choice.echo is not None:
            scored = choice.group.requests[0].prompt_logprobs
            part["logprobs"] = self._logprobs((), (), (), choice.echo, scored)
        return part

    def _parts(self, choice: _StreamedChoice, event: Event) -> Iterator[dict[str, Any]]:
        """What an event adds to its choice; its end comes by itself."""
        part = choice.go_on(event)
        if part is not None:
            part["logprobs"] = self._logprobs(event.token_ids, event.logprobs, choice.offsets)
            yield part
        if event.finish_reason is not None:
            yield choice.part("") | {
                "finish_reason": event.finish_reason,
                "stop_reason": choice.group.requests[event.index].fold.stop_reason,
            }


class _StreamedChoice:
    """One choice of a stream: what has been sent of it."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        body: CompletionRequest,
        group: RequestGroup,
        echo: _Echo | None,
        has_steps: bool,
    ) -> None:
        self.group = group
        self.echo = echo
        self.offsets: list[int] = []
        self.is_begun = False
        self._body = body
        start = 0 if echo is None else len(echo.text)
        self._texts = TokenTexts(tokenizer, body.skip_special_tokens is not False, start)
        self._steps = StepLog(tokenizer) if has_steps else None

    def begin(self) -> dict[str, Any] | None:
        """The part before all others, if there is one: the prompt."""
        self.is_begun = True
        if self.echo is None and not self._body.return_token_ids:
            return None
        part = self.part("" if self.echo is None else self.echo.text)
        if self._body.return_token_ids:
            part |= {"prompt_token_ids": self.group.output().prompt_token_ids, "token_ids": []}
        return part

    def go_on(self, event: Event) -> dict[str, Any] | None:
        """The part that an event makes. Without text there is one only where somebody asked for
        more than text. `offsets` are then those of its tokens."""
        has_logprobs = self._body.logprobs is not None
        has_more = has_logprobs or self._body.return_token_ids or self._steps
        if not event.text and not (event.token_ids and has_more):
            return None
        part = self.part(event.text)
        if has_logprobs or self._steps:
            pieces = self._texts.push(event.token_ids, is_last=event.finish_reason is not None)
            self.offsets = [piece.offset for piece in pieces]
            if self._steps:
                part["steps"] = [self._steps.entry(event, pieces)]
        if self._body.return_token_ids:
            part["token_ids"] = list(event.token_ids)
        return part

    def part(self, text: str) -> dict[str, Any]:
        """A part with nothing but text."""
        part: dict[str, Any] = {"text": text, "logprobs": None, "finish_reason": None}
        return part if self._steps is None else part | {"steps": []}


async def _once_scored(streams: Sequence[RunningStream]) -> AsyncIterator[tuple[int, Event]]:
    """The events of several prompts, those of one from when all its log-probabilities are there:
    of answers without a token only the first waits for them."""
    waiting: list[list[Event]] = [[] for _ in streams]
    async for position, event in events_of(streams):
        waiting[position].append(event)
        if not streams[position].group.requests[0].is_scoring_prompt:
            ready, waiting[position] = waiting[position], []
            for one in ready:
                yield position, one
