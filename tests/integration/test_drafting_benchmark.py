"""The benchmark of drafting methods: its arithmetic on made-up figures, and tiny real runs."""

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
from outpace.drafters import available_methods
from outpace.engine.metrics import EngineMetrics
from outpace.errors import ModelError
from outpace.measure import prompts, timing
from outpace.measure.methods import name_of, named
from outpace.outputs import SpeculationStats

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@dataclass(frozen=True)
class Harness:
    """The benchmark's modules, which are no part of the package, and the script itself."""

    methods: ModuleType
    chosen: ModuleType
    prompts: ModuleType
    results: ModuleType
    rounds: ModuleType
    summary: ModuleType
    options: ModuleType
    script: ModuleType


@pytest.fixture(scope="module")
def harness() -> Iterator[Harness]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        import drafting
        from harness import results
        from harness.drafting import methods as chosen
        from harness.drafting import options, rounds, summary

        yield Harness(timing, chosen, prompts, results, rounds, summary, options, drafting)
        sys.modules.pop("drafting")


def make_run(
    harness: Harness,
    method: str,
    prompt: str = "a",
    *,
    decode_s: float = 1.0,
    step_lens: tuple[int, ...] = (1, 1, 1),
    drafted: int = 0,
    counted: EngineMetrics | None = None,
    category: str = "code",
) -> Any:
    """A run whose every step fed `drafted` draft tokens."""
    num_tokens, num_steps = sum(step_lens), len(step_lens)
    timing = harness.methods.Timing(
        list(range(num_tokens)),
        list(step_lens),
        ttft_s=0.5,
        total_s=0.5 + decode_s,
        counted=counted or EngineMetrics(num_steps - 1, 0.0, decode_s, decode_s),
        stats=SpeculationStats(num_steps, num_tokens, drafted * num_steps),
    )
    return harness.results.Run("native", "greedy", 0, prompt, category, method, 100, timing)


def test_where_a_step_goes_is_per_step_after_the_first(harness: Harness) -> None:
    counted = EngineMetrics(num_steps=2, draft_s=0.2, target_s=1.0, step_s=1.5)
    run = make_run(harness, "ngram", decode_s=2.0, step_lens=(1, 3, 2), drafted=4, counted=counted)
    cost = harness.summary.cost([run, run])
    assert (cost.num_rows, cost.draft_ms, cost.pass_ms, cost.rest_ms) == pytest.approx(
        (5.0, 100.0, 500.0, 150.0)
    )
    assert (cost.acceptance_length, cost.tokens_per_s) == pytest.approx((2.5, 2.5))
    assert cost.draft_token_ms == pytest.approx(25.0)
    ended_at_once = make_run(harness, "ngram", step_lens=(1,))
    assert harness.summary.cost([ended_at_once]) is None


def test_c_is_drafting_per_token_over_a_plain_pass_of_the_same_category(harness: Harness) -> None:
    runs = []
    for category, pass_s in (("code", 0.1), ("qa", 0.4)):
        for name, drafted in (("plain", 0), ("ngram", 4)):
            # The method's own passes are longer, which must not matter.
            counted = EngineMetrics(2, 0.16 * bool(drafted), 2 * pass_s * (1 + drafted), 9.0)
            run = make_run(
                harness, name, category, drafted=drafted, counted=counted, category=category
            )
            runs.append(run)
    rows = harness.summary.drafting_rows(runs, "ngram", "plain", seed=0)
    assert {row["category"]: row["c"] for row in rows} == pytest.approx(
        {"code": 0.2, "qa": 0.05, "all": 0.02 / 0.25}
    )
    plain = harness.summary.drafting_rows(runs, "plain", "plain", seed=0)
    assert [row["c"] for row in plain] == [None] * 3


def width_figures(harness: Harness, tree_s: list[float]) -> tuple[list[Any], list[Any]]:
    """Plain, a chain and a tree on as many prompts as `tree_s` has times of the tree."""
    widths, _ = harness.chosen.width_configs(["suffix"], [4])
    chain, tree = (width.name for width in widths)
    runs = []
    for index, seconds in enumerate(tree_s):
        prompt = str(index)
        runs.append(make_run(harness, "plain", prompt, decode_s=1.0))
        counted = EngineMetrics(2, 0.1, 1.2, 1.4)
        runs.append(make_run(harness, chain, prompt, decode_s=1.0, drafted=2, counted=counted))
        runs.append(make_run(harness, tree, prompt, decode_s=seconds, drafted=4, counted=counted))
    return widths, runs


def passes(v_by_rows: dict[int, float], shape: str, context_len: int = 100) -> list[Any]:
    return [
        {"dtype": "native", "context_len": context_len, "shape": shape, "num_rows": n, "v": v}
        for n, v in v_by_rows.items()
    ]


def test_prediction_divides_acceptance_by_drafting_and_verifying(harness: Harness) -> None:
    widths, runs = width_figures(harness, [1.0])
    measured = passes({1: 1.0, 5: 1.4}, "chain") + passes({1: 1.0, 5: 2.0}, "tree")
    (row,) = harness.summary.width_rows(runs, widths, "plain", measured, seed=0)
    # Two tokens in two steps; a plain pass takes 0.5 s, drafting 0.05 s.
    assert row["chain"]["predicted_tokens_per_s"] == pytest.approx(1 / (0.05 + 1.2 * 0.5))
    assert row["tree"]["predicted_tokens_per_s"] == pytest.approx(1 / (0.05 + 2.0 * 0.5))
    assert row["chain"]["cost"].tokens_per_s == pytest.approx(2.0)
    (unpredicted,) = harness.summary.width_rows(runs, widths, "plain", [], seed=0)
    assert unpredicted["chain"]["predicted_tokens_per_s"] is None


@pytest.mark.parametrize(
    ("tree_s", "expected"),
    [
        ([0.5, 0.6, 0.5, 0.4], "tree"),
        ([2.0, 1.5, 2.0, 1.8], "chain"),
        ([0.5, 2.0, 0.4, 2.2], ""),
        ([0.5, 0.5], ""),
    ],
)
def test_a_shape_wins_only_with_an_interval_that_says_so(
    harness: Harness, tree_s: list[float], expected: str
) -> None:
    widths, runs = width_figures(harness, tree_s)
    (row,) = harness.summary.width_rows(runs, widths, "plain", [], seed=0)
    assert row["winner"] == expected
    expected_ratio = math.prod(tree_s) ** (-1 / len(tree_s))
    assert row["tree_to_chain"].mean == pytest.approx(expected_ratio)


def test_v_is_read_between_rows_at_the_nearest_context(harness: Harness) -> None:
    measured = passes({1: 1.0, 3: 1.2, 9: 1.8}, "chain") + passes({1: 1.0, 9: 5.0}, "chain", 800)
    measured += passes({1: 1.0, 9: 3.0}, "tree")
    v_at = harness.summary.v_at
    assert v_at(measured, "native", "chain", 6.0, 300.0) == pytest.approx(1.5)
    assert v_at(measured, "native", "chain", 5.0, 700.0) == pytest.approx(3.0)
    assert v_at(measured, "native", "tree", 5.0, 0.0) == pytest.approx(2.0)
    assert v_at(measured, "torch", "chain", 5.0, 0.0) is None


TRAINED = ("draft_model", "eagle3", "eagle", "medusa", "auto")
"""Methods that draft with weights which somebody names, and the one that has its own benchmark."""


def test_every_installed_method_is_measured_in_every_shape(harness: Harness) -> None:
    configs = named(harness.chosen.installed_configs())
    methods = {config["method"] for config in configs.values()}
    assert methods == set(available_methods()) - {"none", *TRAINED}
    assert {c.get("shape") for c in configs.values() if c["method"] == "suffix"} == {
        "chain",
        "tree",
    }
    assert harness.chosen.asked_configs(["all"]) == harness.chosen.installed_configs()
    assert harness.chosen.asked_configs(["ngram"]) == [{"method": "ngram"}]
    name = name_of
    assert name({"method": "suffix", "shape": "tree", "num_speculative_tokens": 16}) == (
        "suffix tree K=16"
    )
    assert name({"method": "ngram", "prompt_lookup_max": 2}) == "ngram K=4 prompt_lookup_max=2"


class LetterTokenizer:
    """One token a letter, no chat template."""

    chat_template = None

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]


def test_a_later_turn_holds_what_was_said_before(harness: Harness) -> None:
    question = harness.prompts.Question("7", "conversation", ("one", "two"))
    first = question.prompt(LetterTokenizer())
    second = question.prompt(LetterTokenizer(), ["answer"])
    assert "".join(map(chr, first.token_ids)) == "one"
    assert "".join(map(chr, second.token_ids)) == "one\nanswer\ntwo"
    assert (first.label, second.label) == ("7", "7 turn 2")


def test_questions_are_picked_from_all_files(harness: Harness, tmp_path: Path) -> None:
    files = [tmp_path / "a_dev.jsonl", tmp_path / "b_dev.jsonl"]
    files[0].write_text("\n".join(json.dumps({"prompt": f"a{i}"}) for i in range(5)))
    files[1].write_text("\n".join(json.dumps({"turns": [f"b{i}", "b"]}) for i in range(5)))
    picked = harness.prompts.pick_questions(
        files, LetterTokenizer(), per_category=2, max_tokens=9, seed=0
    )
    assert [question.category for question in picked] == ["a", "a", "b", "b"]
    assert [len(question.turns) for question in picked] == [1, 1, 2, 2]
    assert len({question.label for question in picked}) == 4


def conversations(harness: Harness) -> list[list[Any]]:
    def prompt(label: str, category: str) -> Any:
        return harness.prompts.BenchPrompt(label, category, (1, 2, 3))

    return [
        [prompt("1", "chat"), prompt("1 turn 2", "chat")],
        [prompt("2", "chat"), prompt("2 turn 2", "chat")],
        [prompt("3", "qa")],
    ]


def test_a_lap_is_one_question_of_every_category(harness: Harness) -> None:
    laps = harness.rounds.laps_by_category(conversations(harness))
    labels = [[prompt.label for prompt in lap] for lap in laps]
    assert labels == [["1", "1 turn 2", "3"], ["2", "2 turn 2"]]


def test_what_an_engine_answers_before_is_of_other_conversations(harness: Harness) -> None:
    before = harness.rounds.prompts_before(conversations(harness), 2, seed=0)
    assert {p.label for p in before["1 turn 2"]} == {"2", "3"}
    assert {p.label for p in before["3"]} == {"1", "2"}
    assert all(not those for those in harness.rounds.prompts_before([], 2, seed=0).values())


class FakeMethod:
    """Notes when it was asked, and may refuse."""

    def __init__(self, name: str, log: list[str], timing: Any, refuses: bool = False) -> None:
        self.name = name
        self._log = log
        self._timing = timing
        self._refuses = refuses

    def generate(self, prompt: Any, params: Any, before: Any = ()) -> Any:
        if self._refuses:
            raise ModelError("not on this model")
        self._log.append(f"{self.name} {params.temperature}")
        return self._timing


class QuietProgress:
    """Work announced and done."""

    def __init__(self) -> None:
        self.expected = self.done = 0.0

    def expect(self, units: float) -> None:
        self.expected += units

    def tick(self, units: float = 1) -> None:
        self.done += units

    def describe(self, what: str) -> None:
        pass


@pytest.fixture
def fake_part(harness: Harness) -> SimpleNamespace:
    """A part of three methods, one of which refuses, with its log, notes and progress."""
    log: list[str] = []
    notes: list[str] = []
    timing = make_run(harness, "any").timing
    methods = [FakeMethod(name, log, timing, refuses=name == "c") for name in "abc"]
    decodings = {
        "greedy": SamplingParams(temperature=0.0, max_tokens=3),
        "sampled": SamplingParams(temperature=0.7, max_tokens=3),
    }
    laps = harness.rounds.laps_by_category(conversations(harness))
    part = harness.rounds.Part("native", "methods", methods, decodings, laps, {}, [])
    usable = part.warmed_up(notes.append)
    log.clear()
    return SimpleNamespace(part=usable, log=log, notes=notes, progress=QuietProgress())


def test_methods_take_turns_at_being_first(fake_part: SimpleNamespace) -> None:
    part, progress = fake_part.part, fake_part.progress
    progress.expect(part.units(part.laps[0]))
    part.run(1, math.inf, progress, fake_part.notes.append)
    assert fake_part.log[:8] == [
        *("a 0.0", "b 0.0", "a 0.7", "b 0.7"),
        *("b 0.0", "a 0.0", "b 0.7", "a 0.7"),
    ]
    assert [run.prompt for run in part.runs[::4]] == ["1", "1 turn 2", "3", "2", "2 turn 2"]
    assert progress.done == progress.expected
    assert fake_part.notes == ["native: c was not measured: not on this model"]


@pytest.mark.parametrize(
    ("deadline", "repeats", "num_prompts"), [(-math.inf, 3, 3), (math.inf, 1, 5), (math.inf, 2, 10)]
)
def test_the_first_lap_always_runs_and_others_while_there_is_time(
    fake_part: SimpleNamespace, deadline: float, repeats: int, num_prompts: int
) -> None:
    part = fake_part.part
    part.run(repeats, deadline, fake_part.progress, fake_part.notes.append)
    assert len(part.runs) == 4 * num_prompts
    assert {run.round for run in part.runs} == set(range(math.ceil(num_prompts / 5)))


def test_a_drafter_that_fails_is_named(fake_part: SimpleNamespace) -> None:
    part = fake_part.part
    part.methods[0]._timing.stats.num_drafter_errors = 1
    part.run(1, -math.inf, fake_part.progress, fake_part.notes.append)
    assert "native: a FAILED and went on plain; see the log" in fake_part.notes


def test_options_are_parsed_and_refused(
    harness: Harness, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    parse = harness.options.parse_options
    options = parse("", ["--widths", "1,4", "--method-config", '{"method": "ngram"}'])
    assert (options.widths, options.method_configs) == ((1, 4), ({"method": "ngram"},))
    assert options.max_tokens == 128
    for arguments, words in (
        (["--rows", "2"], "must include 1"),
        (["--decodings", "beam"], "unknown 'beam'"),
        (["--method-config", "[]"], "expected a JSON object"),
        (["--json", str(tmp_path / "no" / "a.json")], "there is no directory"),
    ):
        with pytest.raises(SystemExit):
            parse("", arguments)
        assert words in capsys.readouterr().err


RunScript = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def run_script(harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunScript:
    """Runs the script on a tiny model and three prompts, in this process."""
    model = write_gguf(tmp_path / "model.gguf", metadata={"llama.context_length": 1024})
    prompts = tmp_path / "spec_bench_dev.jsonl"
    rows = [
        {"question_id": 1, "category": "writing", "turns": ["Say a.", "Again."]},
        {"question_id": 2, "category": "qa", "turns": ["What is b?"]},
    ]
    prompts.write_text("\n".join(map(json.dumps, rows)))

    def run(arguments: str) -> tuple[int, dict[str, Any]]:
        file = tmp_path / "results.json"
        command = f"drafting.py --model {model} --prompts {prompts} --json {file} "
        command += "--dtypes float64 --model-impls torch --max-tokens 6 --repeats 1 --rows 1,3 "
        command += "--contexts 12,9999 --pass-repeats 1 --widths 1,3 " + arguments
        monkeypatch.setattr(sys, "argv", command.split())
        status = harness.script.main()
        return status, json.loads(file.read_text()) if file.exists() else {}

    return run


def test_tiny_run_measures_every_method(
    run_script: RunScript, capsys: pytest.CaptureFixture[str]
) -> None:
    status, document = run_script("--width-methods suffix --width-prompts 1 --warm-up-prompts 1")
    shown = capsys.readouterr().out
    assert status == 0, shown
    for title in ("1. A target pass", "2. ngram K=4", "3. Acceptance", "4. Chain against tree"):
        assert title in shown
    assert set(document) == {"header", "options", "results", "summary"}
    results = document["results"]
    assert results["complete"]
    assert results["paths"] == ["torch float64"]
    assert set(results["answers"]) == {"1"}
    assert [note for note in results["notes"] if "9999" in note] == results["notes"]
    assert {(p["shape"], p["num_rows"]) for p in results["passes"]} == {
        (shape, n) for shape in ("chain", "tree") for n in (1, 3)
    }
    runs = results["runs"]
    methods = {run["method"] for run in runs}
    assert {method.split()[0] for method in methods} == {"plain", *available_methods()} - {
        "none",
        *TRAINED,
    }
    assert len(runs) == 2 * 3 * len(methods)
    assert len(results["width_runs"]) == 1 + 4
    check_counters([*runs, *results["width_runs"]])
    for group in document["summary"]["drafting"]:
        assert [row["category"] for row in group["rows"]] == ["conversation", "qa", "all"]
        assert [row["num_prompts"] for row in group["rows"]] == [2, 1, 3]
        # In float64 rounding decides nothing, so nothing may differ.
        assert [row["num_equal"] for row in group["rows"]] == [2, 1, 3]
    (widths,) = document["summary"]["widths"]
    assert [row["num_speculative_tokens"] for row in widths["rows"]] == [1, 3]
    assert all(
        row[s]["predicted_tokens_per_s"] for row in widths["rows"] for s in ("chain", "tree")
    )


def check_counters(runs: list[Any]) -> None:
    """What the engine counted is what the caller saw."""
    for run in runs:
        timing, stats = run["timing"], run["timing"]["stats"]
        num_steps = len(timing["step_lens"])
        assert (stats["num_steps"], stats["num_output_tokens"]) == (
            num_steps,
            len(timing["token_ids"]),
        )
        assert sum(stats["drafted_per_position"]) == stats["num_draft_tokens"]
        assert timing["counted"]["num_steps"] <= num_steps - 1
        assert timing["num_cached_tokens"] == 0
        if run["method"] == "plain":
            assert stats["num_draft_tokens"] == stats["num_probe_tokens"] == 0


def test_an_interruption_leaves_what_was_measured(
    harness: Harness, run_script: RunScript, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = sys.modules["harness.methods"].OutpaceMethod
    generate, calls = method.generate, []

    def interrupted(self: Any, *arguments: Any) -> Any:
        calls.append(self.name)
        if len(calls) == 2 + 5:  # two of them warm up
            raise KeyboardInterrupt
        return generate(self, *arguments)

    monkeypatch.setattr(method, "generate", interrupted)
    status, document = run_script("--methods ngram --width-prompts 0")
    assert status == 130
    results = document["results"]
    assert not results["complete"]
    assert any(note.startswith("interrupted") for note in results["notes"])
    assert len(results["runs"]) == 4
    (greedy, sampled) = (g for g in document["summary"]["drafting"] if g["method"] != "plain")
    assert [row["num_prompts"] for row in greedy["rows"]] == [1, 1]
    assert [row["num_prompts"] for row in sampled["rows"]] == [1, 1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--methods suffocate", "unknown speculative method 'suffocate'; known methods: "),
        ('--method-config {"method":"ngram","K":3}', "option K is not supported"),
        ("--width-methods early_exit_of", "unknown speculative method 'early_exit_of'"),
        ("--methods ngram --dtypes float7", "float7"),
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
    assert "Traceback" not in captured.err
