"""`outpace serve` as a process of its own: its one line, its end, its complaints."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from click.testing import CliRunner
from model_files import write_hf
from servers import WAIT_S

import outpace
from outpace.cli.serve import WithoutTexts, build_settings, serve
from outpace.errors import OptionError

OUTPACE = Path(sys.executable).with_name("outpace")
Process = subprocess.Popen[str]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    return write_hf(folder, config={"max_position_embeddings": 8192})


@contextmanager
def command(model: Path, *options: str, **variables: str) -> Iterator[tuple[Process, str]]:
    """(the process, its URL) once it has printed the one line that it prints."""
    fixed = ("--port", "0", "--model-impl", "torch", "--threads", "1")
    names = ("--model", str(model), "--served-model-name", "tiny")
    process = subprocess.Popen(
        [str(OUTPACE), "serve", *names, *fixed, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | variables,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.fullmatch(r"tiny is served at (http://127\.0\.0\.1:\d+)\n", line)
        assert found, line
        yield process, found[1]
    finally:
        process.kill()
        process.communicate()


@contextmanager
def endless_answers(url: str) -> Iterator[Callable[[], list[httpx2.Response]]]:
    """Two answers under way that would take thousands of steps, one of them streamed. What is
    yielded waits for their ends."""
    body = {"model": "tiny", "prompt": "secret", "temperature": 0, "ignore_eos": True}

    def ask(is_streamed: bool) -> httpx2.Response:
        wanted = body | {"max_tokens": 8000, "stream": is_streamed}
        return httpx2.post(url + "/v1/completions", json=wanted, timeout=WAIT_S)

    with ThreadPoolExecutor() as pool:
        answers = [pool.submit(ask, is_streamed) for is_streamed in (True, False)]
        while httpx2.get(url + "/health").json()["num_requests_running"] < 2:
            assert not any(one.done() for one in answers)
        yield lambda: [one.result() for one in answers]


def test_sigterm_under_load_ends_well(model: Path) -> None:
    with command(model, "--method", "none", "--shutdown-grace-s", "0.2") as (process, url):
        with endless_answers(url) as ends:
            process.send_signal(signal.SIGTERM)
            streamed, whole = ends()
        out, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0
    assert streamed.text.count("data: ") > 1
    assert '"code":"shutting_down"' in streamed.text
    assert "[DONE]" not in streamed.text
    assert (whole.status_code, whole.json()["error"]["code"]) == (503, "shutting_down")
    assert (out, err) == ("", "")  # no line for a request, let alone its text


@pytest.mark.parametrize(
    ("options", "offered"),
    [
        ((), {"auto", "ngram", "suffix", "recycling"}),
        (("--method", "ngram"), {"ngram", "suffix", "recycling"}),
        (("--request-method", "none"), {"auto"}),
        (("--request-method", "lookahead"), {"auto", "lookahead"}),
    ],
)
def test_methods_that_requests_may_name(
    options: tuple[str, ...], offered: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: dict[str, Any] = {}

    def note(**values: Any) -> None:
        made.update(values)
        raise OptionError("enough is known")

    monkeypatch.setitem(vars(outpace), "LLM", lambda model, **values: note(**values))
    CliRunner().invoke(serve, ["--port", "0", *options])
    own = (made["speculative_config"] or {"method": "auto"})["method"]
    assert {own, *made["request_methods"]} == offered


def test_a_request_names_another_method(model: Path) -> None:
    with command(model) as (_, url):
        body = {"model": "tiny", "prompt": "a b a b a b", "temperature": 0, "max_tokens": 20}
        answers = [
            httpx2.post(
                url + "/v1/completions", json=body | {"speculative_config": {"method": method}}
            ).json()
            for method in ("none", "suffix", "recycling")
        ]
        refused = httpx2.post(
            url + "/v1/completions", json=body | {"speculative_config": {"method": "medusa"}}
        )
    assert len({answer["choices"][0]["text"] for answer in answers}) == 1
    methods = [answer["usage"]["speculation"]["method"] for answer in answers]
    assert methods == ["none", "suffix", "recycling"]
    assert "one of auto, ngram, suffix, recycling, none" in refused.json()["error"]["message"]


def is_listening(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


@pytest.mark.slow
def test_a_second_signal_ends_at_once_and_keys_come_from_the_environment(model: Path) -> None:
    with command(model, "--shutdown-grace-s", "600", OUTPACE_API_KEY="key-1 key-2") as (
        process,
        url,
    ):
        assert httpx2.get(url + "/v1/models").status_code == 401
        for key in ("key-1", "key-2"):
            headers = {"authorization": f"Bearer {key}"}
            assert httpx2.get(url + "/v1/models", headers=headers).status_code == 200
        head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer key-1\r\n"
        port = int(url.rpartition(":")[2])
        body = '{"model": "tiny", "prompt": "x", "max_tokens": 8000, "ignore_eos": true}'
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as connection:
            connection.sendall((head + body).encode())
            while not httpx2.get(url + "/health").json()["num_requests_running"]:
                pass
            process.send_signal(signal.SIGINT)
            while is_listening(port):  # two signals at a time would be one
                pass
            process.send_signal(signal.SIGINT)
            answer = connection.recv(65536)
        out, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0
    assert answer.startswith(b"HTTP/1.1 503")
    assert (out, err) == ("", "")


def test_a_taken_port_is_one_line_before_the_model_is_loaded(run_outpace: Callable) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, out, err = run_outpace("serve", "--port", str(port), "--model", "no-such-model")
    assert (status, out) == (1, "")
    assert re.fullmatch(rf"error: cannot listen at .* port {port}: Address already in use.*\n", err)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--host", "203.0.113.9"), "203.0.113.9"),
        (("--host", "no such host"), "not known"),
        (("--port", "70000"), "port must be"),
        (("--api-key", "two words"), "API key"),
        (("--max-queue", "-1"), "max_queue"),
    ],
)
def test_what_cannot_be_is_one_line(run_outpace: Callable, options: tuple, said: str) -> None:
    status, out, err = run_outpace("serve", "--model", "no-such-model", *options)
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert said in err
    assert "two words" not in err


@pytest.fixture
def run_outpace(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """`outpace ARGS...` in this process: status, output, complaints."""
    from outpace.cli.main import main

    def run(*args: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stop:
            main(list(args))
        return int(stop.value.code or 0), *capsys.readouterr()

    return run


def values_of(*args: str, **variables: str) -> dict[str, object]:
    """What click makes of options."""
    found: dict[str, object] = {}
    callback, serve.callback = serve.callback, lambda **values: found.update(values)
    try:
        result = CliRunner(env=variables).invoke(serve, args)
    finally:
        serve.callback = callback
    assert result.exit_code == 0, result.output
    return found


def test_options_become_settings() -> None:
    values = values_of(
        *("--host", "::1", "--port", "9", "--api-key", "a", "--api-key", "b"),
        *("--allowed-host", "one.example", "--served-model-name", "gpt", "--max-queue", "0"),
        *("--max-body-bytes", "10", "--shutdown-grace-s", "0", "--max-num-seqs", "3"),
    )
    settings = build_settings(values)
    assert (settings.host, settings.port, settings.api_keys) == ("::1", 9, ("a", "b"))
    assert (settings.allowed_hosts, settings.served_model_names) == (("one.example",), ("gpt",))
    assert (settings.max_queue, settings.max_body_bytes, settings.shutdown_grace_s) == (0, 10, 0)
    assert values["max_num_seqs"] == 3


def test_defaults_are_those_of_the_settings() -> None:
    from outpace.serving.settings import ServerSettings

    assert build_settings(values_of()) == ServerSettings()
    keyed = build_settings(values_of(OUTPACE_API_KEY="a b"))
    assert keyed.api_keys == ("a", "b")
    with pytest.raises(OptionError, match="port"):
        build_settings(values_of("--port", "-1"))


def test_logged_errors_do_not_quote_texts(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("outpace.test")
    logger.propagate = False
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(WithoutTexts("%(message)s"))
    logger.addHandler(handler)
    try:
        int("the secret prompt")
    except ValueError:
        logger.exception("it failed")
    shown = capsys.readouterr().err
    assert shown.startswith("it failed\n")
    assert "in test_logged_errors" in shown
    assert shown.endswith("ValueError\n")
    assert "secret" not in shown.replace('int("the secret prompt")', "")


def test_help_has_every_setting_once() -> None:
    text = CliRunner().invoke(serve, ["--help"]).output
    for flag in ("--host", "--port", "--api-key", "--allowed-host", "--max-queue", "--method"):
        assert len(re.findall(rf"^  {flag}\b(?!-)", text, re.M)) == 1
