"""`outpace bench` and `outpace trace` shown files that are damaged, and told to write where they
cannot: one clear line, and nothing lost or half-written."""

from __future__ import annotations

import copy
import errno
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bench_summaries
import pytest
from trace_cases import drafting, traced

from outpace.measure.trace.files import write_trace
from outpace.measure.trace.records import Trace
from outpace.params import SamplingParams

Run = Callable[..., tuple[int, str, str]]
Change = Callable[[Any], object]


def column(summary: Any) -> Any:
    return summary["paths"][0]["settings"][0]["methods"][1]["columns"][-1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("provenance"), "provenance is missing in the summary"),
        (lambda s: s.update(paths=5), "paths cannot be 5"),
        (lambda s: s.update(paths=[{}]), "path is missing in paths"),
        (lambda s: s.update(model="x"), "model cannot be 'x'"),
        (lambda s: s.update(schema=True), "schema cannot be True"),
        (lambda s: s["paths"][0].update(threads="many"), "threads cannot be 'many'"),
        (lambda s: column(s)["ratio"].update(mean="fast"), "ratio cannot be"),
        (lambda s: column(s)["ratio"].update(low=None, high=1.5), "ratio cannot be"),
        (lambda s: column(s).update(step={}), "num_rows is missing in step"),
        (lambda s: column(s).update(tokens_per_s=float("nan")), "is not JSON"),
        (lambda s: s["notes"].append("\ud800"), "is not JSON"),
        (
            lambda s: s["paths"][0]["settings"][0]["methods"][1].update(columns=[]),
            "columns cannot be []",
        ),
    ],
)
def test_damaged_results_are_told_in_one_line(
    run_cli: Run, tmp_path: Path, change: Change, message: str
) -> None:
    file, page = tmp_path / "results.json", tmp_path / "page.html"
    summary = copy.deepcopy(bench_summaries.summary())
    file.write_text(json.dumps(summary))
    assert run_cli("bench", "--show", str(file))[0] == 0
    change(summary)
    file.write_text(json.dumps(summary))
    status, out, err = run_cli("bench", "--show", str(file), "--html", str(page))
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("error: ")
    assert message in err
    assert not page.exists()


@pytest.mark.parametrize("text", ["[" * 200_000, '{"schema": 1, "schema": 1}', "\x00", ""])
def test_what_is_no_json_is_told_in_one_line(run_cli: Run, tmp_path: Path, text: str) -> None:
    file = tmp_path / "results.json"
    file.write_text(text)
    status, _, err = run_cli("bench", "--show", str(file))
    assert (status, err.count("\n")) == (1, 1)
    assert "is not JSON" in err


def test_files_that_cannot_be_written_are_told_before_anything_is_measured(
    run_cli: Run, tmp_path: Path
) -> None:
    shown, page = tmp_path / "results.json", tmp_path / "page.html"
    shown.write_text(json.dumps(bench_summaries.summary()))
    for arguments, message in (
        (["--html", str(tmp_path)], "it is a folder"),
        (["--html", str(page), "--markdown", str(page)], "is named twice"),
        (["--html", str(shown), "--show", str(shown)], "is named twice"),
    ):
        status, _, err = run_cli("bench", *arguments)
        assert (status, err.count("\n")) == (1, 1)
        assert message in err
    assert json.loads(shown.read_text()) == bench_summaries.summary()


def test_a_file_that_fails_costs_neither_the_others_nor_the_tables(
    run_cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown, page, kept = (tmp_path / name for name in ("results.json", "page.html", "kept.json"))
    shown.write_text(json.dumps(bench_summaries.summary()))
    page.write_text("the old page")
    write_text = Path.write_text

    def on_a_small_disk(path: Path, text: str, **options: Any) -> int:
        if text.startswith("<!DOCTYPE html>"):
            write_text(path, text[:10], **options)
            raise OSError(errno.ENOSPC, "No space left on device")
        return write_text(path, text, **options)

    monkeypatch.setattr(Path, "write_text", on_a_small_disk)
    arguments = ("--json", str(kept), "--html", str(page))
    status, out, err = run_cli("bench", "--show", str(shown), *arguments)
    assert (status, err) == (1, f"error: {page} cannot be written: No space left on device\n")
    assert "Methods over all prompts" in out
    assert json.loads(kept.read_text()) == bench_summaries.summary()
    assert page.read_text() == "the old page"
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "kept.json",
        "page.html",
        "results.json",
    ]


@pytest.fixture(scope="module")
def recorded(unchecked_shapes_in_module: None) -> Trace:
    trace: Trace = traced(drafting("sampled", []), SamplingParams(seed=1, max_tokens=16))
    return trace


def _part(lines: list[Any]) -> Any:
    return next(part for line in lines for part in line.get("sequences", ()) if part["nodes"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t[1].update(draft_s=float("nan")), "is damaged in line 2"),
        (lambda t: _part(t)["output"][0].update(node=99), "there is no draft token 99"),
        (lambda t: _part(t)["output"][0].update(node=-5), "there is no draft token -5"),
        (lambda t: _part(t)["nodes"][0].update(parent=77), "draft token 0 cannot follow 77"),
        (lambda t: [p.update(top=[]) for p in _part(t)["positions"]], "came at 0 places"),
        (lambda t: _part(t)["nodes"][0].update(logprob=1e5), "logprob cannot be 100000.0"),
        (lambda t: t[1].update(decision={"predicted_s": "x"}), "predicted_s cannot be 'x'"),
        (lambda t: t[-1]["positions"][0].update(num_reached=0, num_accepted=0), "0 of 0 accepted"),
        (lambda t: t[-1]["positions"][0].update(num_reached=1, num_accepted=2), "2 of 1 accepted"),
    ],
)
def test_damaged_traces_are_told_in_one_line(
    run_cli: Run, recorded: Trace, tmp_path: Path, change: Change, message: str
) -> None:
    file, page = tmp_path / "trace.jsonl", tmp_path / "page.html"
    write_trace(recorded, file)
    assert run_cli("trace", "--show", str(file))[0] == 0
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    change(lines)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    status, out, err = run_cli("trace", "--show", str(file), "--html", str(page))
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert message in err
    assert not page.exists()


def test_a_trace_is_not_overwritten_by_its_page(
    run_cli: Run, recorded: Trace, tmp_path: Path
) -> None:
    file = tmp_path / "trace.jsonl"
    write_trace(recorded, file)
    before = file.read_bytes()
    same = str(tmp_path / "." / "trace.jsonl")
    status, _, err = run_cli("trace", "--show", str(file), "--html", same)
    assert status == 2
    assert "--show and --html name the same file" in err
    assert file.read_bytes() == before


def test_a_trace_s_header_gives_the_terminal_nothing_to_obey(
    run_cli: Run, recorded: Trace, tmp_path: Path
) -> None:
    file = tmp_path / "trace.jsonl"
    write_trace(recorded, file)
    header, *others = file.read_text().splitlines()
    changed = {**json.loads(header), "method": "\x1b[2Jx", "lossy": "\x1b[31my"}
    file.write_text("\n".join([json.dumps(changed), *others]) + "\n")
    status, out, _ = run_cli("trace", "--show", str(file))
    assert status == 0
    assert "\x1b" not in out
    assert "\u241b[2Jx" in out


def test_results_are_written_where_stdout_was_closed(tmp_path: Path) -> None:
    shown, page = tmp_path / "results.json", tmp_path / "page.html"
    shown.write_text(json.dumps(bench_summaries.summary()))
    command = [sys.executable, "-c", "from outpace.cli.main import main; main()", "bench"]
    command += ["--show", str(shown), "--html", str(page)]
    done = subprocess.run(
        ["sh", "-c", '"$@" >&-', "sh", *command], stderr=subprocess.PIPE, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert page.read_text().startswith("<!DOCTYPE html>")
