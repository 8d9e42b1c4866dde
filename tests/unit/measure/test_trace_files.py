"""Traces as files: what is written is read again, and damage is told by its line."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from engine_cases import PROMPT
from trace_cases import opener, traced

from outpace import SamplingParams
from outpace.errors import OptionError
from outpace.measure.trace.files import TraceWriter, read_trace, write_private, write_trace
from outpace.measure.trace.records import Trace
from outpace.measure.trace.run import trace_generation

PARAMS = SamplingParams(temperature=0.9, seed=1, max_tokens=8, ignore_eos=True)


@pytest.fixture(scope="module", autouse=True)
def _unchecked(unchecked_shapes_in_module: None) -> None:
    """Whole engines run here."""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trace, Path]:
    path = tmp_path_factory.mktemp("traces") / "trace.jsonl"
    return traced("ngram", PARAMS, path), path


def changed(path: Path, at: int, change: Any) -> Path:
    """A copy of the file whose line number `at` was changed."""
    lines = path.read_text(encoding="utf-8").splitlines()
    lines[at - 1] = change(lines[at - 1])
    copy = path.with_name("changed.jsonl")
    copy.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return copy


def edited(**values: Any) -> Any:
    return lambda line: json.dumps({**json.loads(line), **values})


def test_what_is_written_is_read(written: tuple[Trace, Path], tmp_path: Path) -> None:
    trace, path = written
    assert read_trace(path) == trace
    write_trace(trace, tmp_path / "again.jsonl")
    assert read_trace(tmp_path / "again.jsonl") == trace
    assert len(path.read_text(encoding="ascii").splitlines()) == len(trace.steps) + 2


def test_only_the_owner_reads_it(written: tuple[Trace, Path]) -> None:
    _, path = written
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in path.parent.iterdir() if each.suffix == ".part"] == []


def test_a_written_file_takes_the_place_of_another(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("old")
    path.chmod(0o644)
    write_private(path, "new")
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_without_its_end(written: tuple[Trace, Path], tmp_path: Path) -> None:
    """Killed while writing: complete lines are kept, a line that was cut off is left out."""
    trace, path = written
    text = path.read_text(encoding="utf-8")
    cut = tmp_path / "cut.jsonl"
    cut.write_text(text[: text.rindex('{"type": "summary"') + 40], encoding="utf-8")
    found, last = read_trace(cut), len(trace.steps) + 2
    assert found == Trace(trace.header, trace.steps, None, cut_line=last)
    assert found.missing_end.endswith(f"Line {last} is damaged: it was cut off.")
    cut.write_text(text[: text.rindex('{"type": "summary"')], encoding="utf-8")
    assert read_trace(cut) == Trace(trace.header, trace.steps, None)
    assert "damaged" not in read_trace(cut).missing_end
    cut.write_text(text.rstrip("\n"), encoding="utf-8")
    assert read_trace(cut) == trace


@pytest.mark.parametrize(
    ("line", "change", "message"),
    [
        (2, lambda line: line[:-1], "damaged in line 2: "),
        (3, lambda line: "[]", "damaged in line 3: it is no JSON object"),
        (2, edited(type="other"), "damaged in line 2: an object of type 'other'"),
        (2, edited(draft_s="fast"), "damaged in line 2: draft_s cannot be 'fast'"),
        (2, edited(draft_s=True), "damaged in line 2: draft_s cannot be True"),
        (2, edited(step=None), "damaged in line 2: step cannot be None"),
        (2, edited(more=1), "damaged in line 2: 'more' is unknown in the line"),
        (2, edited(sequences=[{}]), "damaged in line 2: 'answer' is missing in sequences"),
        (3, lambda line: '{"type": "step", "type": "step"}', "given twice"),
        (1, edited(version=2), "version 2 of the trace format"),
        (1, edited(format="other"), "is not a trace"),
        (1, edited(sampling={"n": 10**12}), "damaged in line 1: n must be"),
        (1, edited(sampling={"n": "2"}), "damaged in line 1: n cannot be '2'"),
        (2, lambda line: line.replace('"answer": 0', '"answer": 1'), "there is no answer 1"),
        (1, edited(method=3), "damaged in line 1: method cannot be 3"),
        (1, lambda line: "not JSON", "is not a trace"),
    ],
)
def test_damage_is_told(written: tuple[Trace, Path], line: int, change: Any, message: str) -> None:
    with pytest.raises(OptionError) as told:
        read_trace(changed(written[1], line, change))
    assert message in str(told.value)


def test_nothing_follows_the_summary(written: tuple[Trace, Path], tmp_path: Path) -> None:
    _, path = written
    lines = path.read_text(encoding="utf-8").splitlines()
    longer = tmp_path / "longer.jsonl"
    longer.write_text("\n".join([*lines, lines[1]]) + "\n", encoding="utf-8")
    with pytest.raises(OptionError, match=f"damaged in line {len(lines) + 1}"):
        read_trace(longer)


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xfe", b'{"prompt": "a"}\n'])
def test_other_files_are_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "other.jsonl"
    path.write_bytes(content)
    with pytest.raises(OptionError, match="is not"):
        read_trace(path)


def test_where_no_file_can_be(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="no folder"):
        TraceWriter(tmp_path / "missing" / "trace.jsonl")
    with pytest.raises(OptionError, match="is a folder"):
        TraceWriter(tmp_path)
    with pytest.raises(OptionError, match="not a regular file"):
        write_private(Path("/dev/null"), "text")


def test_a_run_that_fails(written: tuple[Trace, Path], tmp_path: Path) -> None:
    """Before its first step it leaves everything as it was; later it keeps what it got to."""
    path = tmp_path / "trace.jsonl"
    path.write_text("older")
    too_long = {"prompt_token_ids": [5] * 1000}
    with pytest.raises(OptionError):
        trace_generation(opener("ngram"), too_long, PARAMS, path=path)
    assert [each.name for each in tmp_path.iterdir()] == ["trace.jsonl"]
    assert path.read_text() == "older"

    def fail_late(step: Any) -> None:
        if step.step == 3:
            raise RuntimeError("the display broke")

    with pytest.raises(RuntimeError, match="the display broke"):
        traced("ngram", PARAMS, path, on_step=fail_late)
    assert [each.name for each in tmp_path.iterdir()] == ["trace.jsonl"]
    kept = read_trace(path)
    assert kept.summary is None
    assert [step.step for step in kept.steps] == [0, 1, 2, 3]
    assert kept.header.prompt["token_ids"] == PROMPT
