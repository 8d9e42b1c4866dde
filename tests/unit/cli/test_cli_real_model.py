"""The command line on the default model: the installed command as a user runs it, and the rest in
this process, on a model that is loaded once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.model

OUTPACE = Path(sys.executable).with_name("outpace")
REWRITE = (
    "Repeat this text, but write Tuesday instead of Monday: The library on Mill Street will be "
    "closed from Monday to Thursday while the heating is replaced."
)


Run = Callable[..., Any]


def outpace(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(OUTPACE), *args],
        capture_output=True,
        encoding="utf-8",
        check=False,
        env=os.environ | env,
    )


def test_generate_streams_the_answer_and_reports_on_stderr() -> None:
    done = outpace("generate", "What is the capital of France?", "--max-tokens", "20")
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout
    assert ", method auto" in done.stderr


@pytest.mark.usefixtures("default_model_in_memory", "unchecked_shapes")
def test_json_agrees_between_methods_and_precisions_say_what_they_are(run_cli: Run) -> None:
    asked = ("generate", REWRITE, "--json", "--max-tokens", "40", "--dtype", "float64")
    plain, drafted = (
        json.loads(run_cli(*asked, *more).out)
        for more in (["--method", "none"], ["--method", "ngram"])
    )
    assert plain["token_ids"] == drafted["token_ids"]
    assert plain["text"] == drafted["text"]
    assert plain["finish_reason"] == drafted["finish_reason"]
    assert plain["usage"]["completion_tokens"] == len(plain["token_ids"])
    assert (plain["method"], drafted["method"]) == ("none", "ngram")
    assert plain["dtype"] == drafted["dtype"] == "float64"
    assert plain["speculation"]["acceptance_length"] == 1.0
    assert drafted["speculation"]["acceptance_length"] > 1.5


@pytest.mark.usefixtures("default_model_in_memory", "unchecked_shapes")
def test_compare_in_the_row_invariant_mode_is_equal(run_cli: Run) -> None:
    # A drafter that always drafts: what `auto` does in so few steps depends on the clock.
    done = run_cli(
        *("generate", REWRITE, "--compare", "--json", "--repeats", "1"),
        *("--max-tokens", "30", "--dtype", "float64", "--method", "ngram"),
    )
    values = json.loads(done.out)
    assert values["ids_equal"] is True
    assert values["acceptance_length"] > 1.0
    ratio = values["speculative_tokens_per_s"] / values["plain_tokens_per_s"]
    assert values["ratio"] == pytest.approx(ratio)


@pytest.mark.usefixtures("default_model_in_memory", "unchecked_shapes")
def test_the_account_of_auto(run_cli: Run) -> None:
    asked = ("generate", REWRITE, "--max-tokens", "40", "--explain")
    values = json.loads(run_cli(*asked, "--json").out)
    found, stats = values["decisions"], values["speculation"]
    sources = found["sources"].values()
    assert found["num_steps"] <= stats["num_steps"]
    assert sum(source["drafted"] for source in sources) == stats["num_draft_tokens"]
    assert sum(source["accepted"] for source in sources) == stats["num_accepted_tokens"]
    assert found["costs"]["trained"] == "eagle3"
    assert all(seconds > 0 for seconds in found["costs"]["pass_s"])
    done = run_cli(*asked)
    assert done.out.strip() == values["text"].strip()
    for words in ("What auto did in", "A draft token of eagle3 costs", "ms predicted"):
        assert words in done.err


@pytest.mark.usefixtures("default_model_in_memory", "unchecked_shapes")
def test_chat_through_a_pipe_remembers(run_cli: Run) -> None:
    done = run_cli(
        *("chat", "--max-tokens", "24", "--method", "ngram"),
        stdin="My name is Ada.\nWhat is my name?\n/stats\n",
    )
    assert done.status == 0, done.err
    *answers, stats = done.out.strip().splitlines()
    assert "Ada" in "\n".join(answers)
    assert stats.startswith("2 answers, ")
    assert done.err == ""


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
@pytest.mark.usefixtures("default_model_in_memory")
def test_errors_are_one_line(args: list[str], words: list[str], run_cli: Run) -> None:
    done = run_cli("generate", "hello", *args)
    assert (done.status, done.out) == (1, "")
    lines = [line for line in done.err.splitlines() if not line.startswith("fetching")]
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
