"""`outpace generate` on a model that repeats its prompt."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest

from outpace.cli.generate import generate
from outpace.drafters import available_methods, options_of
from outpace.params import SamplingParams

Run = Callable[..., tuple[int, str, str]]
REPLY = "you said: hello"


def test_plain_output_and_statistics(run_cli: Run, llms: list) -> None:
    status, out, err = run_cli("generate", "hello", "--method", "none")
    assert (status, out) == (0, REPLY + "\n")
    assert err.startswith(f"{len(REPLY)} tokens, ")
    assert err.endswith("acceptance length 1.00, method none\n")
    assert run_cli("generate", "hello")[2].endswith("acceptance length 3.00, method auto\n")
    [(prompt, params, speculative)] = llms[0].requests
    assert prompt == [{"role": "user", "content": "hello"}]
    assert params == SamplingParams(max_tokens=256, temperature=0.0)
    assert speculative
    assert llms[0].closed


def test_raw_prompt_and_sources(run_cli: Run, llms: list, tmp_path: Path) -> None:
    path = tmp_path / "prompt.txt"
    path.write_text("from a file", encoding="utf-8")
    run_cli("generate", "--raw", "--prompt-file", str(path))
    run_cli("generate", "--raw", "-", stdin="from a pipe\n")
    run_cli("generate", "--raw", "--", "--from-argv")
    prompts = [llm.requests[0][0] for llm in llms]
    assert prompts == ["from a file", "from a pipe\n", "--from-argv"]


@pytest.mark.parametrize(
    ("args", "stdin", "status", "message"),
    [
        ([], "", 2, "Give either PROMPT"),
        (["hello", "--prompt-file", __file__], "", 2, "Give either PROMPT"),
        ([""], "", 1, "error: the prompt is empty"),
        (["-"], "", 1, "error: standard input is empty"),
        (["-"], b"\xff\xfe", 1, "error: standard input is not valid UTF-8"),
        (["a\udcff"], "", 1, "error: the prompt is not valid UTF-8"),
        (["a", "--temperature", "nan"], "", 1, "error: temperature must be a number"),
        (["a", "--temperature", "-1"], "", 1, "error: temperature must be a number"),
        (["a", "--top-p", "0"], "", 1, "error: top_p must be a number"),
        (["a", "--max-tokens", "-1"], "", 1, "error: max_tokens must be"),
        (["a", "--stop", ""], "", 1, "error: stop must hold non-empty strings"),
        (["a", "--speculative-config", "{"], "", 1, "error: --speculative-config is not valid"),
        (["a", "--speculative-config", "[" * 10**5], "", 1, "error: --speculative-config is not"),
        (["a", "--speculative-config", "9" * 5000], "", 1, "error: --speculative-config is not"),
        (["a", "--speculative-config", '{"a": 1, "a": 1}'], "", 1, "the key 'a' is given twice"),
        (["a", "--speculative-config", "[]"], "", 1, "error: --speculative-config must be an obj"),
        (["a", "--prompt-lookup-max", "3"], "", 1, "error: --prompt-lookup-max configures an"),
        (["a", "--explain", "--method", "ngram"], "", 1, "error: --explain tells how 'auto' "),
        (["a", "--method", "nonsense"], "", 2, "'nonsense' is not one of auto, draft_model, "),
        (["a", "--logit-bias", "x=1"], "", 2, "'x=1' is not a token id and a number"),
        (["a", "--logit-bias", "5"], "", 2, "'5' is not a token id and a number"),
        (["a", "--logit-bias", "5=1", "--logit-bias", "5=2"], "", 1, "names a token id twice"),
        (["a", "--n", "0"], "", 1, "error: n must be a whole number from 1 to 1024"),
        (["a", "--n", "2", "--compare"], "", 1, "error: --compare times one answer"),
        (["a", "--repeats", "2"], "", 2, "--repeats only has a meaning with --compare"),
        (["a", "--dtype", "int8"], "", 2, "'int8' is not one of"),
    ],
)
def test_refusals(
    run_cli: Run, llms: list, args: list[str], stdin: str | bytes, status: int, message: str
) -> None:
    found, out, err = run_cli("generate", *args, stdin=stdin)
    assert (found, out) == (status, "")
    assert message in err
    assert status == 2 or err.count("\n") == 1
    assert "Traceback" not in err


def test_json_is_one_object(run_cli: Run, llms: list) -> None:
    status, out, _ = run_cli("generate", "hello", "--json", "--method", "ngram", "--stop", "llo")
    values = json.loads(out)
    assert status == 0
    assert values["text"] == "you said: he"
    assert bytes(values["token_ids"]) == b"you said: hello"
    assert (values["finish_reason"], values["stop_reason"]) == ("stop", "llo")
    assert values["usage"] == {"prompt_tokens": 5, "completion_tokens": 15, "total_tokens": 20}
    assert values["speculation"]["num_steps"] == 5
    assert values["speculation"]["acceptance_length"] == 3.0
    assert values["speculation"]["reached_per_position"] == [5, 5]
    assert values["speculation"]["conditional_acceptance"] == [1.0, 1.0]
    assert values["timings"].keys() == {"ttft_s", "total_s", "decode_tokens_per_s"}
    assert (values["model"], values["method"], values["dtype"]) == (
        "smollm2-135m",
        "ngram",
        "auto",
    )
    assert "logprobs" not in values


def test_json_survives_any_text(run_cli: Run, llms: list) -> None:
    text = 'quote " newline \n é \N{GRINNING FACE} \N{LINE SEPARATOR}'
    _, out, _ = run_cli("generate", text, "--json")
    assert json.loads(out)["text"] == f"you said: {text}"
    assert out.isascii()
    assert out.count("\n") == 1


def test_logprobs(run_cli: Run, llms: list) -> None:
    _, out, _ = run_cli("generate", "hi", "--json", "--logprobs", "0")
    rows = json.loads(out)["logprobs"]
    assert rows[0] == [{"token_id": ord("y"), "logprob": -0.5, "rank": 1, "token": "y"}]
    assert len(rows) == len("you said: hi")
    _, out, err = run_cli("generate", "hi", "--logprobs", "0")
    assert out == "you said: hi\n"
    assert err.splitlines()[0] == "'y'  -0.5000  rank 1  ['y' -0.5000]"


def test_a_token_of_probability_zero_is_null_in_json(
    run_cli: Run, llms: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    from outpace.cli.answers import _logprob_json, dump_json
    from outpace.outputs import Logprob

    assert '"logprob": null' in dump_json(_logprob_json(3, Logprob(float("-inf"), 9, "x")))


SAMPLING_VALUES: dict[str, tuple[list[str], object]] = {
    "n": (["2"], 2),
    "repetition_penalty": (["1.1"], 1.1),
    "presence_penalty": (["-0.5"], -0.5),
    "frequency_penalty": (["0.5"], 0.5),
    "logit_bias": (["50=-1.5"], {50: -1.5}),
    "allowed_token_ids": (["3"], (3,)),
    "bad_words": (["zzz"], ("zzz",)),
    "min_tokens": (["2"], 2),
    "typical_p": (["0.9"], 0.9),
    "prompt_logprobs": (["1"], 1),
    "temperature": (["0.5"], 0.5),
    "top_k": (["7"], 7),
    "top_p": (["0.9"], 0.9),
    "min_p": (["0.1"], 0.1),
    "seed": (["11"], 11),
    "max_tokens": (["5"], 5),
    "stop": (["a"], ("a",)),
    "stop_token_ids": (["3"], (3,)),
    "ignore_eos": ([], True),
    "logprobs": (["2"], 2),
    "include_stop_str_in_output": ([], True),
    "skip_special_tokens": ([], True),
}


# One that is for programs alone, and one that has several options.
NOT_AN_OPTION = ("logits_processors", "structured_outputs")


@pytest.mark.parametrize(
    "name", [f.name for f in fields(SamplingParams) if f.name not in NOT_AN_OPTION]
)
@pytest.mark.parametrize("separator", ["-", "_"])
def test_every_sampling_parameter_arrives(
    run_cli: Run, llms: list, name: str, separator: str
) -> None:
    words, value = SAMPLING_VALUES[name]
    status, _, err = run_cli("generate", "zzz", f"--{name.replace('_', separator)}", *words)
    assert status == 0, err
    assert getattr(llms[0].requests[0][1], name) == value


@pytest.mark.parametrize(
    ("words", "kind", "value"),
    [
        (["--json-schema", '{"type": "object"}'], "json", '{"type": "object"}'),
        (["--json-schema", "@{file}"], "json", "from é file"),
        (["--regex", "@[a-z]+"], "regex", "@[a-z]+"),
        (["--choice", "yes", "--choice", "no"], "choice", ("yes", "no")),
        (["--grammar", "@{file}"], "grammar", "from é file"),
    ],
)
def test_what_the_answer_must_be_arrives(
    run_cli: Run, llms: list, tmp_path: Path, words: list[str], kind: str, value: object
) -> None:
    path = tmp_path / "source.txt"
    path.write_text("from é file", encoding="utf-8")
    given = [word.replace("{file}", str(path)) for word in words]
    status, _, err = run_cli("generate", "zzz", *given)
    assert status == 0, err
    asked = llms[0].requests[0][1].structured_outputs
    assert (asked.kind, getattr(asked, kind)) == (kind, value)


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["--regex", "a", "--choice", "b"], 2, "Give one of --regex and --choice"),
        (["--grammar", "start: x"], 2, "is not @FILE"),
        (["--grammar", "@/no/such/file"], 2, "/no/such/file cannot be read"),
        (["--json-schema", "@/"], 2, "cannot be read"),
        (["--choice", ""], 1, "choice must hold non-empty strings"),
        (["--regex", "a", "--ignore-eos"], 1, "ignore_eos=True cannot be combined"),
    ],
)
def test_what_the_answer_must_be_is_checked(
    run_cli: Run, words: list[str], status: int, message: str
) -> None:
    found, out, err = run_cli("generate", "zzz", *words)
    assert (found, out) == (status, "")
    assert message in err


def test_a_flag_can_be_switched_off_and_stop_repeats(run_cli: Run, llms: list) -> None:
    run_cli("generate", "zzz", "--no-skip-special-tokens", "--stop", "a", "--stop", "b")
    params = llms[0].requests[0][1]
    assert params.skip_special_tokens is False
    assert params.stop == ("a", "b")


def test_every_option_has_help() -> None:
    for parameter in generate.params:
        if parameter.param_type_name == "option":
            assert parameter.help.strip(), parameter.name


def test_every_drafter_option_has_a_flag() -> None:
    flags = {flag for parameter in generate.params for flag in parameter.opts}
    for method in available_methods():
        for option in fields(options_of(method)):
            name = "speculative_model" if option.name == "model" else option.name
            assert {f"--{name}".replace("_", "-"), f"--speculative-{name}"} & flags


def test_drafter_configuration_from_flags_and_json(run_cli: Run, llms: list) -> None:
    run_cli("generate", "a", "--method", "ngram", "--prompt_lookup_max", "4", "--occurrence", "x")
    run_cli("generate", "a", "--speculative-config", '{"method": "ngram"}', "--prompt-lookup-min=2")
    run_cli("generate", "a", "--speculative_model", "m", "--num_speculative_tokens", "3")
    run_cli("generate", "a", "--method", "draft-model", "--speculative-config", '{"model": "m"}')
    run_cli("generate", "a", "--num-speculative-tokens", "3", "--store-tokens", "9")
    run_cli("generate", "a", "--method", "auto", "--speculative-model", "DIR")
    assert [llm.speculative_config for llm in llms] == [
        {"method": "ngram", "prompt_lookup_max": 4, "occurrence": "x"},
        {"method": "ngram", "prompt_lookup_min": 2},
        {"model": "m", "num_speculative_tokens": 3},
        {"method": "draft_model", "model": "m"},
        {"num_speculative_tokens": 3, "store_tokens": 9},
        {"method": "auto", "model": "DIR"},
    ]


def test_a_key_given_twice_is_refused(run_cli: Run, llms: list) -> None:
    status, _, err = run_cli(
        "generate", "a", "--method", "ngram", "--speculative-config", '{"method": "none"}'
    )
    assert status == 1
    assert "--method and --speculative-config both give 'method'" in err


def test_engine_options_arrive(run_cli: Run, llms: list) -> None:
    run_cli(
        *("generate", "a", "--model", "other", "--dtype", "float64"),
        *("--max-model-len", "99", "--device", "cpu", "--threads", "2"),
    )
    llm = llms[0]
    assert (llm.model, llm.dtype, llm.max_model_len, llm.device) == ("other", "float64", 99, "cpu")
    assert llm.speculative_config is None
    assert callable(llm.progress)
