"""Benchmark of the engine: v(n), drafters, overhead, and transformers on the same weights.

    python benchmarks/engine.py --json results.json

What is compared runs right after each other for every prompt: plain and speculative decoding in
one process on one loaded model, transformers in a second process on the same file. See README.md
beside this script for how to read the tables.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from harness.methods import Method, OutpaceMethod, outpace_methods
from harness.options import DRAFT_MODEL_K, Options, parse_options
from harness.peers import transformers_methods
from harness.progress import BenchProgress
from harness.results import Overhead, Results, Run
from harness.running import REFUSED, run_to_the_end, write_json
from harness.tables import show_header, show_summary, summarise
from rich.console import Console

from outpace import SamplingParams
from outpace.measure.passes import measure_passes
from outpace.measure.prompts import BenchPrompt, default_file, pick_prompts
from outpace.measure.provenance import describe
from outpace.models.load import LoadedModel, load_model

TEMPERATURE = 0.7
OVERHEAD_TOP_P = 0.9
NUM_OVERHEAD_PROMPTS = 3
OVERHEAD_TOKENS = 32
NUM_TUNING_PROMPTS = 3
TUNING_TOKENS = 32
WARM_UP_TOKENS = 8
PLAIN_WIDTH = 150


@dataclass(frozen=True, slots=True)
class Workload:
    """Sampling parameters and the methods that run with them."""

    decoding: str
    params: SamplingParams
    methods: Sequence[Method]


class Benchmark:
    """One run of everything, dtype by dtype; what is measured is added to `results` at once."""

    def __init__(self, options: Options, results: Results, progress: BenchProgress) -> None:
        self._options = options
        self._results = results
        self._progress = progress
        self._started = time.perf_counter()
        self.methods: list[str] = []

    def run(self) -> None:
        dtypes = self._options.dtypes
        self._progress.expect(len(dtypes) * self._expected_units())
        deadline = self._started + 60 * self._options.minutes
        for index, dtype in enumerate(dtypes):
            now = time.perf_counter()
            self._run_dtype(dtype, now + (deadline - now) / (len(dtypes) - index))
        self._results.complete = True

    def _run_dtype(self, dtype: str, deadline: float) -> None:
        options = self._options
        self._progress.describe(f"{dtype}: loading")
        loaded = load_model(
            options.model, dtype=dtype, device=options.device, threads=options.threads
        )
        self._results.model_fingerprint = loaded.fingerprint
        prompts = pick_prompts(
            options.prompts or default_file(),
            loaded.tokenizer,
            count=options.num_prompts,
            max_tokens=options.max_prompt_tokens,
            seed=options.seed,
        )
        ours = outpace_methods(
            loaded,
            options.speculative_configs,
            max_model_len=options.max_prompt_tokens + options.max_tokens,
        )
        self.methods = [method.name for method in ours]
        self._time_passes(loaded)
        self._measure_overheads(dtype, ours, prompts)
        with ExitStack() as closing:
            peers = self._peers(loaded, prompts, closing)
            self._run_rounds(dtype, ours, peers, prompts, deadline)

    def _time_passes(self, loaded: LoadedModel) -> None:
        options = self._options
        self._progress.describe(f"{loaded.dtype}: passes over n rows")
        limit = loaded.config.max_position_embeddings
        context_lens = [c for c in options.contexts if c + max(options.rows) <= limit]
        for length in sorted(set(options.contexts) - set(context_lens)):
            self._note(f"no passes after {length} cached tokens: the model's limit is {limit}")
        if context_lens:
            measure_passes(
                loaded,
                rows=options.rows,
                context_lens=context_lens,
                repeats=options.pass_repeats,
                seed=options.seed,
                results=self._results.passes,
                tick=self._progress.tick,
            )

    def _measure_overheads(
        self, dtype: str, methods: Sequence[OutpaceMethod], prompts: Sequence[BenchPrompt]
    ) -> None:
        self._progress.describe(f"{dtype}: time outside passes")
        for decoding, params in self._overhead_params().items():
            for method in methods:
                method.generate(prompts[0].token_ids, params)
                overhead = Overhead(dtype, decoding, method.name)
                for prompt in spread(prompts, NUM_OVERHEAD_PROMPTS):
                    overhead.add(*method.measure_steps(prompt.token_ids, params))
                self._results.overheads.append(overhead)
                self._progress.tick(self._overhead_units)

    def _peers(
        self, loaded: LoadedModel, prompts: Sequence[BenchPrompt], closing: ExitStack
    ) -> list[Method]:
        """The other engines asked for; a note instead of one that cannot run."""
        options = self._options
        if "transformers" not in options.peers:
            return []
        self._progress.describe(f"{loaded.dtype}: loading and tuning transformers")
        max_tokens = min(options.max_tokens, TUNING_TOKENS)
        try:
            peers = transformers_methods(
                options.model,
                loaded,
                tuning_prompts=[p.token_ids for p in spread(prompts, NUM_TUNING_PROMPTS)],
                tuning_params=SamplingParams(temperature=0.0, max_tokens=max_tokens),
                draft_model=options.draft_model,
                num_draft_tokens=DRAFT_MODEL_K,
                closing=closing,
            )
        # Whatever stops another engine, or its absence, must not stop this benchmark.
        except Exception as error:
            self._note(f"transformers was not compared: {type(error).__name__}: {error}")
            return []
        if options.draft_model is None:
            self._note(
                "assisted generation of transformers was not run: no --draft-model was given, and "
                "neither a random model nor the target itself in its place would mean anything"
            )
        return list(peers)

    def _run_rounds(
        self,
        dtype: str,
        ours: Sequence[OutpaceMethod],
        peers: Sequence[Method],
        prompts: Sequence[BenchPrompt],
        deadline: float,
    ) -> None:
        """All prompts with all methods, again and again while there is time for one more round."""
        options = self._options
        greedy = SamplingParams(temperature=0.0, max_tokens=options.max_tokens)
        workloads = [Workload("greedy", greedy, [*ours, *peers])]
        if not options.greedy_only:
            workloads.append(Workload(f"temperature {TEMPERATURE}", self._sampled(), ours))
        self._progress.describe(f"{dtype}: warming up")
        for method in workloads[0].methods:
            warm_up = SamplingParams(temperature=0.0, max_tokens=WARM_UP_TOKENS)
            method.generate(prompts[0].token_ids, warm_up)
        units = len(prompts) * options.max_tokens * sum(len(w.methods) for w in workloads)
        self._progress.expect(units - self._expected_units_of_round())
        for round_index in range(options.repeats):
            started = time.perf_counter()
            self._progress.describe(f"{dtype}: round {round_index + 1}")
            if round_index:
                self._progress.expect(units)
            self._run_round(dtype, round_index, workloads, prompts)
            self._results.rounds[dtype] = round_index + 1
            now = time.perf_counter()
            if now + (now - started) > deadline:
                break

    def _run_round(
        self,
        dtype: str,
        round_index: int,
        workloads: Sequence[Workload],
        prompts: Sequence[BenchPrompt],
    ) -> None:
        for prompt_index, prompt in enumerate(prompts):
            for workload in workloads:
                # Nobody always comes first.
                shift = (prompt_index + round_index) % len(workload.methods)
                for method in (*workload.methods[shift:], *workload.methods[:shift]):
                    timing = method.generate(prompt.token_ids, workload.params)
                    self._results.runs.append(
                        Run.of(dtype, workload.decoding, round_index, prompt, method.name, timing)
                    )
                    self._progress.tick(self._options.max_tokens)
                    if timing.stats.num_drafter_errors:
                        self._note(f"{dtype}: {method.name} FAILED and went on plain; see the log")

    def _sampled(self) -> SamplingParams:
        options = self._options
        return SamplingParams(
            temperature=TEMPERATURE, seed=options.seed, max_tokens=options.max_tokens
        )

    def _overhead_params(self) -> dict[str, SamplingParams]:
        max_tokens = min(OVERHEAD_TOKENS, self._options.max_tokens)
        common: dict[str, Any] = {"max_tokens": max_tokens, "ignore_eos": True}
        greedy = SamplingParams(temperature=0.0, **common)
        sampled = SamplingParams(
            temperature=TEMPERATURE, top_p=OVERHEAD_TOP_P, seed=self._options.seed, **common
        )
        label = f"temperature {TEMPERATURE}, top_p {OVERHEAD_TOP_P}"
        return {"greedy": greedy} | ({} if self._options.greedy_only else {label: sampled})

    @property
    def _overhead_units(self) -> int:
        return NUM_OVERHEAD_PROMPTS * min(OVERHEAD_TOKENS, self._options.max_tokens)

    def _expected_units(self) -> int:
        """Work per dtype with one round, as planned; a unit is about one token or one pass."""
        options = self._options
        num_ours = 1 + len(options.speculative_configs)
        passes = (options.pass_repeats + 1) * len(options.rows) * len(options.contexts)
        overheads = num_ours * self._overhead_units * len(self._overhead_params())
        return passes + overheads + self._expected_units_of_round()

    def _expected_units_of_round(self) -> int:
        options = self._options
        num_ours = 1 + len(options.speculative_configs)
        num_peers = 2 + bool(options.draft_model) if "transformers" in options.peers else 0
        num_runs = num_ours + num_peers + (0 if options.greedy_only else num_ours)
        return options.num_prompts * options.max_tokens * num_runs

    def _note(self, text: str) -> None:
        if text not in self._results.notes:
            self._results.notes.append(text)


def spread(prompts: Sequence[BenchPrompt], count: int) -> Sequence[BenchPrompt]:
    """At most `count` prompts, evenly spaced and so from several categories."""
    return prompts[:: max(1, len(prompts) // count)][:count]


def main() -> int:
    options = parse_options(__doc__.partition("\n")[0])
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    console = Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH)
    header = describe()
    show_header({"model": options.model, **header}, console, "Benchmark of the engine")
    results = Results()
    with BenchProgress() as progress:
        benchmark = Benchmark(options, results, progress)
        status = run_to_the_end(benchmark.run, results)
    if status == REFUSED:
        return status
    summary = summarise(results, benchmark.methods, options.seed)
    show_summary(summary, console)
    _show_end(results, console)
    if options.json is not None:
        write_json(options.json, header, options, results, summary)
    return status


def _show_end(results: Results, console: Console) -> None:
    console.print()
    for note in results.notes:
        console.print(f"Note: {note}", markup=False)
    rounds = ", ".join(f"{dtype} {count}" for dtype, count in results.rounds.items())
    console.print(f"Rounds over all prompts: {rounds or 'none complete'}.")
    console.print(f"Total time: {results.elapsed_s / 60:.1f} min.")


if __name__ == "__main__":
    sys.exit(main())
