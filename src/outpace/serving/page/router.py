"""Routes of the page: its files, kept in memory, and what it has to know of the server."""

from __future__ import annotations

import hashlib
from importlib import resources
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from outpace.serving.service import service_of

# Trusted types make Chromium refuse innerHTML and the like even if a script tried.
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


class _StaticFile:
    """One file of the page with its headers, the same for every request."""

    def __init__(self, name: str, content: bytes) -> None:
        self._content = content
        self._etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        self._headers = HEADERS | {
            "Content-Type": _TYPES[name.rpartition(".")[2]],
            "ETag": self._etag,
        }

    async def respond(self, request: Request) -> Response:
        if request.headers.get("if-none-match") == self._etag:
            return Response(status_code=304, headers=self._headers)
        return Response(self._content, headers=self._headers)


def _static_files() -> dict[str, _StaticFile]:
    """By path. The names come from the package, never from a request."""
    folder = resources.files(__package__) / "static"
    files = {}
    for entry in folder.iterdir():
        path = "/" if entry.name == "index.html" else f"/page/{entry.name}"
        files[path] = _StaticFile(entry.name, entry.read_bytes())
    return files


_FILES = _static_files()
STATIC_PATHS = frozenset(_FILES)
"""Paths that hold nothing of the model and are served without an API key."""

router = APIRouter(include_in_schema=False)
for _path, _file in _FILES.items():
    router.add_api_route(_path, _file.respond, methods=["GET", "HEAD"])


@router.get("/page/info")
async def info(request: Request) -> dict[str, Any]:
    """What the page offers: the model, and the drafting methods with their longest drafts, the
    server's own first."""
    service = service_of(request)
    offered = service.llm.methods
    return {
        "model": service.model_names[0],
        "method": offered.default,
        "methods": {name: offered.limits.get(name, 0) for name in offered.names},
    }
