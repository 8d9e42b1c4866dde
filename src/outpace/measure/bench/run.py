"""A benchmark from its options to raw results, within the time that was promised.

Everything is planned by the clock: each dtype gets an equal part of what is left, and of that each
batch size its share. Only one prompt of each category is run whatever it takes; larger batches that
are not expected to fit any more are left out, with a note.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from itertools import pairwise
from statistics import median

from outpace.errors import OptionError, OutpaceError
from outpace.measure.bench.contenders import (
    Contender,
    check_methods,
    draft_limit,
    method_infos,
    our_contenders,
)
from outpace.measure.bench.differences import classify
from outpace.measure.bench.groups import make_laps
from outpace.measure.bench.memory import memory_bytes_per_s, num_threads, weights_bytes
from outpace.measure.bench.options import BenchOptions
from outpace.measure.bench.peers.base import check_installed, open_peers
from outpace.measure.bench.results import BenchResults, MethodInfo, PathResults
from outpace.measure.bench.rounds import BenchProgress, Rounds
from outpace.measure.passes import PassTimes, measure_passes
from outpace.measure.prompts import BenchPrompt, Question, fitting, read_questions
from outpace.measure.provenance import describe, load_note
from outpace.models.load import LoadedModel, load_model

FIRST_SHARE = 3.0
"""Of the time, for the first batch size, where each other one has 1."""
PASSES_SHARE = 0.08
"""Of the time of a dtype, for timing passes; but at least one of each."""
MOST_PASS_REPEATS = 9
NUM_TUNING_PROMPTS = 2
"""By which peers choose their own settings."""
NUM_ROWS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64)


def run_bench(options: BenchOptions, progress: BenchProgress, results: BenchResults) -> None:
    """Measure everything; `results` grows at once, so that it is of use after an interruption.

    Raises OptionError for methods, peers and prompts that do not exist before anything is loaded,
    and whatever keeps all dtypes from being loaded.
    """
    started = time.perf_counter()
    check_methods(options.methods)
    for name in options.peers:
        check_installed(name)
    questions = read_questions(options.prompts)
    results.provenance, results.options = describe(), asdict(options)
    results.model_name = options.model
    busy = load_note()
    if busy is not None:
        results.note(busy)
    try:
        _run_dtypes(options, questions, started + 60 * options.minutes, progress, results)
        results.complete = True
    finally:
        results.elapsed_s = time.perf_counter() - started


def _run_dtypes(
    options: BenchOptions,
    questions: Sequence[Question],
    deadline: float,
    progress: BenchProgress,
    results: BenchResults,
) -> None:
    failures = []
    for index, dtype in enumerate(options.dtypes):
        progress.describe(f"{dtype}: loading {options.model}")
        now = time.perf_counter()
        until = now + (deadline - now) / (len(options.dtypes) - index)
        # Not every model exists in every format; the others are worth telling.
        try:
            loaded = _load(options, dtype, progress)
        except OutpaceError as error:
            failures.append(error)
            results.note(f"{dtype} was not measured: {error}")
            continue
        PathBench(options, loaded, progress, results).run(questions, until)
        del loaded  # before the next takes memory
    if not results.paths:
        raise failures[0]


def _load(options: BenchOptions, dtype: str, progress: BenchProgress) -> LoadedModel:
    def report(done: int, total: int) -> None:
        share = f" {done / total:.0%}" if total else ""
        progress.describe(f"{dtype}: loading {options.model}{share}")

    return load_model(
        options.model,
        dtype=dtype,
        model_impl=options.model_impl,
        kv_cache_dtype=options.kv_cache_dtype,
        activations=options.activations,
        threads=options.threads,
        download_progress=report,
        packing_progress=report,
    )


class PathBench:
    """Everything that is measured of one loaded model."""

    def __init__(
        self,
        options: BenchOptions,
        loaded: LoadedModel,
        progress: BenchProgress,
        results: BenchResults,
    ) -> None:
        self._options = options
        self._loaded = loaded
        self._progress = progress
        self._results = results
        self._infos = method_infos(options.methods, loaded)
        self._seconds_per_token: float | None = None
        self._found = PathResults(
            path=f"{loaded.model_impl} {loaded.dtype}",
            dtype=loaded.dtype,
            model_impl=loaded.model_impl,
            runs_on=loaded.runs_on,
            threads=num_threads(loaded),
            methods=list(self._infos),
        )

    def run(self, questions: Sequence[Question], until: float) -> None:
        """Measure, and be done about `until` (`time.perf_counter`)."""
        prompts = self._prompts(questions)
        self._found.prompt_lens = {each.label: len(each.token_ids) for each in prompts}
        self._results.paths.append(self._found)
        self._results.model_fingerprint = self._loaded.fingerprint
        self._progress.describe(f"{self._found.path}: reading memory")
        self._found.weights_bytes = weights_bytes(self._loaded)
        self._found.memory_bytes_per_s = memory_bytes_per_s(self._loaded)
        self._time_passes(prompts, until)
        with ExitStack() as closing:
            peers = self._peers(prompts, closing)
            for index, batch in enumerate(self._options.batches):
                now = time.perf_counter()
                weights = [FIRST_SHARE, *[1.0] * (len(self._options.batches) - 1)][index:]
                share = now + (until - now) * weights[0] / sum(weights)
                self._run_batch(prompts, batch, peers, share, until)

    def _prompts(self, questions: Sequence[Question]) -> list[BenchPrompt]:
        options, loaded = self._options, self._loaded
        if options.max_tokens >= loaded.max_len:
            raise OptionError(
                f"max_tokens {options.max_tokens} leaves no room for a prompt in the model's "
                f"{loaded.max_len} tokens; ask for fewer"
            )
        chosen = fitting(
            questions,
            loaded.tokenizer,
            per_category=options.per_column,
            max_tokens=min(options.max_prompt_tokens, loaded.max_len - options.max_tokens),
            seed=options.seed,
        )
        return [question.prompt(loaded.tokenizer) for question in chosen]

    def _run_batch(
        self,
        prompts: Sequence[BenchPrompt],
        batch: int,
        peers: Sequence[Contender],
        share: float,
        until: float,
    ) -> None:
        """share: until when this batch size may go on; until: the others are to be done."""
        path, options = self._found.path, self._options
        label = path if batch == 1 else f"{path}, batch {batch}"
        with ExitStack() as closing:
            rounds = Rounds(
                label=label,
                contenders=[*self._ours(prompts, batch, closing), *peers],
                laps=make_laps(prompts, batch, options.seed),
                batch=batch,
                temperatures=options.temperatures,
                max_tokens=options.max_tokens,
                runs=self._found.runs,
                progress=self._progress,
                note=self._results.note,
            )
            if not self._fits(rounds, until):
                self._results.note(
                    f"{label} was left out: {options.minutes:g} minutes do not suffice; give more "
                    "--minutes, or ask for less"
                )
                return
            rounds.warm_up()
            if not any(contender.info.is_plain for contender in rounds.contenders):
                return
            self._run_rounds(rounds, share)
        self._progress.describe(f"{label}: looking at differences")
        classify(self._loaded, self._found, batch, prompts, self._results.note)

    def _run_rounds(self, rounds: Rounds, deadline: float) -> None:
        before, started = len(self._found.runs), time.perf_counter()
        rounds.run(self._options.repeats, deadline)
        num_tokens = sum(len(ids) for run in self._found.runs[before:] for ids in run.token_ids)
        if num_tokens:
            self._seconds_per_token = (time.perf_counter() - started) / num_tokens

    def _fits(self, rounds: Rounds, until: float) -> bool:
        """Whether the first lap is expected to end in time, if it takes as long for each token as
        the batch size before, which is smaller as a rule. What is known of none always fits."""
        if self._seconds_per_token is None:
            return True
        expected = self._seconds_per_token * rounds.num_tokens(rounds.laps[0])
        return time.perf_counter() + expected <= until

    def _ours(
        self, prompts: Sequence[BenchPrompt], batch: int, closing: ExitStack
    ) -> list[Contender]:
        return our_contenders(
            self._loaded,
            self._infos,
            max_model_len=self._longest(prompts),
            batch=batch,
            closing=closing,
        )

    def _peers(self, prompts: Sequence[BenchPrompt], closing: ExitStack) -> list[Contender]:
        """Opened once for all batch sizes: reading weights takes some of them a minute."""
        options, found = self._options, []
        for name in options.peers:
            self._progress.describe(f"{self._found.path}: starting {name}")
            for peer in open_peers(
                name,
                self._loaded,
                model=options.model,
                max_model_len=self._longest(prompts),
                max_batch=max(options.batches),
                tuning_prompts=[prompt.token_ids for prompt in prompts[:NUM_TUNING_PROMPTS]],
                threads=options.threads,
                note=self._results.note,
                closing=closing,
            ):
                info = MethodInfo(peer.name, None, is_peer=True)
                self._found.methods.append(info)
                found.append(Contender(info, peer, peer.greedy_only, peer.max_batch))
        return found

    def _longest(self, prompts: Sequence[BenchPrompt]) -> int:
        return max(len(prompt.token_ids) for prompt in prompts) + self._options.max_tokens

    def _time_passes(self, prompts: Sequence[BenchPrompt], until: float) -> None:
        """v(n) halfway through the answers to typical prompts and, where those are much longer, to
        the longest."""
        kinds = sorted({info.shape for info in self._infos})
        lengths = sorted(len(prompt.token_ids) for prompt in prompts)
        middle = self._options.max_tokens // 2
        contexts = [round(median(lengths)) + middle]
        if lengths[-1] + middle > 2 * contexts[0]:
            contexts.append(lengths[-1] + middle)
        rows = self._rows(self._loaded.max_len - max(contexts))
        self._progress.describe(f"{self._found.path}: passes over 1 to {rows[-1]} rows")
        now = time.perf_counter()
        limit = now + PASSES_SHARE * (until - now)
        measure = partial(
            measure_passes,
            self._loaded,
            rows=rows,
            context_lens=contexts,
            seed=self._options.seed,
            tick=lambda: None,
            shapes=kinds,
            label=self._found.path,
        )
        measure(repeats=1, results=self._found.passes)
        taken = time.perf_counter() - now
        # The first call warmed up and timed each pass once.
        num_more = int((limit - time.perf_counter()) / (taken / 2)) - 1
        if num_more > 0:
            more: list[PassTimes] = []
            try:
                measure(repeats=min(num_more, MOST_PASS_REPEATS - 1), results=more)
            finally:
                for times, others in zip(self._found.passes, more, strict=False):
                    times.seconds.extend(others.seconds)

    def _rows(self, room: int) -> list[int]:
        """Numbers of rows up to what the methods may feed, with at most `room` tokens."""
        options = self._options
        most = max(map(draft_limit, self._infos)) + 1
        needed = min(most * max(options.batches), room, NUM_ROWS[-1])
        reached = [1, *(b for a, b in pairwise(NUM_ROWS) if a < needed)]
        return [n for n in reached if n <= room] or [1]
