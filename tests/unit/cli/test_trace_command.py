"""`outpace trace`: text, tables, files, and errors in one line, on a tiny model."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tiny import tiny_model

import outpace
from outpace import LLM as real  # noqa: N811
from outpace.cli.printable import printable
from outpace.cli.trace_view import first_rejected, quoted
from outpace.measure.trace.files import read_trace
from outpace.measure.trace.records import Node, Outcome

Run = Callable[..., tuple[int, str, str]]
TARGET = tiny_model(seed=1, max_len=256)
TRACE = ("trace", "tea and tea and tea", "--raw", "--method", "ngram", "--max-tokens", "24")
TRACE += ("--ignore-eos",)


@pytest.fixture(scope="module", autouse=True)
def _unchecked(unchecked_shapes_in_module: None) -> None:
    """Whole engines run here."""


@pytest.fixture(autouse=True)
def tiny_llm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        vars(outpace), "LLM", lambda model, **options: real(TARGET, **(options | {"threads": None}))
    )
    monkeypatch.setenv("COLUMNS", "160")


def test_the_text_and_the_tables(run_cli: Run) -> None:
    status, out, err = run_cli(*TRACE)
    assert (status, err) == (0, "")
    assert "\x1b" not in out
    text = run_cli("generate", *TRACE[1:])[1]
    assert out.startswith(printable(text))
    assert "Steps (times in ms)" in out
    assert "Acceptance by draft position" in out
    assert "24 tokens in " in out
    assert "Recording took " in out


def test_colours(run_cli: Run) -> None:
    out = run_cli(*TRACE, "--color")[1]
    assert "\x1b[33m" in out  # recovered
    assert "recovered after a rejection" in out
    assert "\x1b" not in run_cli(*TRACE, "--no-color")[1]


def test_files_and_showing_them(run_cli: Run, tmp_path: Path) -> None:
    path, page = tmp_path / "trace.jsonl", tmp_path / "trace.html"
    first = run_cli(*TRACE, "--out", str(path), "--html", str(page))
    assert first[0] == 0
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(page.stat().st_mode) == 0o600
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    again = run_cli("trace", "--show", str(path))
    assert again == first
    shorter = run_cli("trace", "--show", str(path), "--steps", "2")[1]
    assert "more; --steps shows more of them" in shorter
    assert "Steps (times" not in run_cli("trace", "--show", str(path), "--steps", "0")[1]
    page.unlink()
    assert run_cli("trace", "--show", str(path), "--html", str(page))[0] == 0
    assert page.exists()


def test_json(run_cli: Run, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    status, out, _ = run_cli(*TRACE, "--json", "--out", str(path))
    assert status == 0
    found = json.loads(out)
    trace = read_trace(path)
    assert len(found["steps"]) == len(trace.steps)
    assert found["header"]["method"] == "ngram"
    assert found["header"]["speculative_config"] == {"method": "ngram"}
    assert trace.summary is not None
    assert found["summary"]["num_output_tokens"] == 24
    tokens = [t["token_id"] for s in found["steps"] for p in s["sequences"] for t in p["output"]]
    assert tokens == trace.summary.answers[0].token_ids


def test_several_answers(run_cli: Run) -> None:
    out = run_cli(*TRACE, "--n", "2", "--temperature", "0.8", "--seed", "1")[1]
    assert "--- answer 2 of 2 ---" in out


@pytest.mark.parametrize(
    ("args", "status", "message"),
    [
        (("trace",), 2, "Give either PROMPT"),
        (("trace", "--show", __file__), 1, "is not a trace"),
        (("trace", "--show", "no-such-file"), 2, "does not exist"),
        (("trace", "a", "--show", __file__), 2, "leave out PROMPT"),
        (("trace", "--show", __file__, "--out", "a", "--top-k", "3"), 2, "--show runs nothing"),
        (("trace", "a", "--out", "x", "--html", "x"), 2, "name the same file"),
        (("trace", "a", "--out", "no/such/folder"), 1, "there is no folder"),
        (("trace", "a", "--html", "no/such/folder"), 1, "there is no folder"),
        (("trace", "a", "--html", os.devnull), 1, "not a regular file"),
        (("trace", "a", "--temperature", "-1"), 1, "error: temperature must be"),
        (("trace", "a" * 3000, "--raw"), 1, "error: "),
    ],
)
def test_errors(run_cli: Run, args: tuple[str, ...], status: int, message: str) -> None:
    got, out, err = run_cli(*args)
    assert (got, out) == (status, "")
    assert message in err
    assert status == 2 or err.count("\n") == 1


def test_an_interrupted_trace_is_kept(
    run_cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C ends the answer; what there is is shown and written."""
    from outpace.measure.trace import run as module

    made = module.trace_generation

    def interrupting(*args: Any, on_step: Callable[[Any], None], **more: Any) -> Any:
        def step(found: Any) -> None:
            on_step(found)
            if found.step == 2:
                signal.raise_signal(signal.SIGINT)

        return made(*args, on_step=step, **more)

    monkeypatch.setattr(module, "trace_generation", interrupting)
    path = tmp_path / "trace.jsonl"
    command = [*TRACE, "--out", str(path), "--max-tokens", "200"]
    status, out, _ = run_cli(*command)
    assert status == 130
    assert "The generation was interrupted." in out
    trace = read_trace(path)
    assert trace.summary is not None
    assert not trace.summary.complete
    assert 0 < trace.summary.num_output_tokens < 200


@pytest.mark.parametrize("sampling", [(), ("--temperature", "1", "--seed", "1", "--n", "2")])
def test_a_step_takes_one_line_or_two(
    run_cli: Run, monkeypatch: pytest.MonkeyPatch, sampling: tuple[str, ...]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = run_cli(*TRACE, *sampling, "--steps", "8")[1]
    lines = out[out.index("Steps (times") :].splitlines()
    (rule,) = (i for i, line in enumerate(lines) if line.startswith("────"))
    rows = lines[rule + 1 : next(i for i, line in enumerate(lines) if " more; --steps" in line)]
    starts = [i for i, row in enumerate(rows) if re.match(r" *\d+(#\d)?  ", row)]
    assert len(starts) == 8
    assert max(b - a for a, b in pairwise([*starts, len(rows)])) <= 2
    assert max(map(len, lines[: rule + len(rows)])) <= 80
    assert not any("…" in row for row in rows)
    # Of a greedy request every p is 1.
    assert any(re.search(r"(plain|recovered|bonus) p 0\.\d{3}", row) for row in rows) == bool(
        sampling
    )
    assert "p 1.000" not in out


def test_what_a_terminal_would_obey() -> None:
    assert printable("a\x1b[31mb\x9bc\n\td") == "a\u241b[31mb\ufffdc\n\td"
    assert quoted('say "hi"\n') == r'"say \"hi\"\n"'
    assert quoted("x" * 40) == '"' + "x" * 12 + '..."'
    assert quoted("\n" * 40) == '"' + r"\n" * 6 + '..."'
    assert quoted("水" * 7) == '"' + "水" * 7 + '"'
    assert quoted("水" * 8) == '"' + "水" * 6 + '..."'


def node(depth: int, outcome: Outcome) -> Node:
    return Node(1, "t", -1, depth, 1.0, True, 0.5, None, 0.5, outcome)


def test_which_token_ended_the_draft() -> None:
    first, second = node(1, "rejected"), node(2, "rejected")
    assert first_rejected([first, node(1, "accepted"), second, node(2, "rejected")]) is second
    assert first_rejected([first, node(1, "accepted")]) is None
    assert first_rejected([]) is None
