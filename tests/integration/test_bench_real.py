"""`outpace bench` as users call it, on a tiny model and on the default one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from model_files import write_gguf

from outpace.cli.main import main
from outpace.errors import ModelError, OptionError
from outpace.measure.bench import run as bench_run
from outpace.measure.bench import steps as bench_steps
from outpace.measure.bench.options import BenchOptions
from outpace.measure.bench.results import BenchResults
from outpace.measure.bench.run import run_bench
from outpace.measure.bench.summary import summarise
from outpace.types import Verdict
from outpace.verification.judge import verify

NGRAM = {"method": "ngram", "num_speculative_tokens": 3}


class Progress:
    """Keeps what it was told, and may raise after some of it."""

    def __init__(self, interrupt_at: str = "") -> None:
        self.told: list[str] = []
        self._interrupt_at = interrupt_at

    def describe(self, what: str) -> None:
        self.told.append(what)
        if self._interrupt_at and self._interrupt_at in what:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("bench") / "tiny.gguf"
    return str(write_gguf(path, metadata={"llama.context_length": 512}))


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bench") / "prompts.jsonl"
    rows = [
        {"category": category, "prompt": f"{word} " * 8}
        for category in ("copy", "chat")
        for word in ("hello", "help", "hold")
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.fixture
def options(model: str, prompts: Path, monkeypatch: pytest.MonkeyPatch) -> BenchOptions:
    """What takes a second or two; the memory's rate, which would take as long, is made up."""
    monkeypatch.setattr(bench_run, "memory_bytes_per_s", lambda loaded: 1e10)
    return BenchOptions(
        model=model,
        prompts=(prompts,),
        methods=(NGRAM,),
        temperatures=(0.0, 0.8),
        batches=(1, 2),
        max_tokens=12,
        minutes=5.0,
        repeats=1,
    )


def measured(options: BenchOptions, progress: Progress | None = None) -> dict[str, Any]:
    results = BenchResults()
    run_bench(options, progress or Progress(), results)
    return summarise(results)


def test_a_tiny_model_end_to_end(options: BenchOptions) -> None:
    summary = measured(options)
    json.dumps(summary, allow_nan=False)
    assert summary["complete"]
    assert summary["provenance"]["outpace"]
    (path,) = summary["paths"]
    # In bfloat16: two layers of q, k, v and o, of gate, up and down, and the head in 17 runs of 16.
    assert path["weights_bytes"] == 2 * (2 * (64 * 192 + 3 * 64 * 96) + 17 * 16 * 64)
    assert {row["num_rows"] for row in path["passes"]} >= {1, 2, 3, 4, 8}
    settings = {(s["temperature"], s["batch"]): s for s in path["settings"]}
    assert set(settings) == {(0.0, 1), (0.8, 1), (0.0, 2), (0.8, 2)}
    for (temperature, batch), setting in settings.items():
        plain, ngram = setting["methods"]
        assert (plain["method"], ngram["method"]) == ("plain", "ngram K=3")
        assert ngram["config"] == NGRAM
        names = [row["column"] for row in ngram["columns"]]
        assert names == (["copy", "chat", "all"] if batch == 1 else ["all"])
        total = ngram["columns"][-1]
        if temperature == 0:
            assert total["num_equal"] == total["num_compared"] > 0
        assert total["acceptance_length"] >= 1
        assert total["predicted_ratio"] > 0
        assert total["step"]["pass_ms"] > 0
    assert path["timelines"][0]["steps"]
    assert {row["method"] for row in summary["crossover"]} == {"ngram K=3"}


def test_a_judge_that_accepts_everything_is_found(
    options: BenchOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lossy drafting on purpose: the answers differ, and not by rounding."""

    def accept_all(scores: Any, seqs: Any, drafts: Any, *others: Any) -> list[Verdict]:
        return [
            Verdict((*draft.token_ids, verdict.token_ids[-1]), len(draft.token_ids))
            if draft.token_ids
            else verdict
            for draft, verdict in zip(drafts, verify(scores, seqs, drafts, *others), strict=True)
        ]

    monkeypatch.setattr(bench_steps, "verify", accept_all)
    summary = measured(replace(options, batches=(1,), temperatures=(0.0,), max_tokens=40))
    row = summary["paths"][0]["settings"][0]["methods"][1]["columns"][-1]
    assert row["num_equal"] < row["num_compared"]
    assert row["first_difference"] is not None
    assert row["num_ties"] is not None
    assert row["num_ties"] < row["num_compared"] - row["num_equal"]
    assert any("differs from plain decoding's by more than rounding" in n for n in summary["notes"])


def test_what_an_interruption_leaves_is_summarised(options: BenchOptions) -> None:
    results = BenchResults()
    with pytest.raises(KeyboardInterrupt):
        run_bench(options, Progress("chat: ngram K=3"), results)
    summary = summarise(results)
    assert not summary["complete"]
    assert summary["elapsed_s"] > 0
    rows = summary["paths"][0]["settings"][0]["methods"][1]["columns"]
    assert [row["column"] for row in rows] == ["copy", "all"]
    assert rows[-1]["ratio"]["num_prompts"] == 1


def test_without_time_one_prompt_of_each_column_is_measured(options: BenchOptions) -> None:
    summary = measured(replace(options, minutes=0.0, temperatures=(0.0,)))
    (setting,) = summary["paths"][0]["settings"]
    assert (setting["batch"], setting["num_prompts"], setting["num_rounds"]) == (1, 2, 1)
    (note,) = [note for note in summary["notes"] if "left out" in note]
    assert "batch 2 was left out: 0 minutes do not suffice" in note


def test_a_dtype_that_does_not_exist_does_not_stop_the_others(options: BenchOptions) -> None:
    options = replace(options, dtypes=("q4_0", "float32"), batches=(1,), minutes=0.0)
    summary = measured(options)
    assert [path["dtype"] for path in summary["paths"]] == ["float32"]
    assert any(note.startswith("q4_0 was not measured") for note in summary["notes"])
    with pytest.raises((ModelError, OptionError), match="q4_0"):
        measured(replace(options, dtypes=("q4_0",)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"methods": ({"method": "telepathy"},)}, "unknown speculative method 'telepathy'"),
        ({"methods": ({"method": "ngram", "wings": 2},)}, "wings"),
        ({"peers": ("abacus",)}, "peer must be .*, got 'abacus'"),
        ({"prompts": (Path("nowhere.jsonl"),)}, "nowhere.jsonl cannot be read"),
    ],
)
def test_what_does_not_exist_is_refused_before_anything_is_loaded(
    options: BenchOptions, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], message: str
) -> None:
    def load_nothing(*args: Any, **values: Any) -> None:
        pytest.fail("a model was loaded")

    monkeypatch.setattr(bench_run, "load_model", load_nothing)
    with pytest.raises(OptionError, match=message):
        measured(replace(options, **change))


def outpace(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    return int(stop.value.code or 0)


def test_the_command_writes_what_show_shows_again(
    model: str, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {kind: tmp_path / f"results.{kind}" for kind in ("json", "html", "markdown")}
    command = ["bench", "--model", model, "--prompts", str(prompts), "--quick"]
    command += ["--method", "ngram:3", "--max-tokens", "8", "--minutes", "0.02", "--batch", "1"]
    assert outpace(*command, *(f"--{kind}={file}" for kind, file in files.items())) == 0
    shown = capsys.readouterr().out
    assert "ngram K=3" in shown
    assert "ids equal" in shown
    again = {kind: tmp_path / f"again.{kind}" for kind in files}
    show = ["bench", "--show", str(files["json"])]
    assert outpace(*show, *(f"--{kind}={file}" for kind, file in again.items())) == 0
    assert capsys.readouterr().out == shown
    for kind, file in files.items():
        assert file.read_text() == again[kind].read_text()
    assert files["html"].read_text().startswith("<!DOCTYPE html>")


@pytest.mark.model
def test_the_default_model_is_measured_as_promised(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One short answer for each of a few prompts, with every method that is measured by default."""
    file, prompts = tmp_path / "results.json", tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "Count from 1 to 20, then again."}')
    command = ["bench", "--quick", "--minutes", "0.02", "--batch", "1", "--max-tokens", "24"]
    assert outpace(*command, "--prompts", str(prompts), "--json", str(file)) == 0
    summary = json.loads(file.read_text())
    assert summary["model"]["name"] == "smollm2-135m"
    (setting,) = summary["paths"][0]["settings"]
    names = [method["method"].split()[0] for method in setting["methods"]]
    assert names == ["plain", "auto", "suffix", "ngram", "eagle3"]
    for method in setting["methods"][1:]:
        row = method["columns"][-1]
        assert row["num_equal"] == row["num_compared"] == 1
    assert "Speed-up" in capsys.readouterr().out
