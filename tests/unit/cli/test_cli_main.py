"""The entry point: spelling of options, exit codes, and errors in one line."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import outpace
from outpace.cli.main import COMMANDS, main

Run = Callable[..., tuple[int, str, str]]


def test_version(run_cli: Run) -> None:
    assert run_cli("--version")[:2] == (0, f"outpace, version {outpace.__version__}\n")


def test_help_lists_every_command_and_each_has_help(run_cli: Run) -> None:
    _, out, _ = run_cli("--help")
    for name in COMMANDS:
        assert f"  {name} " in out
        status, text, _ = run_cli(name, "--help")
        assert status == 0
        assert "Usage:" in text


@pytest.mark.parametrize(
    "args", [["nonsense"], ["generate", "--nonsense"], ["models", "show"], ["generate", "a", "b"]]
)
def test_wrong_usage_exits_2(run_cli: Run, args: list[str]) -> None:
    status, out, err = run_cli(*args)
    assert (status, out) == (2, "")
    assert "Error:" in err
    assert "Traceback" not in err


def test_error_is_one_line(run_cli: Run, llms: list) -> None:
    status, out, err = run_cli("generate", "x" * 500)
    assert (status, out) == (1, "")
    assert err == "error: the prompt is too long; give a shorter one\n"
    assert llms[0].closed


def test_interrupt_exits_130_quietly(
    run_cli: Run, llms: list, fake_class: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(self: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(fake_class, "on_event", interrupt)
    status, out, err = run_cli("generate", "hello")
    assert (status, out.strip(), err.strip()) == (130, "", "")
    assert llms[-1].closed


def test_a_bug_keeps_its_traceback(llms: list, monkeypatch: pytest.MonkeyPatch) -> None:
    from outpace.cli.main import cli

    def break_down(*args: object, **kwargs: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setitem(vars(outpace), "LLM", break_down)
    with pytest.raises(ZeroDivisionError):
        cli.main(["generate", "hello"], standalone_mode=False)


def test_broken_pipe_is_quiet() -> None:
    """The reader is gone before the first line is written."""
    with subprocess.Popen(
        [sys.executable, "-c", "from outpace.cli.main import main; main(['models', 'list'])"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""


@pytest.mark.parametrize("args", [["generate", "-"], ["chat"]])
def test_closed_standard_input(args: list[str], llms: list, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(SystemExit) as stop:
        main(args)
    assert stop.value.code == 1
    assert capsys.readouterr().err.startswith("error: standard input is closed")
    assert llms == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("args", [["models", "list"], ["models", "list", "--json"], ["--help"]])
def test_a_full_disk_is_one_line(args: list[str]) -> None:
    code = f"from outpace.cli.main import main; main({args!r})"
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode == 1
    assert done.stderr == f"error: {os.strerror(errno.ENOSPC)}\n".encode()


def test_a_narrow_terminal_shows_a_substitute(tmp_path: Path) -> None:
    code = "import sys\nfrom outpace.cli.main import main\nmain(['generate', '--prompt-file', 'é'])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONIOENCODING": "ascii", "PATH": "", "PYTHONUTF8": "1"},
        capture_output=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 2
    assert b"Traceback" not in done.stderr
