"""One generation with a recorder beside it."""

from __future__ import annotations

import dataclasses
import queue
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outpace.engine.inputs import Prompt
from outpace.engine.instruments import Instruments
from outpace.files import without_folders
from outpace.measure.provenance import describe
from outpace.measure.trace.files import TraceWriter
from outpace.measure.trace.recorder import Recorder
from outpace.measure.trace.records import Header, Step, Trace, TracedAnswer
from outpace.measure.trace.summary import summarise
from outpace.params import SamplingParams, StructuredOutputsParams

if TYPE_CHECKING:
    from outpace import LLM
    from outpace.outputs import RequestOutput


def trace_generation(
    open_llm: Callable[[Instruments], LLM],
    prompt: Prompt,
    params: SamplingParams,
    *,
    speculative_config: Mapping[str, Any] | None = None,
    path: Path | None = None,
    on_step: Callable[[Step], object] = lambda step: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Trace:
    """Generate for one prompt, with all its n answers, and record every step.

        def open_llm(instruments):
            return LLM(model, speculative_config=config, instruments=instruments)

        trace = trace_generation(open_llm, "Once upon", SamplingParams(max_tokens=64))

    open_llm: makes the engine, which must take the instruments; it is closed at the end.
    speculative_config: what the engine was configured with, for the header. path: write the trace
    there as it grows (`TraceWriter`). on_step: called with every step, in the caller's thread.
    stopped: asked after every step; once it is true the answers end as they are.
    Raises what `LLM` raises, and OptionError where `path` cannot be written.
    """
    arrived: queue.SimpleQueue[Step] = queue.SimpleQueue()
    recorder = Recorder(arrived.put)
    steps: list[Step] = []
    with ExitStack() as opened:
        writer = opened.enter_context(TraceWriter(path)) if path else None
        llm = opened.enter_context(open_llm(recorder.instruments))
        recorder.attach(llm)

        def take_steps() -> None:
            while not arrived.empty():
                steps.append(arrived.get())
                if writer:
                    writer.step(steps[-1])
                on_step(steps[-1])

        started, complete = time.perf_counter(), True
        stream = opened.enter_context(llm.stream(prompt, params))
        header = header_of(llm, prompt, params, stream.output, speculative_config)
        if writer:
            writer.header(header)
        for _ in stream:
            take_steps()
            if stopped():
                stream.close()
                complete = False
                break
        take_steps()
        wall_s = time.perf_counter() - started
        answers = _answers(stream.output)
        summary = summarise(steps, answers, complete=complete, wall_s=wall_s)
        if writer:
            writer.summary(summary)
    return Trace(header, steps, summary)


def header_of(
    llm: LLM,
    prompt: Prompt,
    params: SamplingParams,
    output: RequestOutput,
    speculative_config: Mapping[str, Any] | None,
) -> Header:
    """What is traced, and where."""
    config = None if speculative_config is None else _plain(speculative_config)
    return Header(
        model={"name": llm.model_name, "fingerprint": llm.fingerprint, "dtype": llm.dtype},
        method=llm.method,
        speculative_config=config,
        lossy=output.lossy,
        sampling=_plain({f.name: getattr(params, f.name) for f in dataclasses.fields(params)}),
        prompt={"given": _plain(prompt), "token_ids": list(output.prompt_token_ids)},
        provenance=describe(),
    )


def _answers(output: RequestOutput) -> list[TracedAnswer]:
    return [
        TracedAnswer(each.text, list(each.token_ids), each.finish_reason, each.stop_reason)
        for each in output.outputs
    ]


def _plain(value: Any) -> Any:
    """A value that JSON can hold: mappings, lists and scalars as they are, others by their name."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(each) for each in value]
    if isinstance(value, StructuredOutputsParams):
        return _plain({f.name: getattr(value, f.name) for f in dataclasses.fields(value)})
    if isinstance(value, Path):
        return without_folders(str(value))
    name = getattr(value, "name", getattr(value, "__name__", None))
    return name if isinstance(name, str) else type(value).__name__
