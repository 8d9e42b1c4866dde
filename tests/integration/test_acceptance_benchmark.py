"""The benchmark of acceptance: the bundled head on a few prompts, run twice."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from outpace.heads.bundled import find_draft

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "acceptance.py"


def run(*args: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *args]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd)


@pytest.mark.model
def test_a_draft_is_replayed_by_column_and_a_second_run_goes_on(tmp_path: Path) -> None:
    prompts, file = tmp_path / "prompts.jsonl", tmp_path / "acceptance.json"
    asked = [("a", "Name three rivers."), ("b", "Count from one to ten."), ("b", "Say hello.")]
    rows = [json.dumps({"category": column, "prompt": text}) for column, text in asked]
    prompts.write_text("\n".join(rows))
    args = ["--draft", "smollm2-135m-eagle3", "--prompts", str(prompts), "--max-tokens", "24"]
    args += ["--max-k", "3", "--work-dir", str(tmp_path / "work"), "--json", str(file)]
    first = run(*args)
    assert first.returncode == 0, first.stderr
    found = json.loads(file.read_text())
    assert found["num_prompts"] == {"a": 1, "b": 2}
    table = found["drafts"]["smollm2-135m-eagle3"]
    assert list(table) == ["a", "b", "mean of columns"]
    for column in ("a", "b"):
        lengths = table[column]["tokens_per_cycle"]
        assert 1 <= lengths[0] <= 2
        assert len(lengths) == 3
        assert max(lengths) <= 4
    assert any(table["b"]["acceptance"])

    answers = next((tmp_path / "work").glob("answers-*.jsonl"))
    written = answers.stat().st_mtime_ns
    assert run(*args).returncode == 0
    assert answers.stat().st_mtime_ns == written
    assert json.loads(file.read_text())["drafts"] == found["drafts"]


@pytest.mark.model
def test_drafts_of_equal_folder_names_are_told_apart(tmp_path: Path) -> None:
    prompts, file = tmp_path / "prompts.jsonl", tmp_path / "acceptance.json"
    prompts.write_text(json.dumps({"prompt": "Say hello."}))
    drafts = [tmp_path / place / "draft" for place in ("a", "b")]
    for draft in drafts:
        shutil.copytree(find_draft("smollm2-135m-eagle3"), draft)
    args = [part for draft in drafts for part in ("--draft", str(draft))]
    args += ["--prompts", str(prompts), "--max-tokens", "8", "--max-k", "2"]
    done = run(*args, "--work-dir", str(tmp_path / "work"), "--json", str(file))
    assert done.returncode == 0, done.stderr
    assert list(json.loads(file.read_text())["drafts"]) == list(map(str, drafts))


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--draft", "nowhere"], "nor a draft that comes with this package"),
        (["--draft", "."], "config.json"),
        (["--draft", "smollm2-135m-eagle3", "--json", "nowhere/found.json"], "nowhere"),
        (["--draft", "smollm2-135m-eagle3", "--work-dir", "/dev/null/work"], "cannot be made"),
    ],
    ids=["no directory", "no draft in it", "no place for what is found", "no place to work"],
)
def test_what_cannot_be_is_refused_before_anything_is_run(
    tmp_path: Path, args: list[str], said: str
) -> None:
    refused = run("--work-dir", str(tmp_path / "work"), *args, cwd=tmp_path)
    assert refused.returncode == 2
    assert said in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not (tmp_path / "work").exists()


@pytest.mark.model
def test_prompts_that_are_all_too_long_are_refused(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"prompt": "Name three rivers."}))
    args = ["--draft", "smollm2-135m-eagle3", "--prompts", str(prompts)]
    args += ["--max-prompt-tokens", "1", "--work-dir", str(tmp_path / "work")]
    refused = run(*args)
    assert refused.returncode == 2
    assert "error: no prompt has at most 1 tokens" in refused.stderr
    assert "Traceback" not in refused.stderr
