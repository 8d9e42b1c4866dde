"""From raw figures to what is shown: every figure against one computed by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from bench_cases import IDS, results_of, run, step

from outpace.errors import OptionError
from outpace.measure.bench.results import BenchResults, Classified
from outpace.measure.bench.summary import read_summary, summarise
from outpace.measure.passes import PassTimes
from outpace.outputs import SpeculationStats

NGRAM, PEER = "ngram K=2", "other plain"


def columns(summary: dict[str, Any], method: str, setting: int = 0) -> dict[str, Any]:
    """Rows of a method by column."""
    (path,) = summary["paths"]
    methods = {row["method"]: row for row in path["settings"][setting]["methods"]}
    return {row["column"]: row for row in methods[method]["columns"]}


def test_ratios_are_medians_of_pairs_then_a_geometric_mean_over_prompts() -> None:
    """Twice as fast on one prompt, though one round is ten times slower for both; eight times as
    fast on the other."""
    speeds = {"1": [(10.0, 20.0), (1.0, 2.0), (11.0, 22.0)], "2": [(10.0, 80.0)]}
    runs = [
        run(method, speed, group=group, column=f"column {group}", round=number)
        for group, rounds in speeds.items()
        for number, pair in enumerate(rounds)
        for method, speed in zip(("plain", NGRAM), pair, strict=True)
    ]
    summary = summarise(results_of(runs))
    rows = columns(summary, NGRAM)
    assert list(rows) == ["column 1", "column 2", "all"]
    assert rows["column 1"]["ratio"]["mean"] == pytest.approx(2.0)
    assert rows["all"]["ratio"] == {
        "mean": pytest.approx(4.0),
        "low": None,
        "high": None,
        "num_prompts": 2,
    }
    assert rows["column 1"]["tokens_per_s"] == pytest.approx(20.0)
    assert rows["all"]["tokens_per_s"] == pytest.approx((20 + 80) / 2)
    # End to end: 11 tokens over half a second more.
    assert rows["column 2"]["end_to_end_tokens_per_s"] == pytest.approx(11 / (0.5 + 10 / 80))
    assert rows["column 2"]["end_to_end_ratio"]["mean"] == pytest.approx(1.5 / 0.625)
    assert rows["all"]["ttft_ms"] == pytest.approx(500.0)
    assert rows["all"]["num_prompts"] == 2
    plain = columns(summary, "plain")["all"]
    assert (plain["ratio"], plain["end_to_end_ratio"]) == (None, None)
    (setting,) = summary["paths"][0]["settings"]
    assert (setting["num_prompts"], setting["num_rounds"]) == (2, 3)


def test_three_prompts_have_an_interval() -> None:
    runs = [
        run(method, 10.0 * factor, group=str(i), column="qa")
        for i, ratio in enumerate((1.5, 2.0, 2.5))
        for method, factor in (("plain", 1.0), (NGRAM, ratio))
    ]
    ratio = columns(summarise(results_of(runs)), NGRAM)["all"]["ratio"]
    assert ratio["low"] < ratio["mean"] < ratio["high"]
    assert ratio["mean"] == pytest.approx(math.prod((1.5, 2.0, 2.5)) ** (1 / 3))


def test_acceptance_is_added_up_over_runs() -> None:
    stats = SpeculationStats(
        num_steps=5,
        num_output_tokens=11,
        num_drafts=4,
        num_draft_tokens=8,
        num_accepted_tokens=6,
        drafted_per_position=[4, 4],
        accepted_per_position=[3, 3],
        reached_per_position=[4, 3],
    )
    runs = [run("plain", 10.0), run(NGRAM, 20.0, stats=stats), run(PEER, 5.0)]
    runs += [run("plain", 10.0, group="2"), run(NGRAM, 20.0, group="2", stats=stats)]
    summary = summarise(results_of(runs))
    row = columns(summary, NGRAM)["all"]
    assert row["acceptance_length"] == pytest.approx(22 / 10)
    assert row["alpha"] == pytest.approx(12 / 14)
    assert row["conditional_acceptance"] == pytest.approx([6 / 8, 6 / 6])
    assert row["reached_per_position"] == [8, 6]
    peer = columns(summary, PEER)["all"]
    assert peer["acceptance_length"] is peer["alpha"] is peer["step"] is None
    assert peer["ratio"]["mean"] == pytest.approx(0.5)


PASSES = [
    PassTimes("native q4_1", 25, 1, [0.010, 0.020]),
    PassTimes("native q4_1", 25, 3, [0.015, 0.030]),
    # Cut off by an interruption.
    PassTimes("native q4_1", 25, 5, [0.020]),
]


def test_costs_of_steps_and_what_they_predict() -> None:
    """Plain: ten steps of 10 ms and 2 ms of rest, part of it between steps. Drafting: 4 steps with
    3 rows and one without a draft, 2.5 tokens a step."""
    plain = run("plain", 1 / 0.012, steps=[step(pass_ms=10.0)] * 10)
    drafting = step(pass_ms=16.0, draft_ms=1.0, rows=3, tokens=2)
    steps = [*[drafting] * 4, step(pass_ms=10.0, draft_ms=1.0, tokens=2)]
    seconds = 5 * 1e-3 + 4 * 16e-3 + 10e-3 + 5 * 2e-3
    mine = run(NGRAM, 10 / seconds, steps=steps)
    row = columns(summarise(results_of([plain, mine], PASSES)), NGRAM)["all"]
    assert row["step"]["num_rows"] == pytest.approx(13 / 5)
    assert row["step"]["draft_ms"] == pytest.approx(1.0)
    assert row["step"]["pass_ms"] == pytest.approx((4 * 16 + 10) / 5)
    assert row["step"]["rest_ms"] == pytest.approx(2.0)
    # 5 ms for the 8 draft tokens, over a plain pass.
    assert row["c"] == pytest.approx(5 / 8 / 10)
    # v(3) = 1.5: a step is expected to take 1 + 10 (4 x 1.5 + 1) / 5 + 2 ms, where plain takes 12.
    assert row["predicted_ratio"] == pytest.approx((2.0 / 17.0) / (1 / 12.0))
    assert row["ratio"]["mean"] == pytest.approx(0.12 / seconds)


def test_a_batch_is_predicted_against_plain_passes_over_as_many_requests() -> None:
    plain = run(
        "plain", 200.0, batch=3, group="a", column="all", steps=[step(pass_ms=14, rows=3, seqs=3)]
    )
    steps = [step(pass_ms=20, rows=5, seqs=3, tokens=6)]
    mine = run(NGRAM, 300.0, batch=3, group="a", column="all", steps=steps)
    row = columns(summarise(results_of([plain, mine], PASSES)), NGRAM)["all"]
    # Windows: 150 and 100 ms. v(5) / v(3) = 2 / 1.5 of plain's 14 ms; the rest is 80 ms.
    predicted = (30 / (14 * 2 / 1.5 + 80)) / (30 / 150)
    assert row["predicted_ratio"] == pytest.approx(predicted)
    assert row["num_prompts"] == 3


def test_passes_and_the_memory_limit() -> None:
    summary = summarise(results_of([run("plain", 80.0), run(NGRAM, 120.0)], PASSES))
    (path,) = summary["paths"]
    rows = {row["num_rows"]: row for row in path["passes"]}
    assert {n: row["v"] for n, row in rows.items()} == pytest.approx({1: 1.0, 3: 1.5, 5: 2.0})
    assert rows[1]["median_ms"] == pytest.approx(15.0)
    # 10 MB in 15 ms, where 1 GB/s can be read.
    assert rows[1]["limit_fraction"] == pytest.approx(10 / 15)
    assert columns(summary, "plain")["all"]["limit_fraction"] == pytest.approx(0.8)
    assert columns(summary, NGRAM)["all"]["limit_fraction"] == pytest.approx(1.2)


def test_unknown_limits_are_null() -> None:
    results = results_of([run("plain", 80.0)], PASSES)
    results.paths[0].memory_bytes_per_s = None
    summary = summarise(results)
    assert columns(summary, "plain")["all"]["limit_fraction"] is None
    assert summary["paths"][0]["passes"][0]["limit_fraction"] is None


OTHER = (*IDS[:4], 99, *IDS[5:])


@pytest.mark.parametrize(
    ("classified", "num_ties"),
    [
        ([], None),
        ([Classified(NGRAM, "1", IDS, OTHER, "tie")], 1),
        ([Classified(NGRAM, "1", IDS, OTHER, "violation")], 0),
    ],
    ids=["not looked into", "a tie", "a violation"],
)
def test_ids_that_differ_are_reported(classified: list[Classified], num_ties: int | None) -> None:
    runs = [run("plain", 10.0), run(NGRAM, 20.0, ids=OTHER)]
    runs += [run("plain", 10.0, group="2"), run(NGRAM, 20.0, group="2")]
    row = columns(summarise(results_of(runs, classified=classified)), NGRAM)["all"]
    assert (row["num_compared"], row["num_equal"], row["first_difference"]) == (2, 1, 4)
    assert row["num_ties"] == num_ties


def test_every_request_of_a_batch_is_compared_and_nothing_that_was_sampled() -> None:
    runs = [run("plain", 10.0, batch=4), run(NGRAM, 20.0, batch=4, ids=IDS[:-1])]
    runs += [run("plain", 10.0, temperature=0.8), run(NGRAM, 9.0, temperature=0.8, ids=OTHER)]
    summary = summarise(results_of(runs))
    greedy = columns(summary, NGRAM, 0)["all"]
    assert (greedy["num_compared"], greedy["num_equal"], greedy["first_difference"]) == (4, 0, 10)
    sampled = columns(summary, NGRAM, 1)["all"]
    assert (sampled["num_compared"], sampled["num_ties"]) == (0, None)


@pytest.mark.parametrize(
    ("ratios", "crossover"),
    [
        ({1: 2.0, 2: 1.1, 4: 0.9, 8: 0.8}, 4),
        ({1: 0.9, 2: 1.1, 4: 0.9, 8: 0.8}, 4),
        ({1: 0.9, 2: 0.9, 4: 0.9, 8: 0.8}, 1),
        ({1: 0.9, 2: 1.1, 4: 0.9, 8: 1.2}, None),
    ],
)
def test_the_crossover_is_where_every_larger_batch_is_slower(
    ratios: dict[int, float], crossover: int | None
) -> None:
    runs = [
        run(method, speed, batch=batch, column="all" if batch > 1 else "qa")
        for batch, ratio in ratios.items()
        for method, speed in (("plain", 10.0), (NGRAM, 10.0 * ratio), (PEER, 30.0))
    ]
    rows = {row["method"]: row for row in summarise(results_of(runs))["crossover"]}
    assert rows[NGRAM]["crossover_batch"] == crossover
    means = [(each["batch"], each["ratio"]["mean"]) for each in rows[NGRAM]["ratios"]]
    assert means == [(batch, pytest.approx(ratio)) for batch, ratio in ratios.items()]
    assert rows[PEER]["crossover_batch"] is None
    assert "plain" not in rows


def test_a_timeline_is_the_first_run_of_the_smallest_batch() -> None:
    steps = [step(pass_ms=16.0, draft_ms=1.0, rows=3, tokens=2)]
    runs = [
        run("plain", 10.0, batch=2, steps=[step(pass_ms=9.0)]),
        run("plain", 10.0, steps=[step(pass_ms=10.0)]),
        run(NGRAM, 20.0, steps=steps),
        run(NGRAM, 20.0, group="2", steps=[]),
        run(PEER, 20.0),
    ]
    first, second = summarise(results_of(runs))["paths"][0]["timelines"]
    assert (first["method"], first["prompt"], first["steps"][0]["pass_ms"]) == ("plain", "1", 10.0)
    (only,) = second["steps"]
    assert only == {
        "draft_ms": pytest.approx(1.0),
        "pass_ms": pytest.approx(16.0),
        "rest_ms": pytest.approx(1.0),
        "num_drafted": 2,
        "num_tokens": 2,
    }


def test_an_interrupted_run_still_has_a_summary() -> None:
    """In the middle of a lap: a column without a partner, answers that ended at once, no passes of
    one row."""
    alone = run(NGRAM, 20.0, group="2", column="rag")
    at_once = run("plain", 10.0, group="3", ids=IDS[:1])
    at_once.timing.window_tokens = 0
    results = results_of([run("plain", 10.0), run(NGRAM, 20.0), alone, at_once], PASSES[1:2])
    results.complete = False
    rows = columns(summarise(results), NGRAM)
    assert rows["rag"]["ratio"] is None
    assert rows["rag"]["num_compared"] == 0
    assert rows["all"]["ratio"]["num_prompts"] == 1
    assert summarise(results)["paths"][0]["passes"] == []
    assert summarise(BenchResults())["paths"] == []


def test_a_summary_survives_its_file(tmp_path: Path) -> None:
    summary = summarise(results_of([run("plain", 10.0), run(NGRAM, 20.0)], PASSES))
    file = tmp_path / "results.json"
    file.write_text(json.dumps(summary, allow_nan=False))
    assert read_summary(file) == summary
    assert summary["options"] == {"model": "tiny", "batches": [1]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("not JSON", "is not JSON"),
        ('{"answers": 1}', "is not what"),
        ("[]", "is not what"),
        ('{"schema": 0, "paths": [], "crossover": []}', "schema 0"),
    ],
)
def test_other_files_are_no_summary(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "other.json"
    file.write_text(text)
    with pytest.raises(OptionError, match=message):
        read_summary(file)


def test_methods_without_any_run_are_named() -> None:
    results = results_of([run("plain", 10.0), run(NGRAM, 20.0)])
    (path,) = summarise(results)["paths"]
    assert path["not_measured"] == [PEER]


def test_threads_are_told_and_files_without_them_are_read(tmp_path: Path) -> None:
    summary = summarise(results_of([run("plain", 10.0)], threads=3))
    (path,) = summary["paths"]
    assert path["threads"] == 3
    for name in ("threads", "not_measured"):
        del path[name]
    file = tmp_path / "results.json"
    file.write_text(json.dumps(summary))
    assert read_summary(file) == summary
