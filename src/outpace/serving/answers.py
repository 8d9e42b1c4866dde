"""What both kinds of endpoint do with an answer: run it, wrap it, tell how it came about."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from outpace.engine.request import RequestGroup
from outpace.outputs import Event, RequestOutput
from outpace.params import SamplingParams
from outpace.serving.errors import ApiError, server_error
from outpace.serving.models import ServedModel
from outpace.serving.protocol.common import GenerationRequest
from outpace.serving.sampling import speculation, with_param
from outpace.serving.service import RunningStream, Service, merged
from outpace.serving.usage import usage_of


@dataclass(slots=True)
class Envelope:
    """What every response and every chunk of a stream says besides its choices.

    kind: "chatcmpl" or "cmpl". whole, part: the `object` of a response and of a chunk.
    """

    body: GenerationRequest
    served: ServedModel
    kind: str
    whole: str
    part: str
    id: str = ""
    created: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        self.id = f"{self.kind}-{uuid.uuid4().hex}"

    @property
    def has_usage(self) -> bool:
        """Whether a stream is to end with its usage."""
        options = self.body.stream_options
        return bool(options is not None and options.include_usage)

    @property
    def has_steps(self) -> bool:
        """Whether a stream is to tell of the engine's steps."""
        options = self.body.stream_options
        return bool(options is not None and options.include_steps)

    def response(
        self, choices: list[dict[str, Any]], groups: Sequence[RequestGroup], **more: Any
    ) -> dict[str, Any]:
        """The whole answer, with its usage."""
        return self._wrapped(self.whole, choices) | {"usage": usage_of(groups)} | more

    def chunk(self, choice: dict[str, Any], **more: Any) -> dict[str, Any]:
        """One choice's part of a stream."""
        usage = {"usage": None} if self.has_usage else {}
        return self._wrapped(self.part, [choice]) | usage | more

    def usage(self, groups: Sequence[RequestGroup]) -> dict[str, Any]:
        """The last chunk of a stream that was asked for its usage."""
        return self._wrapped(self.part, []) | {"usage": usage_of(groups)}

    def _wrapped(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.body.model,
            "system_fingerprint": self.served.fingerprint,
            "choices": choices,
        }


async def prepared(
    service: Service,
    body: GenerationRequest,
    prompt: Mapping[str, Any],
    params: SamplingParams,
    api_key: str | None,
) -> RequestGroup:
    """One prompt of a request, checked. Raises ApiError that names the field at fault."""
    salt = {} if body.cache_salt is None else {"cache_salt": body.cache_salt}
    try:
        return await service.prepare({**prompt, **salt}, params, speculation(body), api_key=api_key)
    except ApiError as error:
        raise with_param(error, body) from error


async def run_to_end(service: Service, groups: Sequence[RequestGroup]) -> list[RequestOutput]:
    """Run prompts together until all their answers have ended.

    Raises ApiError for what ends them otherwise than by a stop or their length.
    """
    async with service.running(groups) as streams:
        async for _ in events_of(streams):
            pass
    return [group.output() for group in groups]


async def events_of(streams: Sequence[RunningStream]) -> AsyncIterator[tuple[int, Event]]:
    """The events of several prompts as they happen, each with its prompt's position.

    Raises ApiError for what ends an answer otherwise than by a stop or its length.
    """
    async for position, event in merged(streams):
        finished(event.finish_reason)
        yield position, event


def finished(reason: str | None) -> str | None:
    """A finish reason that clients know ("stop", "length", None); ApiError 500 for others."""
    if reason not in ("stop", "length", None):
        raise server_error("the answer was ended before it was complete")
    return reason
