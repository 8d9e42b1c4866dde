"""What runs in a peer's process: an engine, asked through lines of JSON.

Imports nothing heavy, so that the process holds one engine's libraries and no other's.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

# Workers of the engine before may still be spinning in wait for more to do.
SETTLE_S = 0.005
PARENT_CHECK_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt and how to go on. end_token_ids: tokens that end the answer and belong to it."""

    token_ids: list[int]
    max_tokens: int
    end_token_ids: list[int]
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int | None

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0


class StepClock:
    """Started by making it; `add` notes new tokens of one request when they are there.

    steps: by request, seconds since the start and tokens of each step. Tokens past a request's end
    are left out, as an engine that decodes many rows at a time may go on with those that have
    ended.
    """

    def __init__(self, requests: Sequence[Request]) -> None:
        self.steps: list[list[tuple[float, list[int]]]] = [[] for _ in requests]
        self._requests = requests
        self._left = [request.max_tokens for request in requests]
        self._started = time.perf_counter()

    def add(self, index: int, token_ids: Sequence[int]) -> None:
        elapsed = time.perf_counter() - self._started
        kept = list(token_ids[: self._left[index]])
        ends = self._requests[index].end_token_ids
        end = next((place for place, token in enumerate(kept) if token in ends), None)
        if end is not None:
            kept = kept[: end + 1]
        if kept:
            self.steps[index].append((elapsed, kept))
            self._left[index] = 0 if end is not None else self._left[index] - len(kept)

    def has_ended(self, index: int) -> bool:
        return self._left[index] == 0


class Engine(Protocol):
    """Made in the worker from the `setup` of a `PeerProcess`; other methods may be called too."""

    def generate(self, requests: list[Request], options: Mapping[str, Any]) -> StepClock:
        """Decode the requests together. options: which of the engine's ways to decode."""


def main() -> None:
    """Answer one line after another until standard input ends. Errors are answers as well."""
    # Ctrl-C reaches every process of a terminal; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # What the engine prints must not come between the answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    engine: Any = None
    for line in sys.stdin:
        method, arguments = json.loads(line)
        answer: dict[str, Any] = {"result": None}
        try:
            if method == "open":
                engine = _open(**arguments)
            elif method == "generate":
                answer["result"] = _generate(engine, **arguments)
            else:
                answer["result"] = getattr(engine, method)(**arguments)
        # Whatever an engine raises is told to who asked.
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    # Nothing is left to be saved, and some engines take seconds to take themselves apart.
    os._exit(0)


def _end_with(parent: int) -> None:
    """End when the parent has, also in the middle of what nobody waits for any more."""
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_S)
    os._exit(1)


def _open(home: str, setup: dict[str, Any]) -> Any:
    module, _, name = home.partition(":")
    return getattr(import_module(module), name)(**setup)


def _generate(
    engine: Engine, requests: list[dict[str, Any]], options: dict[str, Any]
) -> list[list[tuple[float, list[int]]]]:
    time.sleep(SETTLE_S)
    return engine.generate([Request(**request) for request in requests], options).steps


if __name__ == "__main__":
    main()
