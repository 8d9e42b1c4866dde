"""Benchmark of the native step: v(n) for every format of weights, beside other engines.

    python benchmarks/step.py --peer torch --peer llama.cpp --json results.json

Every engine runs in a process of its own with as many threads as the others, on the same weights.
They take turns for every pass, and memory is read between them, so that a slow minute of the
machine hits all of them alike. See README.md beside this script for how to read the tables.
"""

from __future__ import annotations

import json
import random
import sys
import time
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from harness.progress import BenchProgress
from harness.running import REFUSED, as_plain, run_to_the_end
from harness.step import curves, llama
from harness.step.engines import EngineProcess, ProbeProcess, Setup
from harness.step.options import AUTO, Options, parse_options
from harness.step.results import Passes, Prefills, Probes, Results
from harness.step.summary import curves as curves_of
from harness.step.summary import summarise
from harness.step.tables import show_end, show_summary
from harness.step.weights import is_packed
from harness.tables import show_header
from rich.console import Console

from outpace.measure.bench.peers.llama_library import describe_library
from outpace.measure.bench.peers.weights import GGUF_TYPES, main_format
from outpace.measure.provenance import describe
from outpace.models.hub import names
from outpace.models.open import open_checkpoint
from outpace.native.pool import default_num_threads

PLAIN_WIDTH = 150
CHOICES = (
    "The capital of France is",
    "Water boils at a temperature of",
    "def fibonacci(n):",
    "Once upon a time, there was a",
    "1, 2, 3, 4, 5,",
    "The opposite of hot is",
    "She opened the door and",
    "In 1969, two astronauts walked on the",
)
LONGEST_CHOICE = 64
PREFILL_TOKENS_PER_UNIT = 64


class Benchmark:
    """One run of everything; what is measured is added to `results` at once."""

    def __init__(self, options: Options, results: Results, progress: BenchProgress) -> None:
        self._options = options
        self._results = results
        self._progress = progress
        self._random = random.Random(options.seed)
        self._path = names.resolve(options.model)
        self._config = open_checkpoint(self._path).config
        limit = self._config.max_position_embeddings
        self._contexts = [c for c in options.contexts if c + max(options.rows) < limit]
        self._prefills = [n for n in options.prefills if 0 < n <= limit]
        for length in sorted({*options.contexts, *options.prefills} - {0}):
            if length not in (*self._contexts, *self._prefills):
                self._note(f"nothing after or of {length} tokens: the model's limit is {limit}")
        self._num_threads = options.threads or default_num_threads()

    def run(self) -> None:
        started = time.perf_counter()
        with ExitStack() as closing:
            engines = self._start(closing)
            self._choose(engines)
            probe = ProbeProcess(self._num_threads, closing)
            self._note(f"read rate of memory: {probe.details}")
            self._run_rounds(engines, probe, started + 60 * self._options.minutes)
        self._results.complete = True

    def _start(self, closing: ExitStack) -> list[EngineProcess]:
        setups = self._setups()
        contexts = [self._tokens(length) for length in self._contexts]
        self._progress.expect(len(setups))
        engines = []
        for setup in setups:
            self._progress.describe(f"{setup.label}: loading")
            # Whatever stops another engine, or its absence, must not stop this benchmark.
            try:
                engine = self._started(setup, contexts, closing)
            except Exception as error:
                if setup.kind == "native":
                    raise
                self._note(f"{setup.label} was not measured: {type(error).__name__}: {error}")
            else:
                engines.append(engine)
                self._results.engines.append(engine.engine)
            self._progress.tick()
        return engines

    def _started(
        self, setup: Setup, contexts: list[list[int]], closing: ExitStack
    ) -> EngineProcess:
        try:
            return EngineProcess(setup, contexts, closing)
        except BrokenProcessPool:
            if setup.kind != "llama.cpp":
                raise
            # GCC 12 builds a llama.cpp whose AMX kernels end in an illegal instruction.
            self._note(f"{setup.label} crashed on repacked weights and was measured without")
            return EngineProcess(replace(setup, options={"repack": False}), contexts, closing)

    def _setups(self) -> list[Setup]:
        """The engines for every format that there is a file for."""
        options = self._options
        setups = []
        for format_name in options.formats:
            path = self._file(format_name)
            if path is None:
                continue
            activations = options.activations if is_packed(format_name) else (AUTO,)
            for rounding in activations:
                suffix = "" if rounding == AUTO else f" {rounding}"
                settings = {
                    "dtype": format_name,
                    "model_impl": "native",
                    "activations": rounding,
                    "kv_cache_dtype": options.kv_cache_dtype,
                    "threads": self._num_threads,
                }
                label = f"native {format_name}{suffix}"
                setups.append(self._setup(label, "native", format_name, path, settings))
            if "torch" in options.peers and not is_packed(format_name):
                settings = {"dtype": format_name, "model_impl": "torch"}
                setups.append(
                    self._setup(f"torch {format_name}", "torch", format_name, path, settings)
                )
            if "llama.cpp" in options.peers:
                setups += self._llama_setups(format_name, path)
        return setups

    def _setup(
        self, label: str, kind: str, format_name: str, path: Path, settings: dict[str, Any]
    ) -> Setup:
        after_contexts = [length + 1 + max(self._options.rows) for length in self._contexts]
        longest = max(LONGEST_CHOICE, *after_contexts, *self._prefills)
        return Setup(label, kind, format_name, str(path), self._num_threads, longest, settings)

    def _llama_setups(self, format_name: str, path: Path) -> list[Setup]:
        setups = []
        for type_name in GGUF_TYPES.get(format_name, ()):
            label = f"llama.cpp {type_name}"
            file = path if main_format(path) == type_name.lower() else self._made(type_name)
            if file is not None:
                setups.append(self._setup(label, "llama.cpp", format_name, file, {}))
        return setups

    def _file(self, format_name: str) -> Path | None:
        """A file with the model's weights in this format."""
        given = self._options.files.get(format_name)
        if given is not None or not is_packed(format_name):
            return given or self._path
        if main_format(self._path) == format_name:
            return self._path
        return self._made(format_name.upper())

    def _made(self, type_name: str) -> Path | None:
        """The model's own file, quantised again; a note instead where that cannot be."""
        self._progress.describe(f"making a {type_name} file")
        try:
            return llama.requantise(self._path, type_name, self._options.work_dir)
        except (ImportError, RuntimeError, OSError) as error:
            self._note(f"there is no {type_name} file of this model (--file): {error}")
            return None

    def _choose(self, engines: list[EngineProcess]) -> None:
        """The same few prompts to all: engines that agree compute the same model."""
        self._progress.describe("comparing next tokens")
        tokenizer = open_checkpoint(self._path).tokenizer()
        prompts = [tokenizer.encode(text)[:LONGEST_CHOICE] for text in CHOICES]
        for engine in engines:
            chosen = [engine.next_token(token_ids) for token_ids in prompts]
            self._results.choices[engine.engine.label] = chosen

    def _tokens(self, length: int) -> list[int]:
        return [self._random.randrange(self._config.vocab_size) for _ in range(length)]

    def _run_rounds(
        self, engines: list[EngineProcess], probe: ProbeProcess, deadline: float
    ) -> None:
        options = self._options
        places = [(c, n) for c in self._contexts for n in options.rows]
        labels = [engine.engine.label for engine in engines]
        results = self._results
        passes = {(label, *place): Passes(label, *place) for label in labels for place in places}
        prefills = {(label, n): Prefills(label, n) for label in labels for n in self._prefills}
        probes = {place: Probes(*place) for place in places}
        results.passes.extend(passes.values())
        results.prefills.extend(prefills.values())
        results.probes.extend(probes.values())
        for index in range(options.repeats):
            started = time.perf_counter()
            self._progress.describe(f"round {index + 1}")
            self._progress.expect(len(places) * len(engines))
            for place in self._random.sample(places, len(places)):
                probes[place].bytes_per_s.append(probe.bytes_per_s())
                for engine in self._random.sample(engines, len(engines)):
                    seconds = engine.time_step(*place, options.burst)
                    passes[engine.engine.label, *place].seconds.append(seconds)
                    self._progress.tick()
            if index < options.prefill_repeats:
                self._time_prefills(engines, prefills, warm_up=index == 0)
            results.rounds = index + 1
            now = time.perf_counter()
            if now + (now - started) > deadline:
                break

    def _time_prefills(
        self,
        engines: list[EngineProcess],
        prefills: dict[tuple[str, int], Prefills],
        *,
        warm_up: bool,
    ) -> None:
        if not self._prefills:
            return
        self._progress.describe("prompts")
        units = sum(self._prefills) / PREFILL_TOKENS_PER_UNIT
        self._progress.expect(units * len(engines))
        for length in self._prefills:
            token_ids = self._tokens(length)
            for engine in self._random.sample(engines, len(engines)):
                if warm_up:
                    engine.time_prefill(token_ids)
                seconds = engine.time_prefill(token_ids)
                prefills[engine.engine.label, length].seconds.append(seconds)
                self._progress.tick(length / PREFILL_TOKENS_PER_UNIT)

    def _note(self, text: str) -> None:
        if text not in self._results.notes:
            self._results.notes.append(text)


def measure(options: Options, header: dict[str, Any], results: Results) -> int:
    """Fill `results`, and `header` with what is known of the peers; returns the exit status."""

    def work() -> None:
        if "llama.cpp" in options.peers:
            header.update(describe_library())
        with BenchProgress() as progress:
            Benchmark(options, results, progress).run()

    return run_to_the_end(work, results)


def draw(results: Results, summary: dict[str, Any]) -> str:
    """The plots: ours solid, llama.cpp on the same weights dashed."""
    panels = {}
    for engine in results.engines:
        if engine.kind == "native":
            peers = [
                other.label
                for other in results.engines
                if other.kind == "llama.cpp" and other.format == engine.format
            ]
            dashed = curves_of(summary["passes"], peers[0]) if peers else {}
            panels[engine.label] = (curves_of(summary["passes"], engine.label), dashed)
    return curves.draw(panels)


def main() -> int:
    options = parse_options(__doc__.partition("\n")[0])
    to_stdout = options.json == "-"
    console = Console(
        file=sys.stderr if to_stdout else sys.stdout,
        width=None if sys.stdout.isatty() else PLAIN_WIDTH,
    )
    if options.show is not None:
        document = json.loads(options.show.read_text(encoding="utf-8"))
        header = document["header"]
        results, status = Results.from_json(document["results"]), 0
    else:
        threads = options.threads or default_num_threads()
        header = {"model": options.model, **describe(), "threads": threads}
        results = Results()
        status = measure(options, header, results)
        if status == REFUSED:
            return status
    show_header(header, console, "Benchmark of the native step")
    summary = summarise(results)
    show_summary(summary, console)
    show_end(results, console)
    if options.plot is not None:
        options.plot.write_text(draw(results, summary), encoding="utf-8")
    if options.json is not None:
        document = {"header": header, "options": asdict(options), "results": asdict(results)}
        text = json.dumps({**document, "summary": summary}, default=as_plain)
        if to_stdout:
            print(text)
        else:
            Path(options.json).write_text(text, encoding="utf-8")
    return status


if __name__ == "__main__":
    sys.exit(main())
