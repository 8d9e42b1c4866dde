"""POST /tokenize and /detokenize, as in vLLM."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from outpace.models.tokenizer import Tokenizer
from outpace.serving.body import read_json
from outpace.serving.chat import as_plain, as_plain_tools, conversation_ids
from outpace.serving.errors import ApiError
from outpace.serving.models import served_model
from outpace.serving.protocol.parse import parse
from outpace.serving.protocol.schema import ERRORS, request_body
from outpace.serving.protocol.tokens import DetokenizeRequest, TokenizeRequest
from outpace.serving.service import service_of

router = APIRouter(tags=["tokens"])


@router.post("/tokenize", openapi_extra=request_body(TokenizeRequest), responses=ERRORS)
async def tokenize(request: Request) -> Response:
    """The token ids of a text or of a conversation."""
    service = service_of(request)
    body = parse(TokenizeRequest, await read_json(request))
    if body.model is not None:
        served_model(service).check_name(body.model)
    return await asyncio.to_thread(
        _tokenized, body, service.llm.tokenizer, service.llm.max_model_len
    )


def _tokenized(body: TokenizeRequest, tokenizer: Tokenizer, max_model_len: int) -> Response:
    token_ids = _token_ids(body, tokenizer)
    texts = None
    if body.return_token_strs:
        texts = [tokenizer.token_text(token_id) for token_id in token_ids]
    return JSONResponse(
        {
            "count": len(token_ids),
            "max_model_len": max_model_len,
            "tokens": token_ids,
            "token_strs": texts,
        }
    )


def _token_ids(body: TokenizeRequest, tokenizer: Tokenizer) -> list[int]:
    if body.prompt is not None:
        return tokenizer.encode(
            body.prompt, add_special_tokens=body.add_special_tokens is not False
        )
    return conversation_ids(
        tokenizer,
        [as_plain(message) for message in body.messages or ()],
        add_generation_prompt=body.add_generation_prompt is not False,
        add_special_tokens=bool(body.add_special_tokens),
        tools=as_plain_tools(body.tools),
    )


@router.post("/detokenize", openapi_extra=request_body(DetokenizeRequest), responses=ERRORS)
async def detokenize(request: Request) -> Response:
    """The text of token ids, special tokens included."""
    service = service_of(request)
    body = parse(DetokenizeRequest, await read_json(request))
    if body.model is not None:
        served_model(service).check_name(body.model)
    return await asyncio.to_thread(_detokenized, body.tokens, service.llm.tokenizer)


def _detokenized(token_ids: list[int], tokenizer: Tokenizer) -> Response:
    for token_id in token_ids:
        if token_id >= tokenizer.vocab_size:
            raise ApiError(
                400,
                f"tokens holds id {token_id}, which is outside the vocabulary of "
                f"{tokenizer.vocab_size}",
                param="tokens",
            )
    return JSONResponse({"prompt": tokenizer.decode(token_ids, skip_special_tokens=False)})
