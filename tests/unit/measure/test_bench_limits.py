"""Settings of a benchmark at the ends of what a model and a machine can do."""

from __future__ import annotations

import time
from typing import Any

import pytest
from tiny import tiny_model

from outpace.errors import OptionError
from outpace.measure.bench.options import MOST_TOGETHER, BenchOptions
from outpace.measure.bench.results import BenchResults
from outpace.measure.bench.run import PathBench
from outpace.measure.prompts import BUILT_IN, BenchPrompt, Question

MODEL = tiny_model(seed=1, max_len=64)


class Progress:
    def describe(self, what: str) -> None:
        pass


def options(**values: Any) -> BenchOptions:
    return BenchOptions(model="tiny", prompts=(BUILT_IN,), **values)


def test_more_requests_than_any_memory_holds_are_refused() -> None:
    assert options(batches=(MOST_TOGETHER,)).batches == (MOST_TOGETHER,)
    with pytest.raises(OptionError, match="batch must be at most 1024, got 1000000000"):
        options(batches=(1, 10**9))


@pytest.mark.parametrize("max_tokens", [64, 10**6])
def test_answers_as_long_as_the_context_are_refused(max_tokens: int) -> None:
    results = BenchResults()
    bench = PathBench(options(max_tokens=max_tokens), MODEL, Progress(), results)
    with pytest.raises(OptionError, match="leaves no room for a prompt in the model's 64 tokens"):
        bench.run([Question.from_user("a", "a", "tea")], time.perf_counter())
    assert not results.paths


@pytest.mark.usefixtures("unchecked_shapes")
def test_passes_after_a_prompt_shorter_than_the_drafts_of_a_batch() -> None:
    configs = ({"method": "ngram", "num_speculative_tokens": 4},)
    asked = options(methods=configs, batches=(8,), max_tokens=4)
    bench = PathBench(asked, MODEL, Progress(), BenchResults())
    bench._time_passes([BenchPrompt("a", "a", (5, 6, 7))], time.perf_counter())
    assert [times.num_rows for times in bench._found.passes] == [
        1,
        2,
        3,
        4,
        5,
        6,
        8,
        12,
        16,
        24,
        32,
        48,
    ]
