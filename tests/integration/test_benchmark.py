"""The engine's benchmark: its arithmetic on made-up figures, and one tiny real run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from model_files import write_gguf

from outpace.measure import passes, prompts, timing

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@dataclass(frozen=True)
class Harness:
    """The benchmark's modules, which are no part of the package."""

    summary: ModuleType
    results: ModuleType
    methods: ModuleType
    passes: ModuleType
    prompts: ModuleType
    options: ModuleType


@pytest.fixture(scope="module")
def harness() -> Iterator[Harness]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        from harness import options, results, summary

        yield Harness(summary, results, timing, passes, prompts, options)


def make_run(
    harness: Harness,
    method: str,
    prompt: str,
    decode_s: float,
    *,
    round: int = 0,
    ids: tuple[int, ...] = (1, 2, 3, 4, 5),
    step_lens: tuple[int, ...] = (1, 1, 1, 1, 1),
) -> Any:
    timing = harness.methods.Timing(list(ids), list(step_lens), ttft_s=0.5, total_s=0.5 + decode_s)
    return harness.results.Run("float32", "greedy", round, prompt, "code", method, 7, timing)


def test_decoding_speed_leaves_out_the_first_step(harness: Harness) -> None:
    plain = make_run(harness, "plain", "a", 2.0)
    assert plain.decode_speed == pytest.approx(4 / 2.0)
    assert plain.end_to_end_speed == pytest.approx(5 / 2.5)
    drafted = make_run(harness, "ngram", "a", 2.0, step_lens=(3, 2))
    assert drafted.decode_speed == pytest.approx(2 / 2.0)
    assert make_run(harness, "ngram", "a", 0.0, step_lens=(5,)).decode_speed is None


def test_ratio_pairs_prompts_and_rounds(harness: Harness) -> None:
    """Each prompt twice as fast, though one prompt and one round are ten times slower."""
    plain, drafted = [], []
    for prompt, scale in (("a", 1.0), ("b", 10.0), ("c", 1.0)):
        for round, noise in ((0, 1.0), (1, 10.0)):
            plain.append(make_run(harness, "plain", prompt, 2 * scale * noise, round=round))
            drafted.append(make_run(harness, "ngram", prompt, scale * noise, round=round))
    ratio = harness.summary.speed_ratio(drafted, plain[::-1], harness.summary.decode_speed)
    assert (ratio.mean, ratio.low, ratio.high) == pytest.approx((2.0, 2.0, 2.0))
    assert ratio.num_prompts == 3
    inverse = harness.summary.speed_ratio(plain, drafted, harness.summary.decode_speed)
    assert inverse.mean == pytest.approx(0.5)


def test_ratio_takes_the_median_over_rounds_and_the_geometric_mean_over_prompts(
    harness: Harness,
) -> None:
    plain = [make_run(harness, "plain", p, 1.0, round=r) for p in "ab" for r in range(3)]
    seconds = {"a": (0.5, 0.5, 50.0), "b": (2.0, 2.0, 0.02)}
    drafted = [
        make_run(harness, "ngram", p, s, round=r)
        for p, values in seconds.items()
        for r, s in enumerate(values)
    ]
    ratio = harness.summary.speed_ratio(drafted, plain, harness.summary.decode_speed)
    assert ratio.mean == pytest.approx(1.0)
    assert ratio.low is None
    assert harness.summary.speed_ratio(drafted, [], harness.summary.decode_speed) is None


def test_bootstrap_interval_covers_the_truth_about_as_often_as_it_claims(harness: Harness) -> None:
    rng = np.random.default_rng(0)
    truth, repetitions = 1.5, 100
    covered = missed = 0
    for seed in range(repetitions):
        ratios = truth * np.exp(rng.normal(0.0, 0.2, size=30))
        found = harness.summary.geometric_mean(ratios, seed)
        assert found.low < found.mean < found.high
        covered += found.low <= truth <= found.high
        # The negative control: an interval around something else does not cover the truth.
        off = harness.summary.geometric_mean(1.25 * ratios, seed)
        missed += not off.low <= truth <= off.high
    assert covered >= 0.88 * repetitions
    assert missed >= 0.95 * repetitions


def test_ids_are_compared_within_prompt_and_round(harness: Harness) -> None:
    plain = [make_run(harness, "plain", p, 1.0, ids=(1, 2, 3)) for p in "ab"]
    same = [make_run(harness, "ngram", p, 1.0, ids=(1, 2, 3)) for p in "ab"]
    assert harness.summary.ids_compared(same, plain) == {
        "num_compared": 2,
        "num_equal": 2,
        "first_difference": None,
    }
    different = [same[0], make_run(harness, "ngram", "b", 1.0, ids=(1, 9, 3))]
    assert harness.summary.ids_compared(different, plain) == {
        "num_compared": 2,
        "num_equal": 1,
        "first_difference": 1,
    }
    assert harness.summary.first_difference([1, 2], [1, 2, 3]) == 2


def test_v_is_the_median_of_ratios_within_repetitions(harness: Harness) -> None:
    single = harness.passes.PassTimes("float32", 100, 1, [1.0, 10.0, 1.0])
    # The last repetition was interrupted.
    several = harness.passes.PassTimes("float32", 100, 4, [1.5, 15.0])
    rows = harness.summary.pass_rows([single, several])
    assert [row["v"] for row in rows] == pytest.approx([1.0, 1.5])
    assert rows[0]["median_ms"] == pytest.approx(1000.0)


class LetterTokenizer:
    """One token a letter, no chat template."""

    chat_template = None

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]


def test_prompts_are_spread_over_categories_and_long_ones_left_out(
    harness: Harness, tmp_path: Path
) -> None:
    rows = [{"category": "a", "turns": [f"a{i}", "second"]} for i in range(9)]
    rows += [{"category": "b", "prompt": f"b{i}"} for i in range(9)]
    rows += [{"category": "c", "prompt": "long" * 9}, {"category": "c", "prompt": "c0"}]
    file = tmp_path / "some_dev.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))

    def pick(seed: int) -> list[Any]:
        return harness.prompts.pick_prompts(
            file, LetterTokenizer(), count=7, max_tokens=5, seed=seed
        )

    assert [prompt.category for prompt in pick(0)] == [*"aaa", *"bbb", "c"]
    assert pick(0) == pick(0)
    assert pick(0) != pick(1)
    assert len({prompt.token_ids for prompt in pick(0)}) == 7


def test_spec_bench_conversations_count_as_one_category(harness: Harness, tmp_path: Path) -> None:
    rows = [{"category": name, "turns": [name]} for name in ("writing", "stem", "qa", "rag")]
    file = tmp_path / "spec_bench_dev.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    picked = harness.prompts.pick_prompts(file, LetterTokenizer(), count=9, max_tokens=99, seed=0)
    assert [p.category for p in picked] == ["conversation", "conversation", "qa", "rag"]


@pytest.mark.parametrize("line", ["{}", "not json", '{"turns": []}', '{"prompt": 3}', "[1]"])
def test_a_line_that_is_no_prompt_is_named(harness: Harness, tmp_path: Path, line: str) -> None:
    file = tmp_path / "broken.jsonl"
    file.write_text('{"prompt": "fine"}\n' + line)
    with pytest.raises(ValueError, match="line 2"):
        harness.prompts.pick_prompts(file, LetterTokenizer(), count=2, max_tokens=9, seed=0)


def test_options_are_parsed_and_refused(
    harness: Harness, capsys: pytest.CaptureFixture[str]
) -> None:
    parse = harness.options.parse_options
    options = parse("", ["--rows", "1-3,8", "--dtypes", "float32", "--draft-model", "small"])
    assert options.rows == (1, 2, 3, 8)
    assert options.dtypes == ("float32",)
    assert [c["method"] for c in options.speculative_configs] == ["ngram", "draft_model"]
    assert parse("", ["--peers", "none"]).peers == ()
    for arguments in (["--rows", "2"], ["--peers", "other"], ["--num-prompts", "0"]):
        with pytest.raises(SystemExit):
            parse("", arguments)
    assert "num-prompts" in capsys.readouterr().err


def test_tiny_run_fills_every_table_and_the_json_file(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    model = write_gguf(tmp_path / "model.gguf", metadata={"llama.context_length": 1024})
    arguments = f"--model {model} --num-prompts 1 --max-tokens 4 --dtypes float32 --rows 1,3"
    arguments += (
        " --contexts 12 --pass-repeats 1 --repeats 1 --threads 2 --peers transformers --json"
    )
    environment = {k: v for k, v in os.environ.items() if k != "OUTPACE_PROMPTS"}
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "engine.py"), *arguments.split(), str(file)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for title in ("1. A target pass", "2. outpace ngram", "3. Where a decoding", "4. Engines"):
        assert title in done.stdout
    document = json.loads(file.read_text())
    assert document["results"]["complete"]
    assert document["header"]["torch_threads"] == 2
    assert {(p["context_len"], p["num_rows"]) for p in document["results"]["passes"]} == {
        (12, 1),
        (12, 3),
    }
    runs = document["results"]["runs"]
    methods = {run["method"] for run in runs if run["decoding"] == "greedy"}
    assert {"outpace plain", "outpace ngram K=4", "transformers plain"} < methods
    assert all(sum(r["timing"]["step_lens"]) == len(r["timing"]["token_ids"]) for r in runs)
    assert len(document["results"]["overheads"]) == 4
    for group in document["summary"]["engines"]:
        assert all(row["num_compared"] == 1 for row in group["rows"])
        ours = [row for row in group["rows"] if row["method"] in group["methods"]]
        assert [row["num_equal"] for row in ours] == [1, 1]


@pytest.mark.model
def test_the_sampling_benchmark_times_every_case(tmp_path: Path) -> None:
    file = tmp_path / "sampling.json"
    command = [sys.executable, str(BENCHMARKS / "sampling.py"), "--json", str(file)]
    command += ["--vocab-sizes", "500", "--rows", "1", "3", "--repeats", "1"]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    found = json.loads(file.read_text())
    assert found["passes"][0]["seconds"]
    cases = {(cost["way"], cost["num_rows"]) for cost in found["costs"]}
    assert len(cases) == len(found["costs"]) == 16
    assert all(len(cost["seconds"]) == 1 for cost in found["costs"])
