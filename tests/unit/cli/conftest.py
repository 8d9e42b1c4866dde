"""A language model that repeats its prompt, and a way to run the command line on it."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest

import outpace
from outpace.cli.main import main
from outpace.control.decisions import DecisionLog, RequestRecord, StepRecord
from outpace.engine.fold import OutputFold
from outpace.errors import ContextLengthError
from outpace.outputs import (
    CompletionOutput,
    Event,
    Logprob,
    RequestMetrics,
    RequestOutput,
    SpeculationStats,
)
from outpace.params import SamplingParams
from outpace.types import Draft, Verdict

BLOCK_LEN = 3
MAX_PROMPT_LEN = 400


def step_record(step: int, num_accepted: int) -> StepRecord:
    """What `auto` would have written: a plain step, or a draft that was right."""
    source = "suffix" if num_accepted else "none"
    return StepRecord(
        step=step,
        num_seqs=1,
        num_rows=1 + num_accepted,
        context=step,
        requests=[RequestRecord(0, source, num_accepted, num_accepted)],
        predicted_tokens=1.0 + num_accepted,
        predicted_s=0.004,
        num_tokens=1 + num_accepted,
        draft_s=0.001,
        target_s=0.003,
        step_s=0.005,
    )


class ByteTokenizer:
    def decode(self, ids: list[int], /, skip_special_tokens: bool = True) -> str:
        return bytes(ids).decode("utf-8", errors="replace")


class FakeStream:
    """One step per event: a whole block of BLOCK_LEN with speculation, one token without."""

    def __init__(self, llm: FakeLLM, prompt: str, params: SamplingParams, block_len: int) -> None:
        self.closed = False
        self._prompt_ids = list(prompt.encode())
        answer = llm.answer(prompt)
        self._fold = OutputFold(llm.tokenizer, params, frozenset(), params.max_tokens or 10_000)
        self._stats = SpeculationStats()
        self._log = llm.decisions
        self._events = self._run(list(answer.encode()), block_len, llm.on_event)

    def _run(self, ids: list[int], block_len: int, on_event: Callable[[], None]) -> Iterator[Event]:
        for start in range(0, len(ids), block_len):
            block: list[int] = []
            for token_id in ids[start : start + block_len]:
                block.append(token_id)
                if self._fold.push(token_id, {token_id: Logprob(-0.5, 1, chr(token_id))}):
                    break
            if start + block_len >= len(ids) and self._fold.finish_reason is None:
                self._fold.finish("stop")
            num_accepted = len(block) - 1
            draft, verdict = Draft(tuple(block[:-1])), Verdict(tuple(block), num_accepted)
            self._stats.record(draft, verdict)
            if self._log is not None and block_len > 1:
                self._log.add(step_record(self._log.num_steps, num_accepted))
            on_event()
            yield Event(
                seq_id=0,
                token_ids=tuple(block),
                text=self._fold.take_delta(),
                origins=("ngram",) * num_accepted + ("",),
                finish_reason=self._fold.finish_reason,
            )
            if self._fold.finish_reason is not None:
                return

    def __enter__(self) -> FakeStream:
        return self

    def __exit__(self, *args: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Event]:
        return self._events

    def close(self) -> None:
        self.closed = True
        self._fold.abort()

    @property
    def output(self) -> RequestOutput:
        fold = self._fold
        completion = CompletionOutput(
            0, fold.text, fold.token_ids, fold.logprobs, fold.finish_reason, fold.stop_reason
        )
        return RequestOutput(
            request_id="0",
            prompt=None,
            prompt_token_ids=self._prompt_ids,
            outputs=[completion],
            finished=True,
            stats=self._stats,
            metrics=RequestMetrics(ttft_s=0.01, total_s=0.1),
        )


@dataclass
class FakeLLM:
    """Stands for `outpace.LLM`; `instances` lists all that were made, with their arguments."""

    model: str
    speculative_config: dict[str, Any] | None = None
    request_methods: tuple[str, ...] = ()
    dtype: str = "auto"
    model_impl: str = "auto"
    kv_cache_dtype: str = "auto"
    activations: str = "auto"
    threads: int | None = None
    max_model_len: int | None = None
    max_num_seqs: int = 8
    device: str = "auto"
    progress: Callable[[int, int], None] | None = None
    requests: list[tuple[Any, SamplingParams, bool]] = field(default_factory=list)
    closed: bool = False

    def __post_init__(self) -> None:
        self.tokenizer = ByteTokenizer()
        self.model_name = self.model
        config = self.speculative_config or {}
        self.method = config.get("method", "draft_model" if "model" in config else "auto")
        self.decisions = DecisionLog() if self.method == "auto" else None
        self.lossy = "some rule" if config.get("acceptance_method") == "typical" else None

    def answer(self, prompt: str) -> str:
        return f"you said: {prompt}"

    def on_event(self) -> None:
        """Called before each event; a test may raise or send a signal here."""

    def stream(
        self, prompt: Any, params: SamplingParams, *, speculative: bool = True
    ) -> FakeStream:
        self.requests.append((prompt, params, speculative))
        if isinstance(prompt, dict):
            prompt = prompt.get("prompt", prompt.get("messages"))
        text = prompt if isinstance(prompt, str) else prompt[-1]["content"]
        if len(text) > MAX_PROMPT_LEN:
            raise ContextLengthError("the prompt is too long;\ngive a shorter one")
        block_len = BLOCK_LEN if speculative and self.method != "none" else 1
        return FakeStream(self, text, params, block_len)

    def __enter__(self) -> FakeLLM:
        return self

    def __exit__(self, *args: object) -> None:
        self.closed = True


class Result(NamedTuple):
    status: int
    out: str
    err: str


@pytest.fixture
def llms(monkeypatch: pytest.MonkeyPatch) -> list[FakeLLM]:
    """Replaces `outpace.LLM`; the list fills with the instances made."""
    made: list[FakeLLM] = []

    def make(*args: Any, **kwargs: Any) -> FakeLLM:
        made.append(FakeLLM(*args, **kwargs))
        return made[-1]

    # Not setattr, which would read, and so import, the real one first.
    monkeypatch.setitem(vars(outpace), "LLM", make)
    return made


@pytest.fixture
def fake_class() -> type[FakeLLM]:
    """The class of the instances in `llms`, to patch."""
    return FakeLLM


@pytest.fixture
def run_cli(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Result]:
    """Runs `outpace ARGS...` in this process, with `stdin` as piped input."""

    def run(*args: str, stdin: str | bytes = "") -> Result:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main(list(args))
        return Result(int(stop.value.code or 0), *capsys.readouterr())

    return run
