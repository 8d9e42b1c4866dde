"""`outpace generate --compare` on a model that repeats its prompt."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from outpace.cli.compare import Comparison, _spread, _worth_sentence, first_difference

Run = Callable[..., tuple[int, str, str]]


def test_runs_are_interleaved_after_a_warm_up(run_cli: Run, llms: list) -> None:
    status, out, _ = run_cli("generate", "hello", "--compare", "--repeats", "2", "--json")
    assert status == 0
    assert [request[2] for request in llms[0].requests] == [
        *(False, True),
        *(False, True),
        *(True, False),
    ]
    values = json.loads(out)
    assert values["method"] == "auto"
    assert values["ids_equal"] is True
    assert values["shares"] == {"suffix": 1.0}
    assert values["acceptance_length"] == 3.0
    assert (values["repeats"], values["num_output_tokens"]) == (2, 15)
    ratio = values["speculative_tokens_per_s"] / values["plain_tokens_per_s"]
    assert values["ratio"] == pytest.approx(ratio)
    assert len(values["plain_speeds"]) == len(values["speculative_speeds"]) == 2
    assert "first_difference" not in values
    assert len(llms) == 1


def test_table_for_people(run_cli: Run, llms: list) -> None:
    status, out, err = run_cli("generate", "hello", "--compare", "--method", "ngram")
    assert status == 0
    assert len(llms[0].requests) == 8
    for words in ("plain", "ngram", "tokens/s", "3.00", "equal in all runs (15 tokens)", "Speed:"):
        assert words in out
    assert err.startswith("Timed:")


def test_a_difference_is_said_with_its_place(
    run_cli: Run, llms: list, fake_class: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = iter(range(100))
    monkeypatch.setattr(fake_class, "answer", lambda self, prompt: f"answer {next(count) % 2}")
    _, out, _ = run_cli("generate", "hello", "--compare", "--json")
    values = json.loads(out)
    assert (values["ids_equal"], values["first_difference"]) == (False, 7)
    _, out, _ = run_cli("generate", "hello", "--compare")
    assert "DIFFERENT from output token 7 on" in out


@pytest.mark.parametrize(("seed", "expected"), [((), None), (("--seed", "1"), True)])
def test_sampling_is_compared_only_with_a_seed(
    run_cli: Run, llms: list, seed: tuple[str, ...], expected: bool | None
) -> None:
    args = ("generate", "hello", "--compare", "--temperature", "0.8", *seed)
    assert json.loads(run_cli(*args, "--json")[1])["ids_equal"] is expected
    assert ("not comparable" in run_cli(*args)[1]) == (expected is None)


def test_no_run_may_copy_the_answer_of_another(run_cli: Run, llms: list) -> None:
    """A drafter that remembers past outputs would have seen this very answer."""
    run_cli("generate", "hello", "--compare", "--repeats", "2")
    run_cli("generate", "hello", "--raw", "--compare", "--repeats", "2")
    for llm, key in zip(llms, ("messages", "prompt"), strict=True):
        prompts = [prompt for prompt, _, _ in llm.requests]
        assert all(key in prompt for prompt in prompts)
        assert len({prompt["cache_salt"] for prompt in prompts}) == len(prompts) == 6


def test_an_answer_of_one_token_has_no_speed(run_cli: Run, llms: list) -> None:
    args = ("generate", "hello", "--compare", "--max-tokens", "1")
    values = json.loads(run_cli(*args, "--json")[1])
    assert values["ratio"] is values["plain_tokens_per_s"] is None
    assert "over after one step" in run_cli(*args)[1]


@pytest.mark.parametrize(
    ("plain", "drafted", "words"),
    [
        ([10, 11, 12], [20, 21, 22], "helps on this prompt, 1.91 times"),
        ([20, 21, 22], [10, 11, 12], "does not help on this prompt, 0.52 times"),
        ([10, 11, 16], [15, 20, 22], "prompt (the runs overlap)."),
        ([10, 10.1, 10.2], [10.3, 10.4, 10.5], "prompt (less than 5% apart)."),
        ([5, 5, 5], [20, 21, 22], "not reliable"),  # four times as fast with 2.5 tokens per pass
        ([10], [20], "2.00 times plain decoding, once. One run is no verdict"),
        ([20], [20], "1.00 times plain decoding, once. One run is no verdict"),
        ([5], [20], "not reliable"),
        ([], [], "over after one step"),
    ],
)
def test_what_is_said_about_speed(plain: list, drafted: list, words: str) -> None:
    repeats = len(plain) or 3
    comparison = Comparison("ngram", repeats, 40, True, None, plain, drafted, acceptance_length=2.5)
    assert words in _worth_sentence(comparison)


def test_one_run_has_no_spread() -> None:
    assert _spread([9.79]) == "one run, no spread"
    assert _spread([10.0, 9.5]) == "9.50 to 10.00"
    assert _spread([]) == "-"


def test_plain_decoding_is_not_compared_with_itself(run_cli: Run, llms: list) -> None:
    status, out, err = run_cli("generate", "hello", "--compare", "--method", "none")
    assert (status, out) == (1, "")
    assert err.startswith("error: --compare needs a drafter")
    assert llms[0].requests == []


@pytest.mark.parametrize(
    ("left", "right", "place"),
    [([], [], None), ([1, 2], [1, 2], None), ([1], [1, 2], 1), ([1, 3], [1, 2], 1), ([], [5], 0)],
)
def test_first_difference(left: list[int], right: list[int], place: int | None) -> None:
    assert first_difference(left, right) == place
    assert first_difference(right, left) == place
