"""The application: routers behind the guard."""

from __future__ import annotations

from fastapi import FastAPI

from outpace import __version__
from outpace.engine.llm import LLM
from outpace.serving import chat, completions, health, metrics, models, tokens
from outpace.serving.errors import install_handlers
from outpace.serving.guard import OPEN_PATHS, Guard
from outpace.serving.page import router as page
from outpace.serving.service import Service
from outpace.serving.settings import ServerSettings


def create_app(llm: LLM, settings: ServerSettings) -> FastAPI:
    """The server's application, for any ASGI server. The LLM stays the caller's to close.

    `app.state.service` is its Service. Served by `outpace.serving.run.run_server` it also ends
    gracefully.
    """
    service = Service(llm, settings)

    app = FastAPI(
        title="Outpace",
        version=__version__,
        summary="OpenAI-compatible completions with lossless speculative decoding.",
        docs_url=None,  # the pages that show it load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.service = service
    install_handlers(app)
    app.add_middleware(
        Guard, settings=settings, service=service, open_paths=OPEN_PATHS | page.STATIC_PATHS
    )
    for routes in (chat, completions, models, tokens, page, health, metrics):
        app.include_router(routes.router)
    return app
