"""The partner of `outpace chat --url`: a server that `outpace serve` runs."""

from __future__ import annotations

import dataclasses
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from http.client import HTTPException, HTTPResponse
from typing import Any
from urllib.parse import urlsplit

from outpace.cli.chat_local import Messages, Reply, Show, banner, styled_pieces
from outpace.errors import OptionError, OutpaceError
from outpace.outputs import SpeculationStats
from outpace.params import SamplingParams

TIMEOUT_S = 120.0
"""How long a server may be silent, queueing and the reading of the prompt included."""


class RemoteModel:
    """A model behind the OpenAI-compatible interface of an Outpace server.

    url: the server's, with or without /v1. model: None takes the first that it serves.
    speculation: `speculative_config` of every request; empty leaves it to the server.
    Raises OptionError for what is no URL, and OutpaceError if no such server answers.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        model: str | None = None,
        speculation: dict[str, Any] | None = None,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise OptionError(f"--url must be like http://127.0.0.1:8000, got {url!r}")
        self._base = url.rstrip("/").removesuffix("/v1")
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._speculation = speculation or {}
        served = [entry["id"] for entry in self._read("/v1/models")["data"]]
        if model is not None and model not in served:
            raise OptionError(f"{self._base} serves {', '.join(served)}, not {model!r}")
        self._model = model or served[0]

    def banner(self) -> str:
        method = self._speculation.get("method", "of the server")
        return banner(f"{self._model} at {self._base}", method)

    def notice(self, params: SamplingParams) -> str | None:
        return None

    def answer(
        self, messages: Messages, params: SamplingParams, show: Show, stopped: Callable[[], bool]
    ) -> Reply:
        body = {
            "model": self._model,
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True, "include_steps": True},
            **_fields_of(params),
        }
        if self._speculation:
            body["speculative_config"] = self._speculation
        telling = _Telling()
        with closing(self._open("/v1/chat/completions", body)) as response:
            for chunk in _events(response):
                show(telling.add(chunk))
                if stopped():
                    break
        return telling.reply()

    def _read(self, path: str) -> Any:
        with closing(self._open(path)) as response:
            try:
                return json.load(response)
            except ValueError as error:
                raise OutpaceError(
                    f"{self._base}{path} did not answer in JSON: is it an Outpace server?"
                ) from error

    def _open(self, path: str, body: dict[str, Any] | None = None) -> HTTPResponse:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._base + path, data, self._headers)
        try:
            response: HTTPResponse = urllib.request.urlopen(request, timeout=TIMEOUT_S)
        except urllib.error.HTTPError as error:
            with error:
                raise OutpaceError(f"the server refused: {_message_in(error.read())}") from None
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise OutpaceError(
                f"no server answers at {self._base} ({reason}); start one with `outpace serve`"
            ) from None
        return response


class _Telling:
    """Text, steps and usage as the chunks of a stream bring them."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._times: list[float] = []
        self._counts: list[int] = []
        self._stats = SpeculationStats()

    def add(self, chunk: dict[str, Any]) -> str:
        """Take one chunk; returns its text, styled."""
        if "error" in chunk:
            raise OutpaceError(f"the server broke off: {chunk['error'].get('message')}")
        if chunk.get("usage"):
            self._take_usage(chunk["usage"])
        shown = ""
        for choice in chunk["choices"]:
            text = choice["delta"].get("content") or ""
            tokens = [token for step in choice.get("steps", ()) for token in step["tokens"]]
            if tokens:
                self._times.append(time.perf_counter())
                self._counts.append(len(tokens))
            self._text.append(text)
            accepted = [token["kind"] == "accepted" for token in tokens]
            shown += styled_pieces(text, [token["text"] for token in tokens], accepted)
        return shown

    def _take_usage(self, usage: dict[str, Any]) -> None:
        told = usage.get("speculation", {})
        self._stats = SpeculationStats(
            num_steps=told.get("num_target_passes", 0),
            num_output_tokens=usage["completion_tokens"],
            num_draft_tokens=told.get("num_draft_tokens", 0),
            num_accepted_tokens=told.get("num_accepted_tokens", 0),
        )

    def reply(self) -> Reply:
        if not self._stats.num_steps:  # stopped before the end, where the usage stands
            self._stats.num_steps = len(self._counts)
            self._stats.num_output_tokens = sum(self._counts)
        duration = self._times[-1] - self._times[0] if len(self._times) > 1 else 0.0
        speed = sum(self._counts[1:]) / duration if duration > 0 else None
        return Reply("".join(self._text), self._stats, speed)


def _events(response: HTTPResponse) -> Iterator[dict[str, Any]]:
    """The JSON of a stream of server-sent events, up to [DONE].

    Raises OutpaceError where the connection ends, or falls silent, before.
    """
    try:
        for line in response:
            if not line.startswith(b"data:"):
                continue
            data = line.removeprefix(b"data:").strip()
            if data == b"[DONE]":
                return
            yield json.loads(data)
    except (OSError, HTTPException, ValueError) as error:
        raise OutpaceError(f"the connection to the server was lost ({error})") from None
    raise OutpaceError("the server ended the connection in the middle of the answer")


def _fields_of(params: SamplingParams) -> dict[str, Any]:
    """Sampling parameters as fields of a request: what differs from the library's defaults, and
    what a server's own defaults could otherwise decide."""
    fields = {field.name: field.default for field in dataclasses.fields(params)}
    values = {name: getattr(params, name) for name in fields}
    always = ("temperature", "top_p", "max_tokens")
    return {
        name: value
        for name, value in values.items()
        if name in always or value not in (fields[name], (), None)
    }


def _message_in(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return body[:200].decode(errors="replace") or "it gave no reason"
