"""The body of POST /v1/completions."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag

from outpace.serving.protocol.common import GenerationRequest, TokenId, refused


def _kind_of_prompt(value: Any) -> str:
    if isinstance(value, str):
        return "text"
    first = value[0] if isinstance(value, list) and value else None
    if isinstance(first, str):
        return "texts"
    return "several_ids" if isinstance(first, list) else "ids"


Ids = Annotated[list[TokenId], Field(min_length=1)]
Prompt = Annotated[
    Annotated[str, Tag("text")]
    | Annotated[list[str], Tag("texts")]
    | Annotated[Ids, Tag("ids")]
    | Annotated[list[Ids], Tag("several_ids")],
    Discriminator(_kind_of_prompt),
]


class CompletionRequest(GenerationRequest):
    """prompt: a text, token ids, or a list of either. max_tokens is 16 if nothing is said.
    logprobs: this many most probable tokens at each place. echo: the prompt before the answer."""

    prompt: Prompt
    echo: bool | None = None
    logprobs: int | None = None
    add_special_tokens: Annotated[
        None, refused("give token ids to do without the model's beginning token", True)
    ] = None

    best_of: Annotated[None, refused("ask for n answers and choose among them")] = None
    suffix: Annotated[None, refused("models here do not fill in middles")] = None
    prompt_embeds: Annotated[None, refused("prompts are texts or token ids")] = None

    @property
    def prompts(self) -> list[str | list[int]]:
        """Each prompt by itself."""
        kind = _kind_of_prompt(self.prompt)
        return [self.prompt] if kind in ("text", "ids") else list(self.prompt)  # type: ignore
