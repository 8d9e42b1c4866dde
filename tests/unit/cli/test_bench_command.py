"""`outpace bench`: what its options ask for, what it prints and writes, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bench_cases import path_of, run

from outpace.errors import ModelError
from outpace.measure.bench import run as bench_run
from outpace.measure.bench.options import BenchOptions
from outpace.measure.bench.results import BenchResults
from outpace.measure.passes import PassTimes
from outpace.outputs import SpeculationStats

Run = Callable[..., tuple[int, str, str]]

STATS = SpeculationStats(
    num_steps=4,
    num_output_tokens=11,
    accepted_per_position=[3, 3],
    reached_per_position=[4, 3],
)


class Measuring:
    """Stands for `run_bench`: keeps the options, fills in results, and may end with an error."""

    def __init__(self) -> None:
        self.asked: BenchOptions | None = None
        self.error: BaseException | None = None
        self.finds_nothing = False

    def __call__(self, options: BenchOptions, progress: Any, results: BenchResults) -> None:
        self.asked = options
        progress.describe("measuring")
        results.model_name = options.model
        results.provenance = {"cpu": "a processor", "commit": None}
        if not self.finds_nothing:
            runs = [
                run(method, speed * batch, group=str(i), batch=batch, stats=STATS)
                for batch in (1, 4)
                for i in range(3)
                for method, speed in (("plain", 10.0), ("ngram K=2", 18.0 + i - 3 * batch))
            ]
            runs[1].timing.answers[0].token_ids[3] = 77
            passes = [PassTimes("native q4_1", 25, n, [n / 100]) for n in (1, 2)]
            results.paths.append(path_of(runs, passes))
        if self.error is not None:
            raise self.error
        results.complete = True


@pytest.fixture
def measuring(monkeypatch: pytest.MonkeyPatch) -> Measuring:
    made = Measuring()
    monkeypatch.setattr(bench_run, "run_bench", made)
    return made


def asked(run_cli: Run, measuring: Measuring, *arguments: str) -> BenchOptions:
    assert run_cli("bench", *arguments)[0] == 0
    assert measuring.asked is not None
    return measuring.asked


def test_defaults_are_five_minutes_of_the_built_in_prompts(
    run_cli: Run, measuring: Measuring
) -> None:
    options = asked(run_cli, measuring)
    assert (options.model, options.dtypes, options.methods) == ("smollm2-135m", ("auto",), ())
    assert (options.temperatures, options.batches) == ((0.0, 0.8), (1, 2, 4, 8))
    assert (options.minutes, options.per_column, options.max_tokens) == (5.0, 8, 128)
    assert [path.name for path in options.prompts] == ["prompts.jsonl"]


def test_quick_gives_way_to_what_is_given(run_cli: Run, measuring: Measuring) -> None:
    options = asked(run_cli, measuring, "--quick", "--max-tokens", "9", "--batch", "3")
    assert (options.minutes, options.temperatures, options.per_column) == (0.5, (0.0,), 1)
    assert (options.max_tokens, options.batches) == (9, (3,))


def test_lists_are_repeated_or_separated_by_commas(
    run_cli: Run, measuring: Measuring, tmp_path: Path
) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("Tell me more.")
    config = '{"method": "suffix", "shape": "tree"}'
    arguments = ["--method", "ngram:1-2,eagle3:3:tree", "--method", config, "--batch", "1,2"]
    arguments += ["--batch", "8", "--temperature", "0, 0.5", "--dtype", "q4_1,bfloat16"]
    arguments += ["--peer", "transformers", "--prompts", str(file), "--seed", "7", "--threads", "1"]
    options = asked(run_cli, measuring, *arguments)
    assert options.methods == (
        {"method": "ngram", "num_speculative_tokens": 1},
        {"method": "ngram", "num_speculative_tokens": 2},
        {"method": "eagle3", "num_speculative_tokens": 3, "shape": "tree"},
        {"method": "suffix", "shape": "tree"},
    )
    assert (options.batches, options.temperatures) == ((1, 2, 8), (0.0, 0.5))
    assert (options.dtypes, options.peers) == (("q4_1", "bfloat16"), ("transformers",))
    assert (options.prompts, options.seed, options.threads) == ((file,), 7, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "ngram:0"], "at least 1"),
        (["--method", "ngram:4:circle"], "is no drafting method"),
        (["--dtype", "int3"], "--dtype must be auto"),
        (["--batch", "two"], "--batch takes numbers separated by commas, got 'two'"),
        (["--batch", "1,0"], "batch must be a whole number of at least 1, got 0"),
        (["--batch", "2,2"], "batches names 2 twice"),
        (["--temperature", "-1"], "temperature must be a number of at least 0"),
        (["--temperature", "nan"], "temperature must be a number of at least 0"),
        (["--html", "nowhere/report.html"], "nowhere/report.html cannot be written"),
        (["--json", "nowhere/results.json"], "nowhere/results.json cannot be written"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(
    run_cli: Run, measuring: Measuring, arguments: list[str], message: str
) -> None:
    status, out, err = run_cli("bench", *arguments)
    assert (status, out, measuring.asked) == (1, "", None)
    assert message in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1


def test_a_missing_file_of_prompts_is_wrong_usage(run_cli: Run, measuring: Measuring) -> None:
    status, _, err = run_cli("bench", "--prompts", "nowhere.jsonl")
    assert (status, measuring.asked) == (2, None)
    assert "nowhere.jsonl" in err


def test_the_tables(run_cli: Run, measuring: Measuring) -> None:
    status, out, _ = run_cli("bench")
    assert status == 0
    text = " ".join(out.split())
    assert "v(n): a target pass over n rows" in text
    assert "2 2.00 20.00 ms 50 %" in text
    assert "3 prompts, up to 1 round." in text
    assert "Speed-up by column: native q4_1, greedy" in text
    assert "ngram K=2: ids differ in 1 of 3 answers, first from token 3." in text
    assert "Acceptance by position" in text
    assert "1 75 % 75 % 2 100 % 100 %" in text
    # Speeds of 15, 16 and 17 beside 10, then of 6, 7 and 8.
    assert "batch 1 1.60 [" in text
    assert "slower from batch 4" in text
    assert "Speculation pays here, one request at a time, best with ngram K=2." in text
    assert "other plain was not measured; the notes say why." in text
    assert text.endswith("complete, 0 min 0 s")


def test_json_alone_goes_to_stdout(run_cli: Run, measuring: Measuring, tmp_path: Path) -> None:
    status, out, _ = run_cli("bench", "--json", "-")
    assert status == 0
    document = json.loads(out)
    assert (document["schema"], document["complete"]) == (1, True)
    file = tmp_path / "results.json"
    run_cli("bench", "--json", str(file))
    assert json.loads(file.read_text()) == document


def test_show_measures_nothing(run_cli: Run, measuring: Measuring, tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    _, shown, _ = run_cli("bench", "--json", str(file))
    measuring.asked = None
    assert run_cli("bench", "--show", str(file))[1] == shown
    assert measuring.asked is None
    status, _, err = run_cli("bench", "--show", str(file), "--batch", "2")
    assert status == 1
    assert "--show measures nothing, so --batch has no meaning" in err


def test_an_interruption_shows_what_there_is(run_cli: Run, measuring: Measuring) -> None:
    measuring.error = KeyboardInterrupt()
    status, out, _ = run_cli("bench")
    assert status == 130
    assert "ngram K=2" in out
    assert "note: interrupted" in out
    assert "NOT complete" in out


@pytest.mark.parametrize("error", [ModelError("the disk is full"), RuntimeError("a bug")])
def test_what_was_measured_is_not_lost_to_a_failure(
    run_cli: Run, measuring: Measuring, error: Exception
) -> None:
    measuring.error = error
    status, out, _ = run_cli("bench")
    assert status == 1
    assert "ngram K=2" in out
    assert f"FAILED: {'RuntimeError: ' if isinstance(error, RuntimeError) else ''}{error}" in out


def test_without_results_there_are_no_tables(run_cli: Run, measuring: Measuring) -> None:
    measuring.finds_nothing = True
    measuring.error = KeyboardInterrupt()
    assert run_cli("bench")[:2] == (130, "")
    measuring.error = ModelError("no such model")
    status, out, err = run_cli("bench")
    assert (status, out) == (1, "")
    assert err.endswith("error: no such model\n")
