"""`outpace chat` through a pipe, and what a terminal would add."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from outpace.cli.chat import _read_lines
from outpace.cli.chat_local import ACCEPTED_COLOUR, LocalModel, styled
from outpace.outputs import Event

Run = Callable[..., tuple[int, str, str]]


def test_history_grows_and_reset_forgets(run_cli: Run, llms: list) -> None:
    status, out, err = run_cli(
        "chat", "--system", "Be brief.", stdin="one\ntwo\n/reset\n\nthree\n/quit\nnever\n"
    )
    assert (status, err) == (0, "")
    assert out.splitlines() == [
        "you said: one",
        "you said: two",
        "The conversation is forgotten.",
        "you said: three",
    ]
    system = {"role": "system", "content": "Be brief."}
    first, second, third = (request[0] for request in llms[0].requests)
    assert first == [system, {"role": "user", "content": "one"}]
    assert second == [
        *first,
        {"role": "assistant", "content": "you said: one"},
        {"role": "user", "content": "two"},
    ]
    assert third == [system, {"role": "user", "content": "three"}]
    assert llms[0].closed


def test_commands(run_cli: Run, llms: list) -> None:
    status, out, err = run_cli("chat", "--method=ngram", stdin="hello\n/stats\n/help\n/nonsense")
    assert status == 0
    assert "1 answer, 15 tokens in 5 steps, acceptance length 3.00" in out
    assert "/reset" in out
    assert err == "error: unknown command /nonsense; /help lists the commands\n"


def test_an_error_leaves_the_conversation_as_it_was(run_cli: Run, llms: list) -> None:
    status, out, err = run_cli("chat", stdin=f"{'x' * 500}\nhello\n")
    assert (status, out) == (1, "you said: hello\n")
    assert err == "error: the prompt is too long; give a shorter one\n"
    assert llms[0].requests[1][0] == [{"role": "user", "content": "hello"}]


def test_a_failed_message_counts_even_before_quit(run_cli: Run, llms: list) -> None:
    assert run_cli("chat", stdin=f"{'x' * 500}\n/quit\n")[0] == 1


def test_input_that_is_not_utf8(run_cli: Run, llms: list) -> None:
    status, out, err = run_cli("chat", stdin=b"hello\n\xff\xfe\nagain\n")
    assert (status, out) == (1, "you said: hello\n")
    assert err.startswith("error: standard input is not valid UTF-8")
    assert err.count("\n") == 1
    assert llms[0].closed


def test_a_line_that_is_not_utf8_in_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Terminal:
        def isatty(self) -> bool:
            return True

    inputs = iter([b"one", b"\xff", b"two"])
    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("builtins.input", lambda prompt: next(inputs).decode())
    lines = _read_lines()
    assert (next(lines), next(lines)) == ("one", "two")
    assert "error: the line is not valid UTF-8" in capsys.readouterr().err


def test_ctrl_c_stops_the_answer_not_the_program(
    run_cli: Run, llms: list, fake_class: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = iter(range(1000))

    def interrupt_at_the_third_event(self: object) -> None:
        if next(events) == 2:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(fake_class, "on_event", interrupt_at_the_third_event)
    before = signal.getsignal(signal.SIGINT)
    status, out, _ = run_cli("chat", "--method", "none", stdin="hello\nagain\n")
    assert signal.getsignal(signal.SIGINT) is before
    assert status == 0
    assert out.splitlines() == ["you  (stopped)", "you said: again"]
    messages = llms[0].requests[1][0]
    assert messages[1] == {"role": "assistant", "content": "you"}


def test_accepted_tokens_have_another_colour(llms: list, run_cli: Run) -> None:
    run_cli("chat", stdin="")
    llm = llms[0]
    on, off = "\x1b[36m", "\x1b[0m"
    assert ACCEPTED_COLOUR == "cyan"
    event = Event(0, tuple(b"abc"), "abc", ("ngram", "ngram", ""))
    assert styled(llm, event) == f"{on}a{off}{on}b{off}c"
    assert styled(llm, Event(0, tuple(b"abc"), "abc", ("", "", ""))) == "abc"
    held_back = Event(0, tuple(b"abc"), "ab", ("ngram", "ngram", ""))
    assert styled(llm, held_back) == f"{on}ab{off}"


@pytest.mark.parametrize(("method", "coloured"), [("none", False), ("ngram", True)])
def test_the_banner_explains_colours_where_there_are_some(
    run_cli: Run, llms: list, method: str, coloured: bool
) -> None:
    run_cli("chat", "--method", method, stdin="")
    line = LocalModel(llms[0]).banner()
    assert line.startswith(f"smollm2-135m, method {method}.")
    assert ("Accepted draft tokens" in line) == ("\x1b" in line) == coloured


def test_no_colour_codes_in_a_pipe(run_cli: Run, llms: list) -> None:
    assert "\x1b" not in run_cli("chat", "--method", "ngram", stdin="hello\n")[1]


@pytest.mark.parametrize(("temperature", "shown"), [("1", True), ("0", False)])
def test_a_lossy_rule_is_named(run_cli: Run, llms: list, temperature: str, shown: bool) -> None:
    config = '{"method": "ngram", "acceptance_method": "typical"}'
    arguments = ("--speculative-config", config, "--temperature", temperature)
    _, _, err = run_cli("chat", *arguments, stdin="hello\n")
    assert ("LOSSY: some rule" in err) == shown
