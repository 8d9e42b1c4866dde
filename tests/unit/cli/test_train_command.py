"""`outpace train` and `outpace evaluate-draft`: options and errors, before anything is computed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outpace.cli.draft_directory import DraftDirectory
from outpace.cli.evaluate_draft import parse_lengths, spread
from outpace.cli.train import parse_limits
from outpace.cli.training_progress import TrainingProgress
from outpace.errors import ModelError, OptionError
from outpace.files import without_folders
from outpace.heads.kinds import detect_kind, speculative_config
from outpace.training.options import Evaluation, Progress
from outpace.training.prompts import Prompt
from outpace.training.run_directory import RunDirectory

Run = Callable[..., Any]
KINDS = ("eagle3", "eagle", "medusa", "draft-model", "early-exit")


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    path = tmp_path / "prompts.txt"
    path.write_text("Say something.\nSay something else.\n")
    return str(path)


@pytest.mark.parametrize("kind", KINDS)
def test_help_names_the_options(run_cli: Run, kind: str) -> None:
    status, out, _ = run_cli("train", kind, "--help")
    assert status == 0
    for option in ("--prompts", "--answers", "--init", "--benchmark", "--minutes", "--keep-data"):
        assert option in out


def test_underscores_are_fine(run_cli: Run) -> None:
    assert run_cli("train", "draft_model", "--help")[0] == 0


@pytest.mark.parametrize(
    ("kind", "args", "status", "words"),
    [
        ("eagle3", [], 2, "Missing option '--out'"),
        ("eagle3", ["--out", "OUT"], 1, "nothing to train on"),
        ("eagle4", ["--out", "OUT"], 2, "No such command 'eagle4'"),
        ("eagle3", ["--out", "OUT", "--layer", "3"], 2, "No such option '--layer'"),
        ("medusa", ["--out", "OUT", "--ttt-steps", "3"], 2, "No such option '--ttt-steps'"),
        ("draft-model", ["--out", "OUT", "--draft-vocab-size", "9"], 2, "No such option"),
        ("draft-model", ["--out", "OUT", "--cost", "1.5"], 2, "--cost"),
        ("eagle3", ["--out", "OUT", "--loss", "mse"], 2, "--loss"),
        ("eagle3", ["--out", "OUT", "--prompts", "nowhere.txt"], 2, "does not exist"),
        ("eagle3", ["PROMPTS", "--minutes", "1", "--steps", "2"], 1, "one of steps, minutes"),
        ("eagle3", ["PROMPTS", "--sampling", "hot"], 1, "sampling mix"),
        ("eagle3", ["PROMPTS", "--limit", "gsm8k"], 1, "--limit is SOURCE=N"),
        ("eagle3", ["PROMPTS", "--limit", "a=1", "--limit", "a=2"], 1, "twice"),
        ("eagle3", ["PROMPTS", "--held-out", "1"], 2, "--held-out"),
        ("eagle3", ["PROMPTS", "--general-prompts", "FILE"], 2, "only has a meaning with --init"),
        ("eagle3", ["PROMPTS", "--init", "nowhere"], 2, "those are: smollm2-135m-eagle3"),
        ("eagle3", ["PROMPTS", "--init", "FILE"], 2, "is a file; a draft is a directory"),
    ],
)
def test_bad_options(
    run_cli: Run,
    prompts: str,
    tmp_path: Path,
    kind: str,
    args: list[str],
    status: int,
    words: str,
) -> None:
    out = str(tmp_path / "draft")
    filled: list[str] = []
    for arg in args:
        full = {"OUT": [out], "FILE": [prompts]}.get(arg, [arg])
        filled += ["--prompts", prompts, "--out", out] if arg == "PROMPTS" else full
    found, printed, err = run_cli("train", kind, *filled)
    assert found == status, err
    assert words in " ".join(err.split())
    assert printed == ""
    assert not list(tmp_path.glob("draft*"))


@pytest.mark.parametrize(
    ("args", "status", "words"),
    [
        ([], 2, "Missing argument 'DIR'"),
        (["nowhere", "--prompts", "FILE"], 2, "does not exist"),
        (["DIR"], 2, "Missing option '--prompts'"),
        (["DIR", "--prompts", "FILE", "--num-speculative-tokens", "0"], 1, "from 1 to 64"),
        (["DIR", "--prompts", "FILE", "--speculative-config", "[]"], 1, "must be an object"),
        (
            ["DIR", "--prompts", "FILE", "--speculative-config", '{"method": "ngram"}'],
            1,
            "'method', which this command chooses",
        ),
    ],
)
def test_bad_options_of_evaluation(
    run_cli: Run, prompts: str, tmp_path: Path, args: list[str], status: int, words: str
) -> None:
    given = {"DIR": str(tmp_path), "FILE": prompts}
    found, _, err = run_cli("evaluate-draft", *[given.get(arg, arg) for arg in args])
    assert found == status, err
    assert words in " ".join(err.split())


def test_a_bundled_draft_is_known_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    convert = DraftDirectory().convert
    bundled = convert("smollm2-135m-eagle3", None, None)
    assert (bundled / "model.safetensors").is_file()
    own = tmp_path / "smollm2-135m-eagle3"
    own.mkdir()
    assert convert(own.name, None, None) == Path(own.name)
    assert convert(str(own), None, None) == own


def test_limits_are_read() -> None:
    assert parse_limits(("gsm8k=500", "a=b=2")) == {"gsm8k": 500, "a=b": 2}


@pytest.mark.parametrize(
    ("text", "lengths"), [("1", [1]), ("4,1,2", [1, 2, 4]), ("1-3,5", [1, 2, 3, 5])]
)
def test_draft_lengths_are_read(text: str, lengths: list[int]) -> None:
    assert parse_lengths(text) == lengths


@pytest.mark.parametrize("text", ["", "x", "0", "65", "3-1", "1-", "1;2"])
def test_draft_lengths_that_are_none(text: str) -> None:
    with pytest.raises(OptionError, match="draft length"):
        parse_lengths(text)


def test_prompts_are_spread_over_categories() -> None:
    prompts = [Prompt.from_user(f"{i}", "s", "many") for i in range(9)]
    prompts += [Prompt.from_user("x", "few"), Prompt.from_user("y", "few")]
    chosen = [question.category for question in spread(prompts, 5)]
    assert chosen == ["many", "few", "many", "few", "many"]


@pytest.mark.parametrize(
    ("word", "reduced"),
    [
        ("train", "train"),
        ("/home/me/prompts.jsonl", "prompts.jsonl"),
        ("--out=/home/me/draft", "--out=draft"),
        ("../draft", "draft"),
        ("runs/august/draft", "draft"),
        ("org/model", "org/model"),
        ("0:0.5,0.7:0.35", "0:0.5,0.7:0.35"),
    ],
)
def test_commands_are_told_without_folders(word: str, reduced: str) -> None:
    assert without_folders(word) == reduced


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({"speculators_model_type": "eagle3"}, "eagle3"),
        ({"speculators_model_type": "eagle"}, "eagle"),
        ({"model_type": "medusa"}, "medusa"),
        ({"model_type": "outpace_early_exit"}, "early_exit"),
        ({"model_type": "llama"}, "draft_model"),
    ],
)
def test_kinds_are_told_by_their_configuration(tmp_path: Path, config: dict, kind: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "tokenizer.json").write_text("{}")
    assert detect_kind(tmp_path) == kind
    assert speculative_config(tmp_path, num_speculative_tokens=2) == {
        "method": kind,
        "model": str(tmp_path),
        "num_speculative_tokens": 2,
    }


@pytest.mark.parametrize(
    "config", [{"speculators_model_type": "hydra"}, {"model_type": "bert"}, {"model_type": "llama"}]
)
def test_other_directories_are_no_drafts(tmp_path: Path, config: dict) -> None:
    """The last one lacks a tokenizer."""
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"hydra|no draft"):
        detect_kind(tmp_path)


def test_a_directory_without_configuration_is_no_draft(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json"):
        detect_kind(tmp_path)


def test_results_appear_at_once_and_whole(tmp_path: Path) -> None:
    out = tmp_path / "draft"
    run = RunDirectory(out, {"a": 1})
    assert not run.is_resumed
    run.begin()
    assert RunDirectory(out, {"a": 1}).is_resumed
    draft = run.new_draft()
    (draft / "config.json").write_text("{}")
    assert not out.exists()
    run.publish(draft, keep=False)
    assert [path.name for path in tmp_path.iterdir()] == ["draft"]
    assert (out / "config.json").read_text() == "{}"


def test_other_runs_are_named_by_what_differs(tmp_path: Path) -> None:
    RunDirectory(tmp_path / "draft", {"data": {"files": [{"name": "a"}]}, "seed": 1}).begin()
    with pytest.raises(OptionError) as refused:
        RunDirectory(tmp_path / "draft", {"data": {"files": [{"name": "b"}]}, "seed": 1})
    assert "with data.files.1.name 'a'; this one has data.files.1.name 'b'" in str(refused.value)
    assert "seed" not in str(refused.value)


def test_progress_is_told_line_by_line_without_a_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    evaluation = Evaluation(1.0, (0.5,), (1.5, 1.75))
    with TrainingProgress(quiet=False) as progress:
        progress.counted("answers", 0, 2)
        progress.counted("answers", 2, 2, "7 tokens")
        progress.trained(Progress(1, 2, 0, 10, 5.0, 3.25, (0.5, 0.25), 60.0))
        progress.trained(Progress(2, 2, 0, 20, 5.0, 3.0, (0.5, 0.25), 0.0, evaluation))
    err = capsys.readouterr().err
    assert "answers: 2 of 2, 7 tokens" in err
    assert "step 1 of 2, 5 tokens/s, loss 3.250, accepted 0.50 0.25, 60 s left" in err
    assert "step 2: held-out tokens per pass 1.50 1.75" in err


def test_quiet_progress_tells_notes_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with TrainingProgress(quiet=True) as progress:
        progress.counted("answers", 2, 2, "7 tokens")
        progress.note("something")
    assert capsys.readouterr() == ("", "something\n")
