"""The installed command on the default model, as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.model

OUTPACE = Path(sys.executable).with_name("outpace")
REWRITE = (
    "Repeat this text, but write Tuesday instead of Monday: The library on Mill Street will be "
    "closed from Monday to Thursday while the heating is replaced."
)


def outpace(*args: str, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(OUTPACE), *args],
        input=stdin,
        capture_output=True,
        encoding="utf-8",
        check=False,
        env=os.environ | env,
    )


def test_generate_streams_the_answer_and_reports_on_stderr() -> None:
    done = outpace("generate", "What is the capital of France?", "--max-tokens", "20")
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout
    assert "acceptance length 1.00, method none" in done.stderr


def test_json_agrees_between_methods_and_precisions_say_what_they_are() -> None:
    plain, drafted = (
        json.loads(outpace("generate", REWRITE, "--json", "--max-tokens", "40", *more).stdout)
        for more in (["--dtype", "float64"], ["--dtype", "float64", "--method", "ngram"])
    )
    assert plain["token_ids"] == drafted["token_ids"]
    assert plain["text"] == drafted["text"]
    assert plain["finish_reason"] == drafted["finish_reason"]
    assert plain["usage"]["completion_tokens"] == len(plain["token_ids"])
    assert (plain["method"], drafted["method"]) == ("none", "ngram")
    assert plain["dtype"] == drafted["dtype"] == "float64"
    assert plain["speculation"]["acceptance_length"] == 1.0
    assert drafted["speculation"]["acceptance_length"] > 1.5


def test_compare_in_the_row_invariant_mode_is_equal() -> None:
    done = outpace(
        *("generate", REWRITE, "--compare", "--json", "--repeats", "1"),
        *("--max-tokens", "30", "--dtype", "float64"),
    )
    values = json.loads(done.stdout)
    assert values["ids_equal"] is True
    assert values["acceptance_length"] > 1.0
    ratio = values["speculative_tokens_per_s"] / values["plain_tokens_per_s"]
    assert values["ratio"] == pytest.approx(ratio)


def test_chat_through_a_pipe_remembers() -> None:
    done = outpace(
        *("chat", "--max-tokens", "24", "--method", "ngram"),
        stdin="My name is Ada.\nWhat is my name?\n/stats\n",
    )
    assert done.returncode == 0, done.stderr
    *answers, stats = done.stdout.strip().splitlines()
    assert "Ada" in "\n".join(answers)
    assert stats.startswith("2 answers, ")
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--model", "no-such-model"], ["no-such-model", "smollm2-135m"]),
        (["--speculative-config", "{method}"], ["not valid JSON"]),
        (
            ["--speculative-config", '{"method": "ngram", "prompt_lookup": 3}'],
            ["prompt_lookup", "prompt_lookup_max"],
        ),
        (["--temperature", "nan"], ["temperature", "nan"]),
        (["--speculative-model", "no-such-model"], ["no-such-model"]),
        (["--max-model-len", "100000"], ["100000", "8192"]),
        (["--device", "nonsense"], ["nonsense"]),
        (["--method", "ngram", "--prompt-lookup-min", "9"], ["prompt_lookup_min (9)"]),
    ],
)
def test_errors_are_one_line(args: list[str], words: list[str]) -> None:
    done = outpace("generate", "hello", *args)
    assert (done.returncode, done.stdout) == (1, "")
    lines = [line for line in done.stderr.splitlines() if not line.startswith("fetching")]
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    for word in words:
        assert word in lines[0]


def test_an_unwritable_cache_is_an_error_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    done = outpace("models", "pull", "smollm2-135m", OUTPACE_CACHE=str(file / "cache"))
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "OUTPACE_CACHE" in done.stderr


def test_models_show_names_the_shape() -> None:
    values = json.loads(outpace("models", "show", "smollm2-135m", "--json").stdout)
    assert (values["num_hidden_layers"], values["hidden_size"]) == (30, 576)
