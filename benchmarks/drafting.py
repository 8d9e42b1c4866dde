"""Benchmark of drafting methods: every installed one against plain decoding, by kind of prompt.

    python benchmarks/drafting.py --json results.json

All methods decode a prompt right after each other, in one process on one loaded model, greedily
and sampled; then chains and trees of several widths are compared, beside what a pass over as many
rows costs. See README.md beside this script for how to read the tables.
"""

from __future__ import annotations

import random
import sys
import time

import torch
from harness.drafting.methods import ALL, asked_configs, width_configs
from harness.drafting.options import Options, parse_options
from harness.drafting.results import Results
from harness.drafting.rounds import Part, laps_by_category, prompts_before
from harness.drafting.summary import summarise
from harness.drafting.tables import show_end, show_summary
from harness.methods import OutpaceMethod, answer
from harness.progress import BenchProgress
from harness.running import REFUSED, run_to_the_end, write_json
from harness.tables import show_header
from rich.console import Console

from outpace import SamplingParams
from outpace.drafters import available_methods
from outpace.errors import OutpaceError
from outpace.measure.methods import Config, has_shapes, named
from outpace.measure.passes import measure_passes
from outpace.measure.prompts import BenchPrompt, Question, default_files, pick_questions
from outpace.measure.provenance import describe
from outpace.models.load import LoadedModel, load_model

PLAIN = "plain"
TEMPERATURE = 0.7
COMPARED_SHAPES = ("suffix", "recycling")
WIDTH_SHARE = 0.3
"""Of the time, for chains against trees."""
PLAIN_WIDTH = 180


class Benchmark:
    """One run of everything, path by path; what is measured is added to `results` at once.

    A path is what computes the model, and in which dtype.
    """

    def __init__(self, options: Options, results: Results, progress: BenchProgress) -> None:
        self._options = options
        self._results = results
        self._progress = progress
        self._configs: dict[str, Config] = {}
        self._width_configs: dict[str, Config] = {}
        self._conversations: list[list[BenchPrompt]] = []

    def run(self) -> None:
        """Raises OptionError for methods or options that do not exist, before it loads anything."""
        self._choose_methods()
        options = self._options
        deadline = time.perf_counter() + 60 * options.minutes
        paths = [(impl, dtype) for impl in options.model_impls for dtype in options.dtypes]
        failures = []
        for index, (impl, dtype) in enumerate(paths):
            self._progress.describe(f"{impl} {dtype}: loading")
            # Not every model runs everywhere in every format; the others are worth telling.
            try:
                loaded = self._load(impl, dtype)
            except OutpaceError as error:
                failures.append(error)
                self._note(f"{impl} {dtype} was not measured: {error}")
                continue
            now = time.perf_counter()
            self._run_path(f"{impl} {dtype}", loaded, now + (deadline - now) / (len(paths) - index))
            del loaded  # before the next takes memory
        if not self._results.paths:
            raise failures[0]
        self._results.complete = True

    def _choose_methods(self) -> None:
        options = self._options
        methods = options.methods or (() if options.method_configs else (ALL,))
        self._configs = named([*asked_configs(methods), *options.method_configs])
        compared = options.width_methods or [
            method
            for method in COMPARED_SHAPES
            if method in available_methods() and has_shapes(method)
        ]
        if options.width_prompts:
            self._results.widths, self._width_configs = width_configs(compared, options.widths)

    def _load(self, impl: str, dtype: str) -> LoadedModel:
        options = self._options
        return load_model(
            options.model,
            dtype=dtype,
            device=options.device,
            model_impl=impl,
            threads=options.threads,
        )

    def _run_path(self, path: str, loaded: LoadedModel, deadline: float) -> None:
        now = time.perf_counter()
        self._results.paths.append(path)
        self._results.model_fingerprint = loaded.fingerprint
        if not self._conversations:
            self._conversations = self._make_prompts(path, loaded)
        parts = [self._main_part(path, loaded)]
        if self._width_configs:
            parts.append(self._width_part(path, loaded))
        self._progress.describe(f"{path}: warming up")
        parts = [part.warmed_up(self._note) for part in parts]
        self._progress.expect(sum(part.units(part.laps[0]) for part in parts))
        share = 1.0
        if self._width_configs:
            self._time_passes(path, loaded)
            share -= WIDTH_SHARE
        for part, until in zip(parts, (now + share * (deadline - now), deadline), strict=False):
            part.run(self._options.repeats, until, self._progress, self._note)

    def _make_prompts(self, path: str, loaded: LoadedModel) -> list[list[BenchPrompt]]:
        """For each question its prompts, one a turn, as all methods on all paths get them: what
        the model said in between are its greedy answers on the first path."""
        options = self._options
        self._progress.describe(f"{path}: first turns of conversations")
        questions = pick_questions(
            options.prompts or default_files(),
            loaded.tokenizer,
            per_category=options.per_column,
            max_tokens=min(options.max_prompt_tokens, loaded.max_len - options.max_tokens),
            seed=options.seed,
        )
        return [self._converse(question, loaded) for question in questions]

    def _converse(self, question: Question, loaded: LoadedModel) -> list[BenchPrompt]:
        max_tokens = self._options.max_tokens
        prompts, answers = [question.prompt(loaded.tokenizer)], []
        for _ in question.turns[1:]:
            text = answer(loaded, prompts[-1].token_ids, max_tokens)
            answers.append(text)
            self._results.answers[prompts[-1].label] = text
            prompt = question.prompt(loaded.tokenizer, answers)
            if len(prompt.token_ids) + max_tokens > loaded.max_len:
                self._note(f"{prompt.label} was left out: the model takes {loaded.max_len} tokens")
                break
            prompts.append(prompt)
        return prompts

    def _main_part(self, path: str, loaded: LoadedModel) -> Part:
        laps = laps_by_category(self._conversations)
        return self._part(path, loaded, "methods", self._configs, laps)

    def _width_part(self, path: str, loaded: LoadedModel) -> Part:
        """First turns, mixed and one a lap, because time may not suffice for all."""
        prompts = [conversation[0] for conversation in self._conversations]
        random.Random(self._options.seed).shuffle(prompts)
        laps = [[prompt] for prompt in prompts[: self._options.width_prompts]]
        return self._part(path, loaded, "widths", self._width_configs, laps)

    def _part(
        self,
        path: str,
        loaded: LoadedModel,
        name: str,
        configs: dict[str, Config],
        laps: list[list[BenchPrompt]],
    ) -> Part:
        options = self._options
        is_main = name == "methods"
        longest = max(len(p.token_ids) for prompts in self._conversations for p in prompts)
        methods = [
            OutpaceMethod(loaded, config, max_model_len=longest + options.max_tokens, name=label)
            for label, config in {PLAIN: None, **configs}.items()
        ]
        params = {
            "greedy": SamplingParams(temperature=0.0, max_tokens=options.max_tokens),
            "sampled": SamplingParams(
                temperature=TEMPERATURE, seed=options.seed, max_tokens=options.max_tokens
            ),
        }
        labels = {"greedy": "greedy", "sampled": f"temperature {TEMPERATURE}"}
        return Part(
            path,
            name,
            methods,
            {
                labels[decoding]: params[decoding]
                for decoding in (options.decodings if is_main else options.width_decodings)
            },
            laps,
            prompts_before(self._conversations, options.warm_up_prompts, options.seed),
            self._results.runs if is_main else self._results.width_runs,
        )

    def _time_passes(self, path: str, loaded: LoadedModel) -> None:
        options = self._options
        context_lens = [c for c in options.contexts if c + max(options.rows) <= loaded.max_len]
        for length in sorted(set(options.contexts) - set(context_lens)):
            self._note(f"no passes after {length} cached tokens: the limit is {loaded.max_len}")
        if not context_lens:
            return
        self._progress.describe(f"{path}: passes over n rows")
        shapes = ("chain", "tree")
        num_kinds = len(context_lens) * len(options.rows) * len(shapes)
        self._progress.expect((options.pass_repeats + 1) * num_kinds)
        measure_passes(
            loaded,
            rows=options.rows,
            context_lens=context_lens,
            repeats=options.pass_repeats,
            seed=options.seed,
            results=self._results.passes,
            tick=self._progress.tick,
            shapes=shapes,
            label=path,
        )

    def _note(self, text: str) -> None:
        if text not in self._results.notes:
            self._results.notes.append(text)


def main() -> int:
    options = parse_options(__doc__.partition("\n")[0])
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    console = Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH)
    header = describe()
    show_header({"model": options.model, **header}, console, "Benchmark of drafting methods")
    results = Results()
    with BenchProgress() as progress:
        status = run_to_the_end(Benchmark(options, results, progress).run, results)
    if status == REFUSED:
        return status
    summary = summarise(results, PLAIN, options.seed)
    show_summary(summary, PLAIN, console)
    show_end(results, console)
    if options.json is not None:
        write_json(options.json, header, options, results, summary)
    return status


if __name__ == "__main__":
    sys.exit(main())
