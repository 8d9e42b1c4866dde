"""Settings that make no sense are refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from outpace.errors import OptionError
from outpace.serving.settings import ServerSettings


@pytest.mark.parametrize(
    "bad",
    [
        {"port": -1},
        {"port": 65536},
        {"max_queue": -1},
        {"max_n": 0},
        {"max_body_bytes": 0},
        {"body_timeout_s": 0},
        {"grammar_timeout_s": float("nan")},
        {"send_timeout_s": float("inf")},
        {"shutdown_grace_s": -1},
        {"allowed_hosts": ("",)},
        {"served_model_names": (" ",)},
    ],
)
def test_refused(bad: dict[str, Any]) -> None:
    (name,) = bad
    with pytest.raises(OptionError, match=name):
        ServerSettings(**bad)


@pytest.mark.parametrize("key", ["", "two words", "schlüssel", "tab\t", "line\n"])
def test_keys_that_no_header_can_hold(key: str) -> None:
    with pytest.raises(OptionError, match="API key") as caught:
        ServerSettings(api_keys=("fine", key))
    assert not key or key not in str(caught.value)


def test_bounds_are_allowed() -> None:
    ServerSettings(port=65535, max_queue=0, shutdown_grace_s=0, max_logprobs=0)
