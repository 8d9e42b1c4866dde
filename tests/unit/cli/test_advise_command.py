"""`outpace advise` on a tiny model, and --config of the commands that follow it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from model_files import write_hf

import outpace
from outpace.cli import advise as advise_module
from outpace.cli import serve as serve_module
from outpace.cli.advise_next import next_command
from outpace.measure.advise import run as run_module
from outpace.measure.advise.candidates import candidates_of
from outpace.measure.advise.configuration import AdvisedConfig, read_config, write_config
from outpace.measure.advise.findings import Measured
from outpace.measure.advise.options import AdviseOptions
from outpace.measure.advise.recording import record
from outpace.measure.advise.verdict import NOT_SURE, UNCERTAIN, USE, Verdict
from outpace.measure.methods import parse_methods
from outpace.measure.statistics import Ratio

Run = Callable[..., tuple[int, str, str]]
FAST = ("--model-impl", "torch", "--dtype", "float32", "--minutes", "0.05", "--max-tokens", "12")


@pytest.fixture(autouse=True)
def _unchecked(unchecked_shapes: None) -> None:
    """Whole engines run here."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    return write_hf(folder, config={"max_position_embeddings": 256})


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "mine.jsonl"
    texts = ["Say it again and again.", "Three rivers, please.", "Count: one two one two one two"]
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts), "utf-8")
    return path


def test_advice_is_written_and_followed(
    run_cli: Run, model: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "advice.json"
    started = time.perf_counter()
    status, out, err = run_cli(
        *("advise", "--model", str(model), "--prompts", str(prompts), *FAST),
        *("--candidates", "suffix:2-3,ngram:2", "--json", "--write", str(path)),
    )
    assert status == 0, err
    facts = json.loads(out)
    assert facts["complete"]
    assert [each["method"] for each in facts["predictions"]] == [
        "suffix K=2",
        "suffix K=3",
        "ngram K=2",
    ]
    assert {each["num_disagreements"] for each in facts["predictions"]} == {0}
    # The best of each method ran, and greedy answers were those of plain decoding.
    assert len(facts["measured"]) == 2
    assert all(each["num_equal"] == each["num_compared"] > 0 for each in facts["measured"])
    assert facts["verdict"]["text"]
    assert facts["provenance"]["command"]
    assert time.perf_counter() - started < 120
    written = read_config(path)
    assert written.speculative_config == facts["verdict"]["speculative_config"]
    assert written.fingerprint == facts["model"]["fingerprint"]
    _check_followed(run_cli, written, path, monkeypatch)


def _check_followed(
    run_cli: Run, written: AdvisedConfig, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`generate` and `serve` make their engines as the file says."""
    made: list[tuple[Any, dict[str, Any]]] = []
    real = outpace.LLM

    def make(model: Any, **options: Any) -> Any:
        made.append((model, options))
        return real(model, **options | {"max_model_len": 64})

    monkeypatch.setitem(vars(outpace), "LLM", make)
    asked = ("generate", "--config", str(path), "--raw", "--max-tokens", "4", "One two")
    status, _, err = run_cli(*asked, "--model-impl", "torch")
    assert status == 0, err
    values = dict.fromkeys(_parameters("serve"))
    values |= {"config": path, "request_methods": ("none",), "model_impl": "torch"}
    values |= {"model": "smollm2-135m", "dtype": "auto", "max_num_seqs": 1, "device": "auto"}
    values |= {"kv_cache_dtype": "auto", "activations": "auto"}
    with click.Context(serve_module.serve), serve_module._open(values) as llm:
        assert llm.fingerprint == written.fingerprint
    for model, options in made:
        assert model == written.model
        assert options["dtype"] == written.dtype == "float32"
        assert options["speculative_config"] == dict(written.speculative_config)
    assert len(made) == 2


def _parameters(command: str) -> list[str]:
    return [parameter.name or "" for parameter in getattr(serve_module, command).params]


def test_ctrl_c_gives_what_there_is(
    run_cli: Run, model: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*args: Any, **values: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run_module, "measure", interrupt)
    status, out, err = run_cli(
        *("advise", "--model", str(model), "--prompts", str(prompts), *FAST),
        *("--candidates", "suffix:2,auto"),
    )
    assert status == 130
    assert "suffix K=2" in out
    assert "A plain step takes" in out
    assert "ended early" in err
    assert "Traceback" not in err
    assert "Do not speculate here" in out or "was not measured" in out


def test_what_was_left_out_is_said(
    run_cli: Run, model: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts, tokens and the time promised; and a measurement that cannot be right."""
    texts = prompts.read_text("utf-8").splitlines()
    many = prompts.with_name("many.jsonl")
    many.write_text("\n".join(texts * 2) + "\n", "utf-8")

    def too_fast(loaded: Any, candidates: Any, *args: Any, found: Any, **values: Any) -> None:
        ratio = Ratio(4.69, None, None, 1)
        found.append(Measured(candidates[0], ratio, 9, 2, 1.8, 1, 1, 1, (2,), expected=1.78))

    monkeypatch.setattr(run_module, "measure", too_fast)
    monkeypatch.setattr(run_module, "load_note", lambda: "the machine was busy")
    monkeypatch.setattr(run_module, "_OVERRUN", 0.0)
    monkeypatch.setattr(run_module, "record", _cut_short)
    status, out, err = run_cli(
        *("advise", "--model", str(model), "--prompts", str(many), *FAST),
        *("--candidates", "suffix:2", "--quick", "--seed", "3"),
    )
    assert status == 0, err
    assert "2 of 6 prompts were left out: --quick looks at 4 at most" in err
    assert "Answers were cut to 9 tokens, not 12" in err
    assert "s promised" in err
    assert "The machine was busy." in err
    assert "for 4 of 6 prompts" in out
    assert "on 1 of 4 prompts (many " in " ".join(out.split())
    assert "Not sure: suffix K=2 seemed to reach 4.69" in out
    assert "more than 10 % off" not in out
    (line,) = (line for line in out.splitlines() if line.startswith("Next: "))
    assert "--candidates suffix:2 --minutes 0.05" in line
    assert f"--model {model} --prompts {many}" in line
    assert "--seed 3" in line
    assert "--quick" not in line


def _cut_short(loaded: Any, prompts: Any, options: AdviseOptions, clock: Any, **values: Any) -> Any:
    return record(loaded, prompts, replace(options, max_tokens=9), clock, **values)


def test_more_time_for_the_one_in_question(model: Path) -> None:
    argv = ["--model", str(model), "--candidates", "suffix:1-4,auto", "--minutes", "5"]
    with advise_module.advise.make_context("advise", argv):
        options = AdviseOptions(minutes=5)
        (best,) = candidates_of(parse_methods("suffix:3:tree"))
        unsure = Verdict(NOT_SURE, "", {}, best, UNCERTAIN)
        assert next_command(unsure, options) == (
            f"outpace advise --model {model} --candidates suffix:3:tree --minutes 15"
        )
        assert next_command(replace(unsure, kind=USE), options) is None


def test_a_file_that_cannot_be_written_is_refused_before_anything(
    run_cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        advise_module, "load_target", lambda values: pytest.fail("a model was loaded")
    )
    place = tmp_path / "nowhere" / "a.json"
    status, out, err = run_cli("advise", "--model", "any", "--write", str(place))
    assert (status, out) == (1, "")
    assert str(place) in err
    assert err.count("\n") == 1


def test_help_shows_ranges_and_defaults(run_cli: Run) -> None:
    text = " ".join(run_cli("advise", "--help")[1].split())
    for words in ("from 1 to 64", "up to 600", "at least 8", "other draws every time"):
        assert words in text


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--candidates", "suffix:1-999"], "can go to 64"),
        (["--candidates", "nonsense:2"], "unknown speculative method 'nonsense'"),
        (["--candidates", "suffix:0"], "at least 1"),
        (["--minutes", "0"], "minutes must be more than 0"),
        (["--max-tokens", "3"], "max_tokens must be at least 8"),
        (["--batch", "0"], "batch must be from 1 to 64"),
        (["--temperature", "-1"], "temperature must be a number"),
        (["--candidates", "none"], "plain decoding"),
    ],
)
def test_errors_in_one_line(run_cli: Run, model: Path, args: list[str], message: str) -> None:
    status, out, err = run_cli("advise", "--model", str(model), *args)
    assert (status, out) == (1, "")
    assert err.startswith("error: ")
    assert message in err
    assert err.count("\n") == 1


@pytest.fixture
def advice(tmp_path: Path) -> Path:
    path = tmp_path / "advice.json"
    config = {"method": "suffix", "num_speculative_tokens": 4}
    write_config(path, AdvisedConfig("a-model", "abc", "bfloat16", config))
    return path


@pytest.fixture
def fingerprints(fake_class: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_class, "fingerprint", "abc", raising=False)
    monkeypatch.setattr(fake_class, "close", lambda self: setattr(self, "closed", True), False)


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_config_decides_model_dtype_and_method(
    run_cli: Run, llms: list, fingerprints: None, advice: Path, command: str
) -> None:
    words = ("hello",) if command == "generate" else ()
    agreeing = ("--method", "suffix", "--dtype", "bfloat16", "--model", "a-model")
    for more in ((), agreeing):
        status, _, err = run_cli(command, "--config", str(advice), *more, *words, stdin="hello\n")
        assert status == 0, err
    for llm in llms:
        assert llm.model == "a-model"
        assert llm.dtype == "bfloat16"
        assert llm.speculative_config == {"method": "suffix", "num_speculative_tokens": 4}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--model", "another"], "--model another contradicts"),
        (["--dtype", "float32"], "--dtype float32 contradicts"),
        (["--method", "ngram"], "--method ngram contradicts"),
        (["--num-speculative-tokens", "2"], "--num-speculative-tokens 2 contradicts"),
        (["--speculative-config", '{"method": "ngram"}'], "--speculative-config ngram contradicts"),
        (["--speculative-model", "small"], "--speculative-model small is not what"),
        (["--prompt-lookup-max", "2"], "--prompt-lookup-max 2 is not what"),
    ],
)
def test_contradicting_flags_are_refused_by_name(
    run_cli: Run, llms: list, advice: Path, args: list[str], message: str
) -> None:
    status, _, err = run_cli("generate", "--config", str(advice), *args, "hello")
    assert status == 1
    assert message in err
    assert str(advice) in err
    assert not llms


def test_the_config_of_another_model_is_an_error_that_names_both(
    run_cli: Run,
    llms: list,
    fingerprints: None,
    advice: Path,
    fake_class: type,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fake_class, "fingerprint", "xyz")
    status, _, err = run_cli("generate", "--config", str(advice), "hello")
    assert status == 1
    assert "a-model with fingerprint abc" in err
    assert "xyz" in err
    assert llms[0].closed


def test_a_config_without_speculation_decodes_plainly(
    run_cli: Run, llms: list, fingerprints: None, tmp_path: Path
) -> None:
    path = tmp_path / "plain.json"
    write_config(path, AdvisedConfig("a-model", "abc", "bfloat16", {"method": "none"}))
    assert run_cli("generate", "--config", str(path), "hello")[0] == 0
    assert llms[0].method == "none"


def test_chat_with_a_server_takes_no_config(run_cli: Run, advice: Path) -> None:
    status, _, err = run_cli("chat", "--url", "http://127.0.0.1:1", "--config", str(advice))
    assert status == 1
    assert "--config concerns a model in this process" in err
