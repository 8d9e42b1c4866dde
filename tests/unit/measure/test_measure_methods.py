"""Methods as people write them, and what tables call them."""

from __future__ import annotations

from typing import Any

import pytest

from outpace.errors import OptionError
from outpace.measure.methods import name_of, named, parse_methods


@pytest.mark.parametrize(
    ("text", "configs"),
    [
        ("auto", [{"method": "auto"}]),
        ("suffix:4", [{"method": "suffix", "num_speculative_tokens": 4}]),
        (
            "ngram:1-2, eagle3:3:tree",
            [
                {"method": "ngram", "num_speculative_tokens": 1},
                {"method": "ngram", "num_speculative_tokens": 2},
                {"method": "eagle3", "num_speculative_tokens": 3, "shape": "tree"},
            ],
        ),
        (
            ' {"method": "ngram", "prompt_lookup_max": 2}',
            [{"method": "ngram", "prompt_lookup_max": 2}],
        ),
    ],
)
def test_methods_are_read(text: str, configs: list[dict[str, Any]]) -> None:
    assert parse_methods(text) == configs


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is no drafting method"),
        ("suffix:4:circle", "is no drafting method"),
        ("suffix:4:tree:2", "is no drafting method"),
        ("suffix:x", "must be at least 1, or a range"),
        ("suffix:0", "must be at least 1, or a range"),
        ("suffix:4-2", "must be at least 1, or a range"),
        ('{"method": "suffix"', "is not valid JSON"),
        ('{"method": "suffix", "method": "ngram"}', "is not valid JSON"),
    ],
)
def test_what_is_no_method_is_refused(text: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_methods(text)


def test_names_say_what_was_chosen() -> None:
    tree = {"method": "suffix", "shape": "tree", "num_speculative_tokens": 16}
    assert name_of(tree) == "suffix tree K=16"
    assert name_of({"method": "ngram", "prompt_lookup_max": 2}) == "ngram K=4 prompt_lookup_max=2"
    assert name_of({"method": "none"}) == "plain"
    assert list(named([tree, {"method": "ngram"}, tree])) == ["suffix tree K=16", "ngram K=4"]
    with pytest.raises(OptionError, match="unknown speculative method"):
        name_of({"method": "telepathy"})
