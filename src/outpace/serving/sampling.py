"""From a request's fields to `SamplingParams`: each is applied exactly, or refused by name."""

from __future__ import annotations

import json
import re
from collections.abc import Sized
from dataclasses import replace
from typing import Any

from outpace.errors import OptionError
from outpace.params import SamplingParams
from outpace.serving.errors import ApiError, from_outpace_error
from outpace.serving.protocol.chat import ChatRequest
from outpace.serving.protocol.common import (
    GenerationRequest,
    ResponseFormatText,
    SpeculativeConfig,
)
from outpace.serving.protocol.completions import CompletionRequest
from outpace.serving.settings import ServerSettings
from outpace.serving.tools import ToolSetup

_SAME_NAMES = (
    "n",
    "temperature",
    "top_p",
    "stop",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "top_k",
    "min_p",
    "typical_p",
    "repetition_penalty",
    "min_tokens",
    "stop_token_ids",
    "ignore_eos",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "allowed_token_ids",
    "bad_words",
    "prompt_logprobs",
    "logit_bias",
)
MAX_ALLOWED = 2**18
"""Most entries of allowed_token_ids: more than any vocabulary has tokens."""
COMPLETION_MAX_TOKENS = 16
"""What /v1/completions generates if nothing is said, as OpenAI's does."""


def chat_params(
    body: ChatRequest,
    defaults: SamplingParams,
    settings: ServerSettings,
    tools: ToolSetup | None = None,
) -> SamplingParams:
    """The sampling parameters of a chat request.

    defaults: of the model (`LLM.get_default_sampling_params`), for what the request does not say;
        but an answer whose length it does not limit may go on to the end of the context.
    tools: what its tools ask of the sampling.
    Raises ApiError 400.
    """
    max_tokens = body.max_completion_tokens
    if max_tokens is None:
        max_tokens = body.max_tokens
    elif body.max_tokens is not None and body.max_tokens != max_tokens:
        raise ApiError(
            400,
            f"max_tokens ({body.max_tokens}) and max_completion_tokens ({max_tokens}) are two "
            "names for the same; give one of them",
            param="max_completion_tokens",
        )
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError(
            400, "top_logprobs goes with logprobs=true", param="top_logprobs", code="invalid_value"
        )
    _check_most("top_logprobs", body.top_logprobs, settings.max_logprobs)
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    values = _of_tools(body, settings, tools)
    return _params(body, defaults, settings, max_tokens=max_tokens, logprobs=logprobs, **values)


def _of_tools(
    body: ChatRequest, settings: ServerSettings, tools: ToolSetup | None
) -> dict[str, Any]:
    if tools is None:
        return {}
    values = dict(tools.sampling_overrides)
    for name, value in values.items():
        given = getattr(body, name)
        if given is not None and given != value:
            raise ApiError(
                400,
                f"{name}={given!r:.80} does not go with tools: calls could not be read",
                param=name,
            )
    if tools.structured_outputs is not None:
        if structured_outputs(body, settings) is not None:
            raise ApiError(
                400,
                "tool_choice asks for calls, and so the answer can have no other structure",
                param="tool_choice",
            )
        values["structured_outputs"] = tools.structured_outputs
    return values


def completion_params(
    body: CompletionRequest, defaults: SamplingParams, settings: ServerSettings
) -> SamplingParams:
    """The sampling parameters of a completions request, the same for each of its prompts; see
    `chat_params`. With echo the prompt's tokens are scored like the answer's."""
    if len(body.prompts) > settings.max_prompts:
        raise ApiError(
            400, f"prompt: at most {settings.max_prompts} prompts are possible", param="prompt"
        )
    _check_most("logprobs", body.logprobs, settings.max_logprobs)
    values: dict[str, Any] = {"logprobs": body.logprobs, "max_tokens": body.max_tokens}
    if body.max_tokens is None:
        values["max_tokens"] = COMPLETION_MAX_TOKENS
    if body.echo and body.logprobs is not None:
        # One list is computed; what either asked for is taken out of it.
        values["prompt_logprobs"] = max(body.logprobs, body.prompt_logprobs or 0)
    return _params(body, defaults, settings, **values)


def speculation(body: GenerationRequest) -> bool | dict[str, Any]:
    """What the request says of its drafting, as `LLM.prepare` takes it."""
    if body.speculative_config is None:
        return True
    return body.speculative_config.model_dump(exclude_none=True)


def _params(
    body: GenerationRequest,
    defaults: SamplingParams,
    settings: ServerSettings,
    **own: Any,
) -> SamplingParams:
    _check_sizes(body, settings)
    _check_stream(body)
    values: dict[str, Any] = {
        name: getattr(body, name) for name in _SAME_NAMES if getattr(body, name) is not None
    }
    structure = structured_outputs(body, settings)
    if structure is not None:
        values["structured_outputs"] = structure
    values |= own
    try:
        return replace(defaults, **values)
    except OptionError as error:
        raise with_param(from_outpace_error(error), body) from error


def with_param(error: ApiError, body: GenerationRequest) -> ApiError:
    """The error with the field at fault as its `param`, if its message begins with a field's
    name or is about the prompt's length."""
    first = error.message.split(" ", 1)[0].partition("=")[0].rstrip(":")
    path = re.sub(r"\[(\d+)\]", r".\1", first)
    if path.split(".", 1)[0] in type(body).model_fields:
        error.param = path
    elif first in SpeculativeConfig.model_fields:
        error.param = f"speculative_config.{first}"
    elif error.code == "context_length_exceeded":
        error.param = "messages" if isinstance(body, ChatRequest) else "prompt"
    return error


def _check_sizes(body: GenerationRequest, settings: ServerSettings) -> None:
    _check_most("n", body.n, settings.max_n)
    _check_most("prompt_logprobs", body.prompt_logprobs, settings.max_logprobs)
    stop = (body.stop,) if isinstance(body.stop, str) else body.stop
    _check_length("stop", stop, settings.max_stop)
    _check_length("logit_bias", body.logit_bias, settings.max_logit_bias)
    _check_length("bad_words", body.bad_words, settings.max_logit_bias)
    _check_length("stop_token_ids", body.stop_token_ids, settings.max_logit_bias)
    _check_length("allowed_token_ids", body.allowed_token_ids, MAX_ALLOWED)


def _check_stream(body: GenerationRequest) -> None:
    if body.stream_options is not None and not body.stream:
        raise ApiError(400, "stream_options goes with stream=true", param="stream_options")
    if body.stream and body.prompt_logprobs is not None:
        raise ApiError(400, "prompt_logprobs does not go with stream=true", param="prompt_logprobs")


def structured_outputs(body: GenerationRequest, settings: ServerSettings) -> dict[str, Any] | None:
    """What the answer must look like, in the keys of `StructuredOutputsParams`; None if anything.

    Raises ApiError 400 for more than one wish, and for what is larger than the server allows.
    """
    wishes = _wishes(body)
    if len(wishes) > 1:
        names = [name for name, _, _ in wishes]
        raise ApiError(
            400, f"{' and '.join(names)}: an answer can have one structure only", param=names[1]
        )
    if not wishes:
        return None
    name, kind, value = wishes[0]
    if kind == "json" or kind == "grammar":
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        _check_length(name, text.encode(), settings.max_schema_bytes, "bytes")
    elif kind == "regex":
        _check_length(name, value, settings.max_regex_chars, "characters")
    elif kind == "choice":
        _check_length(name, value, settings.max_choices)
        _check_length(name, "".join(value).encode(), settings.max_schema_bytes, "bytes")
    own = body.structured_outputs
    if own is not None and own.disable_any_whitespace:
        return {kind: value, "disable_any_whitespace": True}
    return {kind: value}


def _wishes(body: GenerationRequest) -> list[tuple[str, str, Any]]:
    """(field, key of StructuredOutputsParams, value) of each field that asks for a structure."""
    wishes: list[tuple[str, str, Any]] = []
    form = body.response_format
    if form is not None and not isinstance(form, ResponseFormatText):
        if form.type == "json_object":
            wishes.append(("response_format", "json_object", True))
        else:
            wishes.append(("response_format", "json", form.json_schema.schema_))
    if body.structured_outputs is not None:
        given = body.structured_outputs.structure
        if not given:
            raise ApiError(400, "structured_outputs names no structure", param="structured_outputs")
        wishes.extend((f"structured_outputs.{kind}", kind, value) for kind, value in given.items())
    for kind in ("json", "regex", "choice", "grammar"):
        value = getattr(body, f"guided_{kind}")
        if value is not None:
            wishes.append((f"guided_{kind}", kind, value))
    return wishes


def _check_most(name: str, value: int | None, most: int) -> None:
    if value is not None and value > most:
        raise ApiError(400, f"{name} must be at most {most} here", param=name)


def _check_length(name: str, value: Sized | None, most: int, unit: str = "entries") -> None:
    if value is not None and len(value) > most:
        raise ApiError(
            400, f"{name} has {len(value)} {unit}; at most {most} are possible here", param=name
        )
