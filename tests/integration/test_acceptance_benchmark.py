"""The benchmark of acceptance: the bundled head on a few prompts, run twice."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "acceptance.py"


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *args], capture_output=True, text=True)


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
    assert list(table) == ["a", "b", "all prompts", "mean of columns"]
    for column in ("a", "b", "all prompts"):
        lengths = table[column]["tokens_per_cycle"]
        assert 1 <= lengths[0] <= 2
        assert len(lengths) == 3
        assert max(lengths) <= 4
    assert any(table["all prompts"]["acceptance"])

    answers = next((tmp_path / "work").glob("answers-*.jsonl"))
    written = answers.stat().st_mtime_ns
    assert run(*args).returncode == 0
    assert answers.stat().st_mtime_ns == written
    assert json.loads(file.read_text())["drafts"] == found["drafts"]


def test_what_is_no_draft_is_refused(tmp_path: Path) -> None:
    refused = run("--draft", str(tmp_path / "nowhere"))
    assert refused.returncode == 2
    assert "nor a draft that comes with this package" in refused.stderr
    assert "Traceback" not in refused.stderr
