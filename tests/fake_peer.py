"""An engine for a peer's worker that computes nothing: it counts on from the prompt's last token.

Which accidents happen is said by the options of `generate`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from outpace.measure.bench.peers.worker import Request, StepClock


class FakeEngine:
    """step_len: tokens of each step."""

    def __init__(self, *, step_len: int = 1, refuses: bool = False) -> None:
        if refuses:
            raise ValueError("no such weights")
        self._step_len = step_len

    def generate(self, requests: list[Request], options: Mapping[str, Any]) -> StepClock:
        if options.get("accident") == "error":
            raise RuntimeError("out of memory")
        if options.get("accident") == "crash":
            sys.stderr.write("warming up\nillegal instruction in kernel 7\n")
            sys.stderr.flush()
            os.abort()
        if options.get("accident") == "hang":
            time.sleep(3600)
        if options.get("accident") == "chatter":
            os.write(1, b"loading... {\n")
        clock = StepClock(requests)
        newest = [request.token_ids[-1] for request in requests]
        while not all(map(clock.has_ended, range(len(requests)))):
            time.sleep(options.get("step_s", 0.0))
            for index, token in enumerate(newest):
                clock.add(index, range(token + 1, token + 1 + self._step_len))
                newest[index] += self._step_len
        return clock

    def environment(self, name: str) -> str | None:
        return os.environ.get(name)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def process_id(self) -> int:
        return os.getpid()

    def modules(self, names: list[str]) -> list[str]:
        """Those of them that are imported."""
        return [name for name in names if name in sys.modules]
