"""Bodies: what is JSON to everybody is read, what readers could take differently is refused."""

from __future__ import annotations

import json

import pytest
from servers import RunningServer

from outpace.serving.body import MAX_DEPTH, parse
from outpace.serving.errors import ApiError


@pytest.mark.parametrize(
    "value",
    [{}, {"a": [1, -2.5, 1e-300, True, None, "ä€😀\x00"]}, {"b": {"c": {}}}, [], "x", 3],
)
def test_plain_json_is_read(value: object) -> None:
    assert parse(json.dumps(value).encode()) == value
    assert parse(json.dumps(value, ensure_ascii=False).encode()) == value


def test_a_character_in_two_escapes_is_whole() -> None:
    assert parse(rb'{"a": "\ud83d\ude00"}') == {"a": "😀"}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "empty"),
        (b" ", "not valid JSON"),
        (b'{"a": 1', "not valid JSON"),
        (b'{"a": 1} {}', "not valid JSON"),
        (b"{'a': 1}", "not valid JSON"),
        (b'{"a": 1,}', "not valid JSON"),
        (b'{"a": 01}', "not valid JSON"),
        (b'{"a": "\n"}', "not valid JSON"),
        (b'{"a": NaN}', "NaN is not"),
        (b'{"a": [Infinity]}', "Infinity is not"),
        (b'{"a": -Infinity}', "-Infinity is not"),
        (b'{"a": 1e999}', "out of range"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not valid JSON"),
        (b'{"a": 1, "b": 2, "a": 3}', "'a' is given twice"),
        (b'{"x": {"a": 1, "\\u0061": 3}}', "'a' is given twice"),
        (b'\xff{"a": 1}', "UTF-8"),
        (b'\xef\xbb\xbf{"a": 1}', "not valid JSON"),
        (b'{"a": "\xed\xa0\x80"}', "UTF-8"),
        ('{"a": 1}'.encode("utf-16"), "UTF-8"),
        (rb'{"a": "x\ud83d"}', r"lone surrogate (\ud83d)"),
        (rb'{"a": ["\ude00\ud83d"]}', r"lone surrogate (\ude00)"),
        (rb'{"\udc00": 1}', r"lone surrogate (\udc00)"),
    ],
)
def test_what_is_refused(data: bytes, said: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse(data)
    assert caught.value.status == 400
    assert said in caught.value.message
    assert "object_pairs_hook" not in caught.value.message


@pytest.mark.parametrize("brackets", [(b"[", b"]"), (b'{"a":', b"}")])
@pytest.mark.parametrize("depth", [MAX_DEPTH - 1, MAX_DEPTH + 1, 100_000])
def test_depth(brackets: tuple[bytes, bytes], depth: int) -> None:
    data = brackets[0] * depth + b"1" + brackets[1] * depth
    if depth < MAX_DEPTH:
        parse(data)
        return
    with pytest.raises(ApiError, match="nested too deeply"):
        parse(data)


@pytest.mark.parametrize("data", [b"[1]", b'"x"', b"3", b"null", b"true", b"{", b"[" * 99_999])
def test_over_http(server: RunningServer, data: bytes) -> None:
    headers = {"content-type": "application/json"}
    response = server.client.post("/v1/completions", content=data, headers=headers)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert "body" in error["message"]
