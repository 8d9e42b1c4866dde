"""Running one request from the command line, timing it, and what is said about it."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from outpace.outputs import CompletionOutput, Event, Logprob, RequestOutput, SpeculationStats
from outpace.params import SamplingParams

if TYPE_CHECKING:
    from outpace import LLM

Prompt = str | dict[str, Any] | list[dict[str, str]]
Row = dict[int, Logprob]


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished request and its decoding speed.

    tokens_per_s: output tokens after the first step over the time from the first step's output
    to the last one's, all answers together; None where there was only one step. Prompt processing
    is left out. token_ids, text: those of the first answer.
    """

    output: RequestOutput
    tokens_per_s: float | None

    @property
    def token_ids(self) -> list[int]:
        return self.output.outputs[0].token_ids

    @property
    def text(self) -> str:
        return self.output.outputs[0].text


def run_request(
    llm: LLM,
    prompt: Prompt,
    params: SamplingParams,
    *,
    speculative: bool = True,
    show: Callable[[Event], object] = lambda event: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Answer:
    """Stream one request: `show` sees every event; it is cancelled once `stopped()` is true."""
    counts: list[int] = []
    times: list[float] = []
    with llm.stream(prompt, params, speculative=speculative) as stream:
        for event in stream:
            if event.error is not None:
                raise event.error
            if event.token_ids:
                counts.append(len(event.token_ids))
                times.append(time.perf_counter())
            show(event)
            if stopped():
                stream.close()
                break
    speed = sum(counts[1:]) / (times[-1] - times[0]) if len(times) > 1 else None
    return Answer(stream.output, speed)


def summary_line(llm: LLM, answer: Answer) -> str:
    """One line of statistics for a person."""
    speed = f", {answer.tokens_per_s:.1f} tokens/s" if answer.tokens_per_s is not None else ""
    stats = answer.output.stats
    num_tokens = sum(len(completion.token_ids) for completion in answer.output.outputs)
    return (
        f"{num_tokens} tokens{speed}, acceptance length "
        f"{stats.acceptance_length:.2f}, method {llm.method}"
        + (f", LOSSY: {answer.output.lossy}" if answer.output.lossy else "")
    )


def logprob_lines(answer: Answer) -> list[str]:
    """One line per token, prompt tokens first: the token, its logprob and rank, then the most
    probable ones. Nothing where no logprobs were asked for."""
    output, lines = answer.output, []
    rows: list[tuple[str, list[int], Sequence[Row | None] | None]] = [
        ("prompt  ", output.prompt_token_ids, output.prompt_logprobs)
    ]
    for completion in output.outputs:
        label = "" if len(output.outputs) == 1 else f"{completion.index + 1}  "
        rows.append((label, completion.token_ids, completion.logprobs))
    for label, token_ids, entries in rows:
        for token_id, row in zip(token_ids, entries or (), strict=False):
            if row is not None:
                lines.append(label + _logprob_line(row[token_id], row))
    return lines


def _logprob_line(chosen: Logprob, row: Row) -> str:
    ranked = sorted(row.values(), key=lambda entry: entry.rank)
    others = "  ".join(f"{e.decoded_token!r} {e.logprob:.4f}" for e in ranked)
    return f"{chosen.decoded_token!r}  {chosen.logprob:.4f}  rank {chosen.rank}  [{others}]"


def answer_json(llm: LLM, answer: Answer) -> dict[str, Any]:
    """Everything `outpace generate --json` prints; several answers stand under "answers"."""
    output = answer.output
    num_prompt = len(output.prompt_token_ids)
    num_output = sum(len(completion.token_ids) for completion in output.outputs)
    answers = [_completion_json(completion) for completion in output.outputs]
    values: dict[str, Any] = {
        **(answers[0] if len(answers) == 1 else {"answers": answers}),
        "usage": {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_output,
            "total_tokens": num_prompt + num_output,
        },
        "speculation": stats_json(output.stats),
        "timings": {
            "ttft_s": output.metrics.ttft_s,
            "total_s": output.metrics.total_s,
            "decode_tokens_per_s": answer.tokens_per_s,
        },
        "model": llm.model_name,
        "method": llm.method,
        "lossy": output.lossy,
        "dtype": llm.dtype,
    }
    if output.prompt_logprobs is not None:
        values["prompt_logprobs"] = [
            None if row is None else _row_json(row) for row in output.prompt_logprobs
        ]
    return values


def _completion_json(completion: CompletionOutput) -> dict[str, Any]:
    values: dict[str, Any] = {
        "text": completion.text,
        "token_ids": completion.token_ids,
        "finish_reason": completion.finish_reason,
        "stop_reason": completion.stop_reason,
    }
    if completion.logprobs is not None:
        values["logprobs"] = [_row_json(row) for row in completion.logprobs]
    return values


def _row_json(row: Row) -> list[dict[str, Any]]:
    return [_logprob_json(token_id, entry) for token_id, entry in row.items()]


def stats_json(stats: SpeculationStats) -> dict[str, Any]:
    return {
        "num_steps": stats.num_steps,
        "num_draft_tokens": stats.num_draft_tokens,
        "num_accepted_tokens": stats.num_accepted_tokens,
        "num_probe_tokens": stats.num_probe_tokens,
        "acceptance_length": stats.acceptance_length,
        "acceptance_rate": stats.acceptance_rate,
        "drafted_per_position": stats.drafted_per_position,
        "reached_per_position": stats.reached_per_position,
        "accepted_per_position": stats.accepted_per_position,
        "conditional_acceptance": stats.conditional_acceptance,
        "num_drafter_errors": stats.num_drafter_errors,
    }


def dump_json(values: Any) -> str:
    """One JSON document; pure ASCII, so that no terminal encoding can damage it."""
    return json.dumps(values, allow_nan=False)


def _logprob_json(token_id: int, entry: Logprob) -> dict[str, Any]:
    # JSON has no infinities: a token of probability zero is null.
    finite = entry.logprob if math.isfinite(entry.logprob) else None
    return {
        "token_id": token_id,
        "logprob": finite,
        "rank": entry.rank,
        "token": entry.decoded_token,
    }
