"""`outpace chat --url` against a live server."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from click.testing import CliRunner, Result
from servers import RunningServer, serving, slow_llm

from outpace import SamplingParams
from outpace.cli.chat import chat
from outpace.cli.chat_remote import RemoteModel
from outpace.errors import OptionError, OutpaceError

GREEDY = SamplingParams(temperature=0.0, max_tokens=12)
MESSAGES = [{"role": "user", "content": "abc"}]


def ask(remote: RemoteModel, params: SamplingParams = GREEDY, **options: Any) -> tuple[Any, str]:
    shown: list[str] = []
    stopped = options.pop("stopped", lambda: False)
    reply = remote.answer(MESSAGES, params, shown.append, stopped)
    return reply, "".join(shown)


def run_chat(url: str, text: str, *arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(chat, ["--url", url, *arguments], input=text, env=environment)


def test_an_answer_is_the_library_s(server: RunningServer) -> None:
    (own,) = server.llm.chat(MESSAGES, GREEDY)
    reply, shown = ask(RemoteModel(server.url))
    assert reply.text == own.outputs[0].text
    assert shown.replace("\x1b[36m", "").replace("\x1b[0m", "") == reply.text
    assert reply.stats.num_output_tokens == len(own.outputs[0].token_ids)
    assert reply.stats.num_steps == own.stats.num_steps
    assert reply.stats.num_accepted_tokens == own.stats.num_accepted_tokens
    assert ("\x1b[36m" in shown) == bool(own.stats.num_accepted_tokens)


def test_sampling_parameters_and_the_method_arrive(server: RunningServer) -> None:
    params = SamplingParams(
        temperature=1.3, seed=5, top_k=7, max_tokens=9, stop="q", logit_bias={3: 2.0}
    )
    (own,) = server.llm.chat(MESSAGES, params)
    plainly = RemoteModel(server.url + "/v1/", speculation={"method": "none"})
    reply, _ = ask(plainly, params)
    assert reply.text == own.outputs[0].text
    assert reply.stats.num_draft_tokens == 0


def test_a_conversation_from_end_to_end(server: RunningServer) -> None:
    result = run_chat(server.url, "abc\n/stats\nmore\n", "--max-tokens", "5")
    assert result.exit_code == 0
    (first,) = server.llm.chat(MESSAGES, SamplingParams(temperature=0.0, max_tokens=5))
    answer = first.outputs[0].text
    history = [*MESSAGES, {"role": "assistant", "content": answer}]
    history.append({"role": "user", "content": "more"})
    (second,) = server.llm.chat(history, SamplingParams(temperature=0.0, max_tokens=5))
    assert result.stdout.startswith(f"{answer}\n1 answer, 5 tokens in ")
    assert result.stdout.endswith(f"{second.outputs[0].text}\n")


def test_options_of_a_model_of_ones_own_are_refused(server: RunningServer) -> None:
    result = run_chat(server.url, "abc\n", "--dtype", "float32")
    assert isinstance(result.exception, OptionError)
    assert "--dtype concerns a model in this process" in str(result.exception)


def test_a_model_that_is_not_served(server: RunningServer) -> None:
    with pytest.raises(OptionError, match="not 'gpt-9'"):
        RemoteModel(server.url, model="gpt-9")


def test_what_the_server_refuses_is_told_and_the_conversation_goes_on(
    server: RunningServer,
) -> None:
    result = run_chat(server.url, f"{'a' * 300}\nabc\n", "--max-tokens", "3")
    assert "error: the server refused: the prompt has" in result.stderr
    assert len(result.stdout) > 1


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://x", "http://", ""])
def test_what_is_no_url(url: str) -> None:
    with pytest.raises(OptionError, match="--url must be like"):
        RemoteModel(url)


def test_no_server() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(OutpaceError, match="no server answers"):
            RemoteModel(f"http://127.0.0.1:{taken.getsockname()[1]}")


def test_a_server_with_a_key() -> None:
    with serving(api_keys=("secret",)) as server:
        with pytest.raises(OutpaceError, match="refused"):
            RemoteModel(server.url)
        assert ask(RemoteModel(server.url, api_key="secret"))[0].text
        for variable in ("secret", "secret other"):
            result = run_chat(server.url, "abc\n", OUTPACE_API_KEY=variable)
            assert result.exit_code == 0, result.output


def test_stopping_frees_the_row() -> None:
    with serving(slow_llm()) as server:
        seen = iter(range(100))
        params = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)
        reply, _ = ask(RemoteModel(server.url), params, stopped=lambda: next(seen) >= 3)
        assert 0 < reply.stats.num_output_tokens < 10
        server.wait_until_idle()


@contextmanager
def saying(*lines: str) -> Iterator[str]:
    """A server that answers every POST with these lines and then hangs up."""
    listener = socket.create_server(("127.0.0.1", 0))
    models = json.dumps({"data": [{"id": "m"}]})

    def answer() -> None:
        for body in (models, "\n\n".join(lines)):
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(f"HTTP/1.0 200 OK\r\n\r\n{body}\n\n".encode())

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    with listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join(10)


CHUNK = 'data: {"choices": [{"index": 0, "delta": {"content": "hi"}}]}'


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ((CHUNK,), "in the middle of the answer"),
        ((CHUNK, "data: {broken"), "was lost"),
        ((CHUNK, 'data: {"error": {"message": "out of luck"}}'), "broke off: out of luck"),
    ],
)
def test_streams_that_break(lines: tuple[str, ...], said: str) -> None:
    with saying(*lines) as url, pytest.raises(OutpaceError, match=said):
        ask(RemoteModel(url))


def test_a_stream_without_figures_is_an_answer_too() -> None:
    with saying(CHUNK, ": a comment", "data: [DONE]") as url:
        reply, shown = ask(RemoteModel(url))
    assert reply.text == shown == "hi"
    assert reply.tokens_per_s is None
