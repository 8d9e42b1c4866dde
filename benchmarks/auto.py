"""Benchmark of `auto`: against plain decoding and fixed drafting, on prompts of all kinds.

    python benchmarks/auto.py --peer llama.cpp --json results.json

All methods decode a prompt, or a batch of them, right after each other, in one process on one
loaded model: by column of the prompt files, on random words, in a batch of easy and hard requests,
and in batches of several sizes. See README.md beside this script for how to read the tables.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, TypeVar

import torch
from harness.auto.batches import BatchPart
from harness.auto.checks import check
from harness.auto.methods import compared, tree_methods
from harness.auto.options import Options, parse_options
from harness.auto.prompts import Group, mixed_groups, random_words, sized_groups
from harness.auto.results import Results
from harness.auto.summary import summarise
from harness.auto.tables import show_end, show_summary
from harness.peers import PeerMethod, peer_methods
from harness.progress import BenchProgress
from harness.rounds import Part, laps_by_category
from harness.running import REFUSED, run_to_the_end, write_json
from harness.tables import show_header
from rich.console import Console

from outpace import SamplingParams
from outpace.errors import OutpaceError
from outpace.measure.bench.peers.weights import GGUF_TYPES
from outpace.measure.kept import KeptEngine
from outpace.measure.methods import PLAIN, Config
from outpace.measure.prompts import BenchPrompt, default_files, pick_questions
from outpace.measure.provenance import describe
from outpace.models.load import LoadedModel, load_model

SHARES = {"main": 5.0, "entropy": 1.0, "mixed": 1.5, "batch": 2.5}
"""Of the time, for the parts that are measured."""
PLAIN_WIDTH = 200

AnyPart = TypeVar("AnyPart", Part, BatchPart)


class Benchmark:
    """One run of everything, format by format; what is measured is added to `results` at once."""

    def __init__(self, options: Options, results: Results, progress: BenchProgress) -> None:
        self._options = options
        self._results = results
        self._progress = progress
        self._configs: dict[str, Config] = {}

    def run(self) -> None:
        """Raises OptionError for methods or options that do not exist, before it loads anything."""
        options, results = self._options, self._results
        subject, self._configs = compared(options.subject, options.fixed, options.draft)
        results.subject = subject
        results.fixed = [name for name in self._configs if name not in (PLAIN, subject)]
        results.trees = tree_methods(self._configs)
        deadline = time.perf_counter() + 60 * options.minutes
        failures = []
        for index, dtype in enumerate(options.formats):
            self._progress.describe(f"{dtype}: loading")
            # Not every model exists in every format; the others are worth telling.
            try:
                loaded = self._load(dtype)
            except OutpaceError as error:
                failures.append(error)
                self._note(f"{dtype} was not measured: {error}")
                continue
            now = time.perf_counter()
            share = (deadline - now) / (len(options.formats) - index)
            self._run_path(loaded, now + share)
            del loaded  # before the next takes memory
        if not results.paths:
            raise failures[0]
        results.complete = True

    def _load(self, dtype: str) -> LoadedModel:
        options = self._options
        return load_model(
            options.model,
            dtype=dtype,
            device=options.device,
            model_impl=options.model_impl,
            threads=options.threads,
        )

    def _run_path(self, loaded: LoadedModel, deadline: float) -> None:
        path = f"{loaded.model_impl} {loaded.dtype}"
        self._results.paths.append(path)
        self._results.model_fingerprint = loaded.fingerprint
        prompts = self._prompts(loaded)
        run_part: dict[str, Callable[[float], None]] = {
            "main": lambda until: self._run_main(path, loaded, prompts, until),
            "entropy": lambda until: self._run_entropy(path, loaded, until),
            "mixed": lambda until: self._run_mixed(path, loaded, until),
            "batch": lambda until: self._run_batches(path, loaded, prompts, until),
        }
        parts = [name for name in run_part if name in self._options.parts]
        for index, name in enumerate(parts):
            now = time.perf_counter()
            left = sum(SHARES[other] for other in parts[index:])
            self._progress.describe(f"{path}: {name}, warming up")
            run_part[name](now + (deadline - now) * SHARES[name] / left)

    def _prompts(self, loaded: LoadedModel) -> list[BenchPrompt]:
        """First turns."""
        options = self._options
        questions = pick_questions(
            options.prompts or default_files(),
            loaded.tokenizer,
            per_category=options.per_column,
            max_tokens=min(options.max_prompt_tokens, loaded.max_len - options.max_tokens),
            seed=options.seed,
        )
        return [question.prompt(loaded.tokenizer) for question in questions]

    def _run_main(
        self, path: str, loaded: LoadedModel, prompts: list[BenchPrompt], until: float
    ) -> None:
        params = self._params()
        with ExitStack() as closing:
            engines = self._engines(loaded, self._configs, prompts, 1, closing)
            peers: list[PeerMethod] = []
            if "llama.cpp" in self._options.peers and "greedy" in self._options.decodings:
                peers = self._llama(loaded, prompts, closing)
                self._results.peers += [peer.name for peer in peers]
            part = Part(
                path,
                "main",
                [*engines, *peers],
                dict(params[name] for name in self._options.decodings),
                laps_by_category(prompts),
                self._results.runs,
                frozenset(peer.name for peer in peers),
            )
            self._run(part, until)

    def _llama(
        self, loaded: LoadedModel, prompts: list[BenchPrompt], closing: ExitStack
    ) -> list[PeerMethod]:
        """Plain decoding by llama.cpp for the loaded format."""
        options = self._options
        given = options.files.get(loaded.dtype)
        return peer_methods(
            "llama.cpp",
            loaded,
            model=options.model,
            num_tokens=max(len(prompt.token_ids) for prompt in prompts) + options.max_tokens,
            note=self._note,
            closing=closing,
            threads=options.threads,
            files={name: given for name in GGUF_TYPES.get(loaded.dtype, ()) if given is not None},
            work_dir=options.work_dir,
        )

    def _run_entropy(self, path: str, loaded: LoadedModel, until: float) -> None:
        """Plain decoding and the subject alone: small differences take many pairs to see."""
        options = self._options
        temperature = options.entropy_temperature
        params = SamplingParams(temperature=temperature, max_tokens=options.max_tokens)
        prompts = random_words(loaded.tokenizer, options.entropy_prompts, options.seed)
        configs = {name: self._configs[name] for name in (PLAIN, self._results.subject)}
        with ExitStack() as closing:
            part = Part(
                path,
                "entropy",
                self._engines(loaded, configs, prompts, 1, closing),
                {f"temperature {temperature}": params},
                [[prompt] for prompt in prompts],
                self._results.entropy_runs,
            )
            self._run(part, until)

    def _run_mixed(self, path: str, loaded: LoadedModel, until: float) -> None:
        options = self._options
        groups = mixed_groups(loaded.tokenizer, options.groups, options.max_tokens, options.seed)
        self._run_groups(path, "mixed", loaded, [[group] for group in groups], until)

    def _run_batches(
        self, path: str, loaded: LoadedModel, prompts: list[BenchPrompt], until: float
    ) -> None:
        options = self._options
        short = [p for p in prompts if len(p.token_ids) <= options.batch_prompt_tokens]
        if not short:
            self._note(f"no batches: no prompt has {options.batch_prompt_tokens} tokens or fewer")
            return
        params = self._params()
        kinds = [
            sized_groups(short, size, options.groups, *params[name], options.seed)
            for name in options.batch_decodings
            for size in options.batch_sizes
        ]
        laps = [list(lap) for lap in zip(*kinds, strict=True)]
        self._run_groups(path, "batches", loaded, laps, until)

    def _run_groups(
        self, path: str, name: str, loaded: LoadedModel, laps: list[list[Group]], until: float
    ) -> None:
        groups = [group for lap in laps for group in lap]
        prompts = [prompt for group in groups for prompt in group.prompts]
        largest = max(len(group.prompts) for group in groups)
        with ExitStack() as closing:
            engines = self._engines(loaded, self._configs, prompts, largest, closing)
            self._run(BatchPart(path, name, engines, laps, self._results.batch_runs), until)

    def _run(self, part: AnyPart, until: float) -> None:
        part = part.warmed_up(self._note)
        self._progress.expect(part.units(part.laps[0]))
        part.run(self._options.repeats, until, self._progress, self._note)

    def _engines(
        self,
        loaded: LoadedModel,
        configs: Mapping[str, Config],
        prompts: list[BenchPrompt],
        max_num_seqs: int,
        closing: ExitStack,
    ) -> list[KeptEngine]:
        longest = max(len(prompt.token_ids) for prompt in prompts)
        engines = [
            KeptEngine(
                loaded,
                config,
                name=name,
                max_model_len=longest + self._options.max_tokens,
                max_num_seqs=max_num_seqs,
            )
            for name, config in configs.items()
        ]
        for engine in engines:
            closing.callback(engine.close)
        return engines

    def _params(self) -> dict[str, tuple[str, SamplingParams]]:
        """By name of the decoding: what tables call it, and its parameters."""
        temperature, max_tokens = self._options.temperature, self._options.max_tokens
        sampled = SamplingParams(temperature=temperature, max_tokens=max_tokens)
        return {
            "greedy": ("greedy", SamplingParams(temperature=0.0, max_tokens=max_tokens)),
            "sampled": (f"temperature {temperature}", sampled),
        }

    def _note(self, text: str) -> None:
        if text not in self._results.notes:
            self._results.notes.append(text)


def main() -> int:
    options = parse_options(__doc__.partition("\n")[0])
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    console = Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH)
    header: dict[str, Any] = describe()
    show_header({"model": options.model, **header}, console, "Benchmark of auto")
    results = Results()
    with BenchProgress() as progress:
        status = run_to_the_end(Benchmark(options, results, progress).run, results)
    if status == REFUSED:
        return status
    summary = summarise(results)
    checks = check(summary)
    show_summary(summary, checks, console)
    show_end(results, console)
    if options.json is not None:
        write_json(options.json, header, options, results, {**summary, "checks": checks})
    return status


if __name__ == "__main__":
    sys.exit(main())
