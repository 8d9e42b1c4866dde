"""A peer's process, and the peers that decode in it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, fields
from typing import IO, TYPE_CHECKING, Any

from outpace.errors import OptionError
from outpace.measure.bench.peers.base import PeerError
from outpace.measure.bench.peers.worker import Request
from outpace.params import SamplingParams

if TYPE_CHECKING:
    from outpace.measure.kept import BatchTiming
    from outpace.measure.timing import Timing

_WORKER = "outpace.measure.bench.peers.worker"
_CLOSING_S = 5.0
_LAST_WORDS_BYTES = 4096
_SENT = ("max_tokens", "temperature", "top_k", "top_p", "min_p", "seed")
_READ = (*_SENT, "ignore_eos", "stop_token_ids")


class PeerProcess:
    """A worker with one engine, opened when this is made.

    home: "module:class" of the engine, called with `setup` (values that JSON has) in the process.
    environment: further variables for it. label: how messages call it.
    Raises PeerError when the engine cannot be opened or the process ends by itself.
    """

    def __init__(
        self,
        label: str,
        home: str,
        setup: Mapping[str, Any],
        *,
        threads: int,
        closing: ExitStack,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.label = label
        self._in_call = False
        self._last_words: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - see `closing`
        closing.callback(self._last_words.close)
        self._process = subprocess.Popen(
            [sys.executable, "-m", _WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._last_words,
            text=True,
            encoding="utf-8",
            # Its own group: Ctrl-C of the terminal is for us, and its children end with it.
            start_new_session=True,
            env=_environment(threads) | dict(environment or {}),
        )
        closing.callback(self.close)
        try:
            self.call("open", home=home, setup=dict(setup))
        except PeerError:
            self.close()
            raise

    def call(self, method: str, **arguments: Any) -> Any:
        """What the engine's method returns, as JSON has it. Raises PeerError."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if self._in_call:
            raise PeerError(f"{self.label} was interrupted before")
        self._in_call = True
        try:
            self._process.stdin.write(json.dumps([method, arguments]) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except (OSError, ValueError):
            line = ""
        # An interrupt leaves the call unanswered, so that `close` must not wait for its end.
        self._in_call = False
        if not line:
            raise PeerError(self._how_it_ended())
        answer = json.loads(line)
        if "error" in answer:
            raise PeerError(f"{self.label} failed: {answer['error']}")
        return answer["result"]

    def close(self) -> None:
        """End the process, at once where it is in the middle of something."""
        process = self._process
        for pipe in (process.stdin, process.stdout):
            # What could not be sent any more is of no use to it.
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()
        if not self._in_call:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_CLOSING_S)
        if process.poll() is None:
            _kill_group(process)
            process.wait()

    def _how_it_ended(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_CLOSING_S)
        status = self._process.poll()
        reason = f"exit status {status}"
        if status is not None and status < 0:
            reason = signal.Signals(-status).name
        if self._last_words.closed:
            return f"{self.label} is closed"
        size = self._last_words.seek(0, os.SEEK_END)
        self._last_words.seek(max(0, size - _LAST_WORDS_BYTES))
        words = self._last_words.read().decode("utf-8", "replace").strip().splitlines()
        return f"the process of {self.label} ended ({reason}){': ' + words[-1] if words else ''}"


class ProcessPeer:
    """One way to decode of the engine in a process.

    options: for the engine's `generate`. end_token_ids, max_model_len: of the model.
    """

    def __init__(
        self,
        name: str,
        process: PeerProcess,
        options: Mapping[str, Any],
        *,
        end_token_ids: Sequence[int],
        max_model_len: int,
        greedy_only: bool,
        max_batch: int = 1,
    ) -> None:
        self.name = name
        self.greedy_only = greedy_only
        self.max_batch = max_batch
        self._process = process
        self._options = dict(options)
        self._end_token_ids = list(end_token_ids)
        self._max_model_len = max_model_len

    def generate_batch(
        self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]
    ) -> BatchTiming:
        """See `Peer`."""
        return timing_of(self._decode(prompts, params))

    def generate(self, prompt: Sequence[int], params: SamplingParams) -> Timing:
        """One prompt, with the tokens of every step. Raises as `generate_batch`."""
        from outpace.measure.timing import Timing

        (steps,) = self._decode([prompt], [params])
        return Timing(
            token_ids=[token for _, token_ids in steps for token in token_ids],
            step_lens=[len(token_ids) for _, token_ids in steps],
            ttft_s=steps[0][0] if steps else 0.0,
            total_s=steps[-1][0] if steps else 0.0,
        )

    def close(self) -> None:
        """End the process, and with it every peer that decodes in it."""
        self._process.close()

    def _decode(
        self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]
    ) -> list[list[tuple[float, list[int]]]]:
        assert 0 < len(prompts) == len(params)
        if len(prompts) > self.max_batch:
            raise OptionError(
                f"{self.name} decodes {self.max_batch} requests at a time, got {len(prompts)}"
            )
        requests = [self._request(*pair) for pair in zip(prompts, params, strict=True)]
        steps: list[list[tuple[float, list[int]]]] = self._process.call(
            "generate", requests=list(map(asdict, requests)), options=self._options
        )
        return steps

    def _request(self, prompt: Sequence[int], params: SamplingParams) -> Request:
        _check_params(self.name, params)
        if self.greedy_only and not params.is_greedy:
            raise OptionError(f"{self.name} decodes greedily, got {params.temperature=}")
        room = self._max_model_len - len(prompt)
        ends = [] if params.ignore_eos else self._end_token_ids
        values = {name: getattr(params, name) for name in _SENT}
        values["max_tokens"] = min(params.max_tokens or room, room)
        return Request(
            token_ids=list(prompt),
            end_token_ids=sorted({*ends, *params.stop_token_ids}),
            **values,
        )


def timing_of(steps: Sequence[Sequence[tuple[float, list[int]]]]) -> BatchTiming:
    """A batch from the steps of a `StepClock`, as `KeptEngine.generate_batch` counts it."""
    from outpace.measure.kept import Answer, BatchTiming
    from outpace.outputs import SpeculationStats

    answers = [
        Answer(
            [token for _, token_ids in own for token in token_ids],
            own[0][0] if own else 0.0,
            SpeculationStats(),
        )
        for own in steps
    ]
    arrivals = [(at, len(token_ids)) for own in steps for at, token_ids in own]
    total_s = max((at for at, _ in arrivals), default=0.0)
    window_from = max((answer.first_s for answer in answers), default=0.0)
    return BatchTiming(
        answers,
        total_s,
        total_s - window_from,
        sum(count for at, count in arrivals if at > window_from),
    )


def _check_params(name: str, params: SamplingParams) -> None:
    plain = SamplingParams()
    for item in fields(SamplingParams):
        if item.name not in _READ and getattr(params, item.name) != getattr(plain, item.name):
            raise OptionError(
                f"{name} is compared with {', '.join(_READ)} alone, got {item.name}="
                f"{getattr(params, item.name)!r:.80}"
            )


def _environment(threads: int) -> dict[str, str]:
    path = [entry or os.getcwd() for entry in sys.path]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path),
        "OMP_NUM_THREADS": str(threads),
        # The weights are here already, and nothing else may be fetched in the middle of a run.
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


def _kill_group(process: subprocess.Popen[str]) -> None:
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
