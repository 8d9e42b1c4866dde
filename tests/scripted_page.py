"""The page's own files over answers that are written down: for what a real server does not do, and
for looking at the page without a model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import StreamingResponse

from outpace.engine.offered import OfferedMethods
from outpace.serving.page.router import router

Piece = bytes | float  # what is sent, or seconds to wait


def event(data: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(data)}\n\n".encode()


def chunk(text: str, steps: Sequence[dict[str, Any]] = (), finish: str | None = None) -> bytes:
    """A chunk of a streamed chat completion."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish, "steps": list(steps)}
    return event({"object": "chat.completion.chunk", "choices": [choice]})


def step(
    tokens: Sequence[tuple[str, str]], drafted: Sequence[str] = (), ms: float = 10.0
) -> dict[str, Any]:
    """tokens: (text, kind). The id of a token is the sum of its characters."""
    return {
        "tokens": [
            {
                "id": _id_of(text),
                "text": text,
                "kind": kind,
                "origin": "suffix" if kind == "accepted" else "",
            }
            for text, kind in tokens
        ],
        "drafted": [{"id": _id_of(text), "text": text} for text in drafted],
        "ms": ms,
    }


def _id_of(text: str) -> int:
    return sum(map(ord, text))


DONE = b"data: [DONE]\n\n"


def scripted_app(answers: Iterable[Sequence[Piece]]) -> FastAPI:
    """An app whose streamed answers are `answers`, in turn."""
    app = FastAPI()
    methods = OfferedMethods("auto", {"auto": 16, "ngram": 5})
    llm = SimpleNamespace(methods=methods)
    app.state.service = SimpleNamespace(llm=llm, model_names=("scripted",))
    app.state.bodies = []
    app.include_router(router)
    script = iter(answers)

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> StreamingResponse:
        app.state.bodies.append(await request.json())
        return StreamingResponse(_sent(next(script)), media_type="text/event-stream")

    return app


async def _sent(pieces: Sequence[Piece]) -> AsyncIterator[bytes]:
    for piece in pieces:
        if isinstance(piece, bytes):
            yield piece
        else:
            await asyncio.sleep(piece)
