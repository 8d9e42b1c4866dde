"""A Hugging Face Hub of one process: what its client asks for, served from memory over HTTP."""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit


@dataclass
class Repo:
    """A repository. commits: revision -> commit. access: open, gated (403) or private (401)."""

    files: dict[str, bytes]
    commits: dict[str, str] = field(default_factory=lambda: {"main": "a" * 40})
    access: str = "open"


@dataclass
class FakeHub:
    """The server's state, which tests change, and what it was asked.

    requests: "METHOD path" of each; ranges: the Range header of each GET that had one.
    cut_after: bytes of a file after which the connection breaks, once per entry.
    status: answer everything with this status. hang_s: seconds before every answer.
    """

    repos: dict[str, Repo] = field(default_factory=dict)
    token: str = "hf_secret"
    requests: list[str] = field(default_factory=list)
    ranges: list[str] = field(default_factory=list)
    cut_after: list[int] = field(default_factory=list)
    status: int | None = None
    hang_s: float = 0.0
    url: str = ""

    def downloads(self) -> list[str]:
        """Files whose content was asked for."""
        asked = [line for line in self.requests if line.startswith("GET") and "/resolve/" in line]
        return [line.split("/resolve/")[1].split("/", 1)[1] for line in asked]


@contextmanager
def serving(hub: FakeHub) -> Iterator[FakeHub]:
    server = _Server(("127.0.0.1", 0), _handler(hub))
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that hang up are part of the tests."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def _handler(hub: FakeHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: Any) -> None:
            pass

        def do_HEAD(self) -> None:
            self._answer()

        def do_GET(self) -> None:
            self._answer()

        def _answer(self) -> None:
            path = unquote(urlsplit(self.path).path)
            hub.requests.append(f"{self.command} {path}")
            threading.Event().wait(hub.hang_s)
            if hub.status is not None:
                self._send(hub.status, b"")
                return
            is_listing = path.startswith("/api/models/")
            parts = path.removeprefix("/api/models").lstrip("/").split("/", 2)
            repo = hub.repos.get("/".join(parts[:2]))
            if repo is None:
                # The Hub does not tell strangers which repositories exist.
                self._refuse(401 if not self._authorised() else 404, "RepoNotFound")
            elif repo.access == "private" and not self._authorised():
                self._refuse(401, "RepoNotFound")
            elif is_listing:
                self._list(repo, parts[2].removeprefix("revision/") if len(parts) > 2 else "main")
            elif repo.access == "gated" and not self._authorised():
                self._refuse(401, "GatedRepo")
            else:
                self._serve(repo, parts[2].removeprefix("resolve/"))

        def _authorised(self) -> bool:
            return self.headers.get("authorization") == f"Bearer {hub.token}"

        def _list(self, repo: Repo, revision: str) -> None:
            commit = self._commit(repo, revision)
            if commit is None:
                self._refuse(404, "RevisionNotFound")
                return
            siblings = [
                {"rfilename": name, "size": len(data)} for name, data in sorted(repo.files.items())
            ]
            listing = {"id": "org/name", "sha": commit, "siblings": siblings}
            self._send(200, json.dumps(listing).encode(), {"Content-Type": "application/json"})

        def _serve(self, repo: Repo, rest: str) -> None:
            known = [*repo.commits, *repo.commits.values()]
            revision = next((name for name in known if rest.startswith(f"{name}/")), None)
            commit = None if revision is None else self._commit(repo, revision)
            if revision is None or commit is None:
                self._refuse(404, "RevisionNotFound")
                return
            data = repo.files.get(rest.removeprefix(f"{revision}/"))
            if data is None:
                self._refuse(404, "EntryNotFound", {"X-Repo-Commit": commit})
                return
            headers = {"X-Repo-Commit": commit, "ETag": f'"{hashlib.sha256(data).hexdigest()}"'}
            asked = self.headers.get("Range")
            if asked is None:
                self._send(200, data, headers)
                return
            hub.ranges.append(asked)
            start = int(asked.removeprefix("bytes=").split("-")[0])
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
            self._send(206, data[start:], headers)

        def _commit(self, repo: Repo, revision: str) -> str | None:
            return revision if revision in repo.commits.values() else repo.commits.get(revision)

        def _refuse(self, status: int, code: str, headers: dict[str, str] | None = None) -> None:
            self._send(status, b"", {"X-Error-Code": code} | (headers or {}))

        def _send(self, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for key, value in (headers or {}).items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command == "HEAD":
                return
            if hub.cut_after and len(data) > hub.cut_after[0]:
                self.wfile.write(data[: hub.cut_after.pop(0)])
                self.close_connection = True
                return
            self.wfile.write(data)

    return Handler
