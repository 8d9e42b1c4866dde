"""What a user writes about speculation, and what it means."""

from __future__ import annotations

from typing import Any

import pytest
from scripted import scripted

from outpace.drafters import DEFAULT_METHOD, options_of
from outpace.engine.speculative_config import parse_request_methods, parse_speculative_config
from outpace.errors import OptionError
from outpace.verification.lossy import TypicalAcceptance


def test_auto_is_the_default() -> None:
    assert DEFAULT_METHOD == "auto"
    for config in (None, {}):
        found = parse_speculative_config(config)
        assert (found.method, found.options) == ("auto", options_of("auto")())
        assert found.lossy is None


@pytest.mark.parametrize(
    ("config", "method", "expected"),
    [
        ({"method": "none"}, "none", {}),
        ({"num_speculative_tokens": 3}, "auto", {"num_speculative_tokens": 3}),
        ({"max_trained_tokens": 2}, "auto", {"max_trained_tokens": 2}),
        ({"method": "auto", "model": "DIR"}, "auto", {"model": "DIR"}),
        ({"model": "DIR"}, "draft_model", {"model": "DIR"}),  # vLLM's meaning
        ({"model": "[ngram]"}, "ngram", {"num_speculative_tokens": 4}),
        ({"method": "suffix", "num_speculative_tokens": 2}, "suffix", {}),
    ],
)
def test_what_is_left_out(config: dict[str, Any], method: str, expected: dict[str, Any]) -> None:
    found = parse_speculative_config(config)
    assert found.method == method
    assert type(found.options) is options_of(method)
    assert {name: getattr(found.options, name) for name in expected} == expected


def test_the_shorthand() -> None:
    assert parse_speculative_config(num_speculative_tokens=3).method == "auto"
    found = parse_speculative_config(speculative_model="DIR", num_speculative_tokens=3)
    assert (found.method, found.options.num_speculative_tokens) == ("draft_model", 3)
    assert parse_speculative_config(speculative_model="ngram").method == "ngram"


def test_a_lossy_rule_needs_no_method_and_no_method_has_none() -> None:
    found = parse_speculative_config({"acceptance_method": "typical"})
    assert (found.method, type(found.lossy)) == ("auto", TypicalAcceptance)
    with pytest.raises(OptionError, match="nothing is drafted"):
        parse_speculative_config({"acceptance_method": "typical", "method": "none"})


def test_a_class_is_a_method() -> None:
    drafter = scripted(lambda seq, budget: [])
    found = parse_speculative_config({"method": drafter, "num_speculative_tokens": 1})
    assert found.drafter is drafter


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"prompt_lookup_max": 3}, "'auto' option prompt_lookup_max is not supported"),
        ({"method": "auto", "model": "ngram"}, "contradicts"),
        ({"method": "auto", "max_trained_tokens": 0}, "max_trained_tokens must be a whole number"),
        ({"method": None}, "unknown speculative method None"),
        ({"method": "atuo"}, "known methods: auto"),
    ],
)
def test_refusals(config: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_speculative_config(config)


def test_request_methods_are_names_mappings_and_classes() -> None:
    drafter = scripted(lambda seq, budget: [])
    given = ["ngram", {"method": "suffix", "num_speculative_tokens": 2}, {"model": "DIR"}, drafter]
    found = parse_request_methods(given, parse_speculative_config())
    assert [each.method for each in found] == ["ngram", "suffix", "draft_model", "scripted"]
    assert found[1].options.num_speculative_tokens == 2
    assert type(found[0].options) is options_of("ngram")
    assert found[3].drafter is drafter
    assert parse_request_methods((), parse_speculative_config()) == []


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ("ngram", "must be a list"),
        ({"method": "ngram"}, "must be a list"),
        (None, "must be a list"),
        (["ngrams"], "unknown speculative method 'ngrams'; known methods"),
        ([3], "unknown speculative method 3"),
        (["ngram", {"method": "ngram"}], "'ngram' is given twice"),
        (["auto"], "'auto' is the engine's own"),
        (["none"], "leave it out"),
        ([{"num_speculative_tokens": 3}], "names no method"),
        ([{"method": "ngram", "num_speculative_token": 3}], "num_speculative_token"),
        ([{"method": "ngram", "acceptance_method": "typical"}], "one for all requests"),
        (["draft_model"], "needs a draft model"),
    ],
)
def test_request_methods_that_are_refused(methods: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_request_methods(methods, parse_speculative_config())
