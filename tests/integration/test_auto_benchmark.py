"""The benchmark of `auto`: its arithmetic on made-up figures, and tiny real runs."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from model_files import write_gguf

from outpace import SamplingParams
from outpace.control.decisions import DecisionLog, RequestRecord, StepRecord
from outpace.errors import ModelError
from outpace.measure import decided, kept
from outpace.measure.prompts import BenchPrompt
from outpace.outputs import SpeculationStats

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@dataclass(frozen=True)
class Harness:
    """The benchmark's modules, which are no part of the package, and the script itself."""

    batches: ModuleType
    checks: ModuleType
    decisions: ModuleType
    engines: ModuleType
    methods: ModuleType
    options: ModuleType
    prompts: ModuleType
    results: ModuleType
    rounds: ModuleType
    summary: ModuleType
    runs: ModuleType
    script: ModuleType


@pytest.fixture(scope="module")
def harness() -> Iterator[Harness]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        import auto
        from harness import results as runs
        from harness import rounds
        from harness.auto import batches, checks, methods, options, prompts, results, summary

        yield Harness(
            batches,
            checks,
            decided,
            kept,
            methods,
            options,
            prompts,
            results,
            rounds,
            summary,
            runs,
            auto,
        )
        sys.modules.pop("auto")


def make_run(
    harness: Harness,
    method: str,
    prompt: str,
    speed: float,
    *,
    decoding: str = "greedy",
    category: str = "qa",
    decided: Any = None,
) -> Any:
    """Ten tokens after the first, at `speed` tokens per second."""
    timing = harness.engines.DecidedTiming(
        list(range(11)), [1] * 11, ttft_s=0.5, total_s=0.5 + 10 / speed, decided=decided
    )
    return harness.runs.Run("native", decoding, 0, prompt, category, method, 5, timing)


def make_summary(harness: Harness, speeds: dict[str, list[float]], **values: Any) -> Any:
    """Of part main: method -> its speed on each prompt. Of the prompts, half are of each column."""
    results = harness.results.Results(subject="auto", fixed=["slow", "quick"])
    for method, each in speeds.items():
        for index, speed in enumerate(each):
            category = "qa" if index < len(each) / 2 else "rag"
            run = make_run(harness, method, str(index), speed, category=category, **values)
            results.runs.append(run)
    return harness.summary.summarise(results)


SPEEDS = {
    "plain": [10.0] * 6,
    "auto": [20.0, 21.0, 19.0, 20.0, 21.0, 19.0],
    "slow": [11.0] * 6,
    "quick": [16.0] * 6,
}


def test_the_subject_is_compared_with_plain_and_the_best_fixed_method(harness: Harness) -> None:
    summary = make_summary(harness, SPEEDS)
    (group,) = summary["main"]
    assert [row["category"] for row in group["rows"]] == ["qa", "rag", "all"]
    total = group["rows"][-1]
    assert total["best_fixed"] == "quick"
    assert total["methods"]["auto"]["ratio"].mean == pytest.approx(2.0, rel=0.01)
    assert total["subject_to_best"].mean == pytest.approx(1.25, rel=0.01)
    assert total["subject_to_best"].low > 1.15
    assert total["methods"]["slow"]["subject_ratio"].mean == pytest.approx(20 / 11, rel=0.01)
    assert total["methods"]["auto"]["num_equal"] == 6


def test_the_best_fixed_method_may_differ_by_column(harness: Harness) -> None:
    slow = [30.0, 30.0, 30.0, 1.0, 1.0, 1.0]
    (group,) = make_summary(harness, {**SPEEDS, "slow": slow})["main"]
    assert [row["best_fixed"] for row in group["rows"]] == ["slow", "quick", "quick"]


@pytest.mark.parametrize(
    ("speeds", "holds"),
    [
        (SPEEDS, [True, True]),
        ({**SPEEDS, "quick": [25.0] * 6}, [False, True]),
        ({**SPEEDS, "quick": [25.0, 15.0] * 3}, [True, True]),
        ({**SPEEDS, "auto": [20.0, 21.0, 19.0, 9.0, 9.0, 9.0]}, [True, False]),
        ({name: each[:2] for name, each in SPEEDS.items()}, [None, None]),
    ],
    ids=["kept", "a faster one", "within the interval", "a column slower than plain", "too few"],
)
def test_promises_are_held_to_their_intervals(
    harness: Harness, speeds: dict[str, list[float]], holds: list[bool | None]
) -> None:
    checks = harness.checks.check(make_summary(harness, speeds))
    assert [check.holds for check in checks] == holds
    if holds[1] is False:
        assert checks[1].figure.startswith("rag 0.90")


def record(step: int, predicted: tuple[float, float], measured: tuple[int, float]) -> StepRecord:
    """predicted, measured: tokens and seconds."""
    requests = [RequestRecord(7, "lookup", 3, 1), RequestRecord(8, "none", 0, 0)]
    return StepRecord(step, 2, 5, 100, requests, *predicted, measured[0], 0.0, 0.0, measured[1])


class FakeMethod:
    """Notes when it was asked, and may refuse."""

    def __init__(self, name: str, log: list[str], timing: Any, refuses: bool = False) -> None:
        self.name = name
        self._log = log
        self._timing = timing
        self._refuses = refuses

    def generate(self, prompt: Any, params: Any) -> Any:
        if self._refuses:
            raise ModelError("not on this model")
        self._log.append(f"{self.name} {params.temperature}")
        return self._timing


class CountingProgress:
    """Work announced and done."""

    def __init__(self) -> None:
        self.expected = self.done = 0.0

    def expect(self, units: float) -> None:
        self.expected += units

    def tick(self, units: float = 1) -> None:
        self.done += units

    def describe(self, what: str) -> None:
        pass


@pytest.mark.parametrize(
    ("deadline", "repeats", "prompts"), [(-math.inf, 3, "13"), (math.inf, 2, "132132")]
)
def test_methods_take_turns_while_there_is_time(
    harness: Harness, deadline: float, repeats: int, prompts: str
) -> None:
    log: list[str] = []
    notes: list[str] = []
    timing = make_run(harness, "any", "1", 10.0).timing
    timing.stats.num_drafter_errors = 1
    kinds = (("1", "chat"), ("2", "chat"), ("3", "qa"))
    part = harness.rounds.Part(
        "native",
        "main",
        [FakeMethod(name, log, timing, refuses=name == "c") for name in "abc"],
        {f"t{t}": SamplingParams(temperature=t, max_tokens=3) for t in (0.0, 0.7)},
        harness.rounds.laps_by_category([BenchPrompt(*kind, (1, 2)) for kind in kinds]),
        [],
        frozenset("b"),
    ).warmed_up(notes.append)
    assert notes == ["native: c was not measured: not on this model"]
    log.clear()
    progress = CountingProgress()
    progress.expect(part.units(part.laps[0]))
    part.run(repeats, deadline, progress, notes.append)
    assert log[:6] == ["a 0.0", "b 0.0", "a 0.7", "b 0.0", "a 0.0", "a 0.7"]
    assert "".join(run.prompt for run in part.runs[::3]) == prompts
    assert progress.done == progress.expected
    assert "native: a FAILED and went on plain; see the log" in notes


def test_decisions_are_read_once_and_added_up(harness: Harness) -> None:
    log = DecisionLog()
    log.add(record(0, (9.0, 9.0), (9, 9.0)))
    reader = harness.decisions.DecisionReader(SimpleNamespace(decisions=log))
    assert reader.read().num_planned == 1
    log.add(record(1, (2.0, 1.1), (1, 1.0)))
    log.add(record(2, (2.0, 1.0), (3, 2.0)))
    log.add(record(3, (0.0, 0.0), (5, 1.0)))  # there was no plan
    decided = reader.read()
    assert (decided.num_planned, decided.num_tokens) == (2, 4)
    assert decided.token_error == pytest.approx(0.0)
    assert decided.time_error == pytest.approx(2.1 / 3.0 - 1)
    assert decided.time_errors == pytest.approx([0.1, -0.5])
    assert decided.steps == {"lookup": 3, "none": 3}
    assert (decided.drafted["lookup"], decided.accepted["lookup"]) == (9, 3)
    assert reader.read().steps == {}
    assert harness.decisions.DecisionReader(SimpleNamespace(decisions=None)).read() is None


@pytest.mark.parametrize(
    ("seconds", "tokens", "holds"), [(1.05, 1.95, [True, True]), (1.2, 1.0, [False, False])]
)
def test_predictions_are_held_to_what_was_measured(
    harness: Harness, seconds: float, tokens: float, holds: list[bool]
) -> None:
    decided = harness.decisions.Decided.of([record(0, (tokens, seconds), (2, 1.0))])
    summary = make_summary(harness, {"plain": [1.0] * 4, "auto": [1.0] * 4}, decided=decided)
    (group,) = summary["main"]
    assert group["decided"]["shares"] == {"lookup": 0.5, "none": 0.5}
    assert group["decided"]["time_error"] == pytest.approx(seconds - 1)
    foreseen = [c for c in harness.checks.check(summary) if "predicted" in c.what]
    assert [check.holds for check in foreseen] == holds


def make_batch(
    harness: Harness, method: str, group: str, window_s: float, drafted: dict[str, list[int]]
) -> Any:
    """One request of each kind of `drafted`, with ten steps whose drafts were that often of at
    least 1, 2, ... tokens."""
    answers = [
        harness.engines.Answer([1, 2], 0.1, SpeculationStats(10, 15, drafted_per_position=counts))
        for counts in drafted.values()
    ]
    timing = harness.engines.BatchTiming(answers, window_s + 1.0, window_s, 100)
    kinds = tuple(drafted)
    return harness.results.BatchRun(
        "native", "mixed", "mixed", 0, group, method, kinds, kinds, timing
    )


def test_batches_are_compared_by_their_total_throughput(harness: Harness) -> None:
    results = harness.results.Results(subject="auto", fixed=["quick"])
    drafted = {"copying": [10, 8, 4], "hard": [2]}
    for group in "abc":
        for method, window_s in (("plain", 10.0), ("auto", 5.0), ("quick", 8.0)):
            results.batch_runs.append(make_batch(harness, method, group, window_s, drafted))
    summary = harness.summary.summarise(results)
    (mixed,) = summary["mixed"]
    assert summary["batch"] == []
    assert mixed["row"]["methods"]["auto"]["tokens_per_s"] == pytest.approx(20.0)
    assert mixed["row"]["methods"]["auto"]["ratio"].mean == pytest.approx(2.0)
    assert mixed["row"]["methods"]["auto"]["end_to_end_ratio"].mean == pytest.approx(11 / 6)
    assert mixed["row"]["subject_to_best"].mean == pytest.approx(1.6)
    # The hard ones are sampled without a seed, so that only the copying ones must be alike.
    assert mixed["row"]["methods"]["auto"]["num_compared"] == 3
    by_kind = {row["kind"]: row for row in mixed["lengths"] if row["method"] == "auto"}
    assert by_kind["copying"]["mean"] == pytest.approx(2.2)
    assert by_kind["copying"]["shares"] == pytest.approx([0, 0.2, 0.4, 0.4, 0, 0])
    assert by_kind["hard"]["shares"] == pytest.approx([0.8, 0.2, 0, 0, 0, 0])
    assert [row["request"] for row in mixed["requests"]] == ["copying", "hard"]
    assert all(check.holds for check in harness.checks.check(summary))


def test_siblings_in_a_tree_are_not_taken_for_longer_drafts(harness: Harness) -> None:
    stats = SpeculationStats(10, 15, drafted_per_position=[30, 40])
    row = harness.summary.lengths(stats, is_tree=True)
    assert (row["mean"], row["shares"]) == (7.0, [])
    _, configs = harness.methods.compared(
        {"method": "auto"}, harness.methods.as_configs("suffix:2:tree,suffix:3:chain,ngram:1"), None
    )
    assert harness.methods.tree_methods(configs) == ["suffix tree K=2"]


def test_equal_lengths_for_all_are_told(harness: Harness) -> None:
    results = harness.results.Results(subject="auto")
    drafted = {"copying": [4, 4], "hard": [4, 4]}
    results.batch_runs.append(make_batch(harness, "auto", "a", 1.0, drafted))
    (check,) = harness.checks.check(harness.summary.summarise(results))
    assert (check.holds, check.figure) == (False, "0.8 and 0.8 tokens")


def test_groups_take_from_all_columns_alike(harness: Harness) -> None:
    prompts = [
        SimpleNamespace(category=category, label=f"{category} {i}")
        for category, count in (("qa", 5), ("rag", 5), ("code", 1))
        for i in range(count)
    ]
    params = SamplingParams(max_tokens=3)
    groups = harness.prompts.sized_groups(prompts, 3, 4, "greedy", params, seed=0)
    assert [len(group.prompts) for group in groups] == [3] * 4
    assert {p.category for p in groups[0].prompts} == {"qa", "rag", "code"}
    used = [p.label for group in groups for p in group.prompts]
    assert len(set(used)) == 11  # all of them, before one comes again
    assert groups[0].num_tokens == 9


def test_methods_are_written_shortly(harness: Harness) -> None:
    as_configs = harness.methods.as_configs
    assert as_configs("suffix:1-2, eagle3:3:tree") == (
        {"method": "suffix", "num_speculative_tokens": 1},
        {"method": "suffix", "num_speculative_tokens": 2},
        {"method": "eagle3", "num_speculative_tokens": 3, "shape": "tree"},
    )
    assert as_configs("none") == ()
    name, configs = harness.methods.compared(
        {"method": "auto"}, as_configs("ngram:2,eagle3:1"), draft="somewhere"
    )
    assert (name, list(configs)) == ("auto", ["plain", "auto", "ngram K=2", "eagle3 K=1"])
    assert configs["plain"] == {"method": "none"}
    assert [config.get("model") for config in configs.values()] == [
        None,
        "somewhere",
        None,
        "somewhere",
    ]


def test_options_are_parsed_and_refused(
    harness: Harness, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    parse = harness.options.parse_options
    options = parse("", ["--parts", "mixed,entropy", "--subject", "suffix:3"])
    assert options.parts == ("mixed", "entropy")
    assert options.subject == {"method": "suffix", "num_speculative_tokens": 3}
    assert options.formats == ("q4_1", "bfloat16")
    assert not options.peers
    quick = parse("", ["--quick", "--max-tokens", "5"])
    assert (quick.max_tokens, quick.minutes, quick.batch_sizes) == (5, 0, (1, 2))
    for arguments, words in (
        (["--parts", "all"], "unknown 'all' in parts"),
        (["--decodings", "beam"], "unknown 'beam'"),
        (["--fixed", "suffix:1:star"], "write METHOD[:K[:chain or tree]]"),
        (["--fixed", "suffix:much"], "or a range such as 1-4"),
        (["--subject", "suffix:1-2"], "is not one method"),
        (["--json", str(tmp_path / "no" / "a.json")], "there is no directory"),
    ):
        with pytest.raises(SystemExit):
            parse("", arguments)
        assert words in capsys.readouterr().err


RunScript = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def run_script(harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunScript:
    """Runs the script on a tiny model and two prompts, in this process."""
    model = write_gguf(tmp_path / "model.gguf", metadata={"llama.context_length": 1024})
    prompts = tmp_path / "spec_bench_dev.jsonl"
    rows = [
        {"question_id": 1, "category": "writing", "turns": ["Say a.", "Again."]},
        {"question_id": 2, "category": "qa", "turns": ["What is b?"]},
    ]
    prompts.write_text("\n".join(map(json.dumps, rows)))

    def run(arguments: str) -> tuple[int, dict[str, Any]]:
        file = tmp_path / "results.json"
        command = f"auto.py --model {model} --prompts {prompts} --json {file} --quick "
        command += "--formats float64 --model-impl torch --max-tokens 6 --fixed ngram:2 "
        monkeypatch.setattr(sys, "argv", (command + arguments).split())
        status = harness.script.main()
        return status, json.loads(file.read_text()) if file.exists() else {}

    return run


@pytest.mark.parametrize("subject", ["auto", "suffix:3"])
def test_tiny_run_measures_every_part(
    run_script: RunScript, capsys: pytest.CaptureFixture[str], subject: str
) -> None:
    status, document = run_script(f"--subject {subject}")
    shown = capsys.readouterr().out
    assert status == 0, shown
    for title in (
        "1. ",
        "2. Tokens",
        "3. Where",
        "5. Random",
        "6. Four",
        "7. How",
        "8. ",
        "9. What",
    ):
        assert title in shown
    assert ("4. What" in shown) == (subject == "auto")
    results = document["results"]
    assert results["complete"]
    name = results["subject"]
    assert len(results["runs"]) == 2 * 2 * 3
    assert {run["method"] for run in results["entropy_runs"]} == {"plain", name}
    assert {run["method"] for run in results["batch_runs"]} == {"plain", name, "ngram K=2"}
    assert [len(run["labels"]) for run in results["batch_runs"]] == [8] * 3 + [1] * 3 + [2] * 3
    for run in results["runs"]:
        assert run["timing"]["num_cached_tokens"] == 0
        assert (run["timing"]["decided"] is not None) == (run["method"] == "auto")
    greedy, _ = document["summary"]["main"]
    # In float64 rounding decides nothing, so nothing may differ.
    for row in greedy["rows"]:
        for method in row["methods"].values():
            assert method["num_equal"] == method["num_compared"] > 0
    for row in document["summary"]["batch"][0]["rows"]:
        assert all(m["num_equal"] == m["num_compared"] for m in row["methods"].values())
    if subject == "auto":
        # A step of a batch counts for every request in it.
        assert sum(greedy["decided"]["shares"].values()) == pytest.approx(1.0)


def test_parts_can_be_left_out(run_script: RunScript, capsys: pytest.CaptureFixture[str]) -> None:
    status, document = run_script("--subject suffix:3 --parts mixed")
    assert status == 0
    results = document["results"]
    assert not results["runs"]
    assert not results["entropy_runs"]
    assert {run["part"] for run in results["batch_runs"]} == {"mixed"}
    assert "8. " not in capsys.readouterr().out


def test_an_interruption_leaves_what_was_measured(
    harness: Harness,
    run_script: RunScript,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    generate_batch, calls = harness.engines.KeptEngine.generate_batch, []

    def interrupted(self: Any, *arguments: Any) -> Any:
        calls.append(self.name)
        if len(calls) == 3 + 3:  # three of them warm up
            raise KeyboardInterrupt
        return generate_batch(self, *arguments)

    monkeypatch.setattr(harness.engines.KeptEngine, "generate_batch", interrupted)
    status, document = run_script("--subject suffix:3 --parts mixed,batch")
    assert status == 130
    results = document["results"]
    assert not results["complete"]
    assert any(note.startswith("interrupted") for note in results["notes"])
    assert [run["method"] for run in results["batch_runs"]] == ["plain", "suffix K=3"]
    assert "6. Four" in capsys.readouterr().out


def test_a_peer_that_is_missing_is_told(
    run_script: RunScript, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    status, document = run_script(
        "--subject suffix:3 --parts main --peer llama.cpp --decodings greedy --formats bfloat16"
    )
    assert status == 0
    (note,) = [note for note in document["results"]["notes"] if "not measured" in note]
    assert note.startswith("llama.cpp was not measured: the peer llama.cpp needs the package")
    assert "Note: llama.cpp was not measured" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--subject suffocate", "unknown speculative method 'suffocate'; known methods: "),
        ("--subject suffix:3 --formats float7", "float7"),
    ],
)
def test_what_does_not_exist_is_refused_in_one_line(
    run_script: RunScript, capsys: pytest.CaptureFixture[str], arguments: str, words: str
) -> None:
    status, document = run_script(arguments)
    captured = capsys.readouterr()
    assert (status, document) == (2, {})
    (line,) = [line for line in captured.err.splitlines() if line.startswith("error:")]
    assert words in line
