"""Whether the server is alive, and whether it takes requests."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse

from outpace.serving.service import service_of

router = APIRouter()


@router.get("/health")
async def health(request: Request) -> JSONResponse:
    """200 while the engine's thread lives, 503 when it does not.

    A step that failed is counted, and the class of its error is shown; the engine goes on after it,
    so the status stays "ok".
    """
    state = service_of(request).llm.state()
    body: dict[str, Any] = {
        "status": "ok" if state.is_alive else "dead",
        "num_requests_running": state.num_running,
        "num_requests_waiting": state.num_waiting,
        "num_failed_steps": state.num_failed_steps,
        "last_error": state.last_error,
    }
    return JSONResponse(body, status_code=200 if state.is_alive else 503)


@router.get("/ready")
async def ready(request: Request) -> JSONResponse:
    """200 while new requests are taken; 503 with the reason otherwise."""
    service = service_of(request)
    if not service.llm.state().is_alive:
        status = "dead"
    else:
        status = "shutting_down" if service.is_draining else "ready"
    return JSONResponse({"status": status}, status_code=200 if status == "ready" else 503)
