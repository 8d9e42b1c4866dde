"""Benchmark of the server: plain decoding against `auto`, for 1 to 16 clients at once.

    python benchmarks/serve.py --json results.json

It starts `outpace serve` on a free port of this machine. Both methods answer a set of requests to
so many clients right after each other: throughput, and percentiles of what a client waits for. See
README.md beside this script for how to read the table.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from harness.auto.prompts import Group, sized_groups
from harness.progress import BenchProgress
from harness.running import REFUSED, run_to_the_end, write_json
from harness.serve.client import Job, ask_all
from harness.serve.options import Options, parse_options
from harness.serve.results import LoadRun, Results
from harness.serve.server import MODEL_NAME, arguments_of, serving
from harness.serve.summary import summarise
from harness.serve.tables import show_end, show_summary
from harness.tables import show_header
from rich.console import Console

from outpace import SamplingParams
from outpace.measure.bench.rounds import WARM_UP_TOKENS, run_laps
from outpace.measure.methods import PLAIN
from outpace.measure.prompts import BenchPrompt, default_files, pick_questions
from outpace.measure.provenance import describe
from outpace.measure.timing import PLAIN_CONFIG
from outpace.models.hub import names
from outpace.models.open import open_checkpoint

PLAIN_WIDTH = 200


class Load(NamedTuple):
    """A set of requests for so many clients."""

    num_clients: int
    requests: Group


class Benchmark:
    """One run of everything; what is measured is added to `results` at once."""

    def __init__(self, options: Options, results: Results, progress: BenchProgress) -> None:
        self._options = options
        self._results = results
        self._progress = progress
        # Per request, beside the server's own.
        self._configs: dict[str, Any] = {PLAIN: PLAIN_CONFIG, options.method: None}
        self._address = ("", 0)
        self._salts = itertools.count()

    def run(self) -> None:
        """Raises OutpaceError for prompts that cannot be used and a server that does not start."""
        options = self._options
        self._results.subject = options.method
        deadline = time.perf_counter() + 60 * options.minutes
        prompts = self._prompts()
        laps = self._laps(prompts)
        longest = max(len(prompt.token_ids) for prompt in prompts)
        self._progress.describe("outpace serve: starting")
        with serving(arguments_of(options, longest + options.max_tokens)) as self._address:
            self._warm_up(laps[0])
            self._progress.expect(self._units(laps[0]))
            run_laps(laps, options.repeats, deadline, self._run_lap)
        self._results.complete = True

    def _prompts(self) -> list[BenchPrompt]:
        """First turns, as token ids: the server counts them as the other benchmarks do."""
        options = self._options
        tokenizer = open_checkpoint(names.resolve(options.model)).tokenizer()
        questions = pick_questions(
            options.prompts or default_files(),
            tokenizer,
            per_category=options.per_column,
            max_tokens=options.max_prompt_tokens,
            seed=options.seed,
        )
        return [question.prompt(tokenizer) for question in questions]

    def _laps(self, prompts: list[BenchPrompt]) -> list[list[Load]]:
        """A lap has one set for every number of clients."""
        options = self._options
        params = SamplingParams(temperature=0.0, max_tokens=options.max_tokens)
        sets = [
            [
                Load(num_clients, requests)
                for requests in sized_groups(
                    prompts,
                    max(options.least_requests, options.requests_per_client * num_clients),
                    options.sets,
                    "greedy",
                    params,
                    options.seed,
                )
            ]
            for num_clients in options.clients
        ]
        return [list(lap) for lap in zip(*sets, strict=True)]

    def _units(self, lap: Sequence[Load]) -> int:
        """Work of a lap; a unit is about one token."""
        return len(self._configs) * sum(load.requests.num_tokens for load in lap)

    def _warm_up(self, lap: Sequence[Load]) -> None:
        """A few tokens with every number of clients and every method."""
        for load in lap:
            self._progress.describe(f"{load.num_clients} clients: warming up")
            for method in self._configs:
                self._ask(load, method, WARM_UP_TOKENS)

    def _run_lap(self, lap: Sequence[Load], round_index: int, number: int) -> None:
        if number:
            self._progress.expect(self._units(lap))
        for place, load in enumerate(lap):
            self._progress.describe(f"{load.num_clients} clients")
            # Nobody always comes first.
            methods = list(self._configs)
            if (number + place) % 2:
                methods.reverse()
            for method in methods:
                run = self._ask(load, method, self._options.max_tokens, round_index)
                self._results.runs.append(run)
                self._progress.tick(load.requests.num_tokens)

    def _ask(self, load: Load, method: str, max_tokens: int, round_index: int = 0) -> LoadRun:
        make_body = partial(self._body, self._configs[method], max_tokens)
        jobs = [Job(prompt, make_body(prompt)) for prompt in load.requests.prompts]
        answers, total_s, client_s = asyncio.run(ask_all(self._address, jobs, load.num_clients))
        assert not any(answer.num_cached for answer in answers), "a prompt was in the cache"
        return LoadRun(
            load.num_clients,
            round_index,
            load.requests.label,
            method,
            tuple(answers),
            total_s,
            client_s,
        )

    def _body(self, config: Any, max_tokens: int, prompt: BenchPrompt) -> dict[str, Any]:
        return {
            "model": MODEL_NAME,
            "prompt": list(prompt.token_ids),
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            # Nobody finds a prompt in the cache, or in a drafter's memory.
            "cache_salt": f"request {next(self._salts)}",
            **({"speculative_config": config} if config else {}),
        }


def main() -> int:
    options = parse_options(__doc__.partition("\n")[0])
    console = Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH)
    header: dict[str, Any] = describe()
    show_header({"model": options.model, **header}, console, "Benchmark of the server")
    results = Results()
    with BenchProgress() as progress:
        status = run_to_the_end(Benchmark(options, results, progress).run, results)
    if status == REFUSED:
        return status
    summary = summarise(results)
    show_summary(summary, console)
    show_end(results, console)
    if options.json is not None:
        write_json(options.json, header, options, results, summary)
    return status


if __name__ == "__main__":
    sys.exit(main())
