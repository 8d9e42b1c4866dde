"""Fields that requests for text have in common, and the types they are made of.

Types are strict: true is not 1, "5" is not 5. A field that is left out or null is not given, and
takes the server's default. What a field means and which values are possible is said and checked by
`SamplingParams`; here stands what is asked over HTTP only.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]
BiasKey = Annotated[str, Field(pattern=r"^[0-9]{1,10}$")]


class Body(BaseModel):
    """A part of a request. Unknown fields are errors."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, protected_namespaces=()
    )


def refused(reason: str, *allowed: Any) -> BeforeValidator:
    """Mark a field that is known and not supported: null and the `allowed` values, which ask for
    nothing, are taken; anything else is an error that gives the reason."""

    def check(value: Any) -> None:
        if value is None or any(type(value) is type(one) and value == one for one in allowed):
            return
        raise PydanticCustomError("refused", "is not supported: {reason}", {"reason": reason})

    return BeforeValidator(check, json_schema_input_type=_input_type(allowed))


def _input_type(allowed: tuple[Any, ...]) -> Any:
    constants = [one for one in allowed if isinstance(one, str | bool)]
    return Literal[tuple(constants)] | None if constants else None


def _kind_of_stop(value: Any) -> str:
    return "text" if isinstance(value, str) else "list"


OneOrMoreTexts = Annotated[
    Annotated[str, Tag("text")] | Annotated[list[str], Tag("list")], Discriminator(_kind_of_stop)
]


class StreamOptions(Body):
    """include_usage: a last chunk without choices says what the request used. include_steps: each
    choice of a chunk says which steps of the engine made it."""

    include_usage: bool | None = None
    include_steps: bool | None = None
    include_obfuscation: Annotated[None, refused("chunks are not padded", False)] = None
    continuous_usage_stats: Annotated[
        None, refused("usage comes at the end, with include_usage", False)
    ] = None


class JsonSchema(Body):
    """strict: true, false and null are the same here: the answer always satisfies the schema."""

    name: str
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class ResponseFormatText(Body):
    type: Literal["text"]


class ResponseFormatJsonObject(Body):
    type: Literal["json_object"]


class ResponseFormatJsonSchema(Body):
    type: Literal["json_schema"]
    json_schema: JsonSchema


ResponseFormat = Annotated[
    ResponseFormatText | ResponseFormatJsonObject | ResponseFormatJsonSchema,
    Field(discriminator="type"),
]


def _kind_of_schema(value: Any) -> str:
    return "text" if isinstance(value, str) else "object"


Schema = Annotated[
    Annotated[str, Tag("text")] | Annotated[dict[str, Any], Tag("object")],
    Discriminator(_kind_of_schema),
]


class StructuredOutputs(Body):
    """What the answer must look like: one of the first five. See `StructuredOutputsParams`."""

    json_: Schema | None = Field(default=None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool | None = None

    @property
    def structure(self) -> dict[str, Any]:
        """What was given of the first five, by name."""
        given = self.model_dump(
            exclude_none=True, by_alias=True, exclude={"disable_any_whitespace"}
        )
        return {kind: value for kind, value in given.items() if value is not False}


class SpeculativeConfig(Body):
    """How this request is drafted for: a method the server has, or "none", and at most how many
    draft tokens per step. No text depends on it where it is seeded, greedy or alone."""

    method: str | None = None
    num_speculative_tokens: int | None = None


class GenerationRequest(Body):
    """What both endpoints take. Sampling parameters that are not given are what the model's makers
    advise (`LLM.get_default_sampling_params`), else those of `SamplingParams`.

    user and metadata (up to 16 texts by name) say whom a request is for; as OpenAI defines them
    they change no answer, and nothing is done with them here.
    """

    model: str
    n: int | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: OneOrMoreTexts | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[BiasKey, float] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    metadata: Annotated[dict[str, str], Field(max_length=16)] | None = None
    response_format: ResponseFormat | None = None

    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    stop_token_ids: list[TokenId] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    allowed_token_ids: list[TokenId] | None = None
    bad_words: list[str] | None = None
    prompt_logprobs: int | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    cache_salt: Annotated[str, Field(min_length=1)] | None = None
    return_token_ids: bool | None = None
    speculative_config: SpeculativeConfig | None = None

    service_tier: Annotated[
        None, refused("there is one tier here, 'default'", "auto", "default")
    ] = None
    store: Annotated[None, refused("answers are not kept", False)] = None
    safety_identifier: Annotated[None, refused("users are told apart by nothing here")] = None
    prompt_cache_key: Annotated[None, refused("use cache_salt to keep prompts apart")] = None
    prompt_cache_retention: Annotated[
        None, refused("prompts are remembered while there is room")
    ] = None
    prompt_cache_options: Annotated[None, refused("prompts are remembered while there is room")] = (
        None
    )
    use_beam_search: Annotated[None, refused("answers are sampled", False)] = None
    length_penalty: Annotated[None, refused("it belongs to beam search", 1, 1.0)] = None
    truncate_prompt_tokens: Annotated[None, refused("no prompt is cut; shorten it")] = None
    spaces_between_special_tokens: Annotated[
        None, refused("texts are what the tokenizer makes of them", True)
    ] = None
    guided_decoding_backend: Annotated[None, refused("there is one", "auto")] = None
    guided_whitespace_pattern: Annotated[None, refused("write it into the grammar")] = None
    logits_processors: Annotated[None, refused("no code is taken from requests", [])] = None
    priority: Annotated[None, refused("requests are served in the order they come", 0)] = None
    request_id: Annotated[None, refused("the server gives ids")] = None
    return_tokens_as_token_ids: Annotated[None, refused("ask for return_token_ids", False)] = None
    kv_transfer_params: Annotated[None, refused("caches are not moved between servers")] = None
    vllm_xargs: Annotated[None, refused("there is nothing to pass on")] = None
    moderation: Annotated[None, refused("no answer is moderated")] = None
