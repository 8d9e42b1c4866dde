"""Every `outpace` command and Python block that the documentation shows is run as it stands."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import click
import pytest

from outpace.cli.main import cli

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NAMING = [*sorted(ROOT.glob("*.md")), *PAGES[1:]]
SHELL = ("console", "sh", "bash")
FENCE = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```\s*$", re.MULTILINE | re.DOTALL)
# What a reader would type into a command that asks, and would have in a file it names.
TYPED = "Hello!\n/quit\n"
FILE_TEXT = "Name three rivers in Europe.\n"


class Shown(NamedTuple):
    """Something to run, and where it stands."""

    place: str
    code: str


def blocks(text: str, languages: tuple[str, ...]) -> list[tuple[int, str]]:
    """Line number and content of the fenced blocks in one of these languages."""
    return [
        (text.count("\n", 0, match.start()) + 1, match[2])
        for match in FENCE.finditer(text)
        if match[1] in languages
    ]


def commands(block: str) -> list[str]:
    """The `outpace` commands of a shell block; lines of output, comments and `$ ` are left out."""
    lines = block.replace("\\\n", "").splitlines()
    if any(line.startswith("$ ") for line in lines):
        lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    return [line for line in lines if re.search(r"(^|\| *)outpace ", line)]


def shown_commands() -> list[Shown]:
    return [
        Shown(f"{page.relative_to(ROOT)}:{line}", command)
        for page in PAGES
        for line, block in blocks(page.read_text(encoding="utf-8"), SHELL)
        for command in commands(block)
    ]


def inline_commands(text: str) -> list[str]:
    """What is said of `outpace ...` within sentences, on one line each."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return [" ".join(code.split()) for code in re.findall(r"`(outpace\s[^`]+)`", prose)]


def unknown_words(command: str) -> list[str]:
    """Subcommands and options of an `outpace` command that do not exist."""
    found: click.Command = cli
    words = shlex.split(command)[1:]
    while words and isinstance(found, click.Group) and not words[0].startswith("-"):
        inner = found.get_command(click.Context(found), words[0])
        if inner is None:
            return words[:1]
        found, words = inner, words[1:]
    known = {
        flag for parameter in found.params for flag in parameter.opts + parameter.secondary_opts
    }
    flags = [word.partition("=")[0] for word in words if word.startswith("--")]
    return [flag for flag in flags if flag not in known | {"--help"}]


def shown_programs() -> list[Shown]:
    """The Python of the pages whose blocks are whole programs."""
    return [
        Shown(f"{page.relative_to(ROOT)}:{line}", block)
        for page in (ROOT / "README.md", ROOT / "docs" / "auto.md")
        for line, block in blocks(page.read_text(encoding="utf-8"), ("python",))
    ]


def run(command: list[str], folder: Path, typed: str = "") -> subprocess.CompletedProcess[str]:
    scripts = str(Path(sys.executable).parent)
    environment = os.environ | {"PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(
        command,
        input=typed,
        capture_output=True,
        encoding="utf-8",
        check=False,
        cwd=folder,
        env=environment,
    )


@pytest.mark.model
@pytest.mark.parametrize("shown", shown_commands(), ids=str)
def test_command(shown: Shown, tmp_path: Path) -> None:
    for name in re.findall(r"(?:--prompt-file[ =]|< *)(\S+)", shown.code):
        (tmp_path / name).write_text(FILE_TEXT, encoding="utf-8")
    done = run(["bash", "-o", "pipefail", "-c", shown.code], tmp_path, TYPED)
    assert done.returncode == 0, f"{shown.place}: {done.stderr}"
    assert done.stdout.strip()


FIRST_PROGRAM, *PROGRAMS = shown_programs()


@pytest.mark.model
def test_first_program_of_the_readme(tmp_path: Path) -> None:
    """In a process of its own, which ends without the model being closed."""
    done = run([sys.executable, "-c", FIRST_PROGRAM.code], tmp_path)
    assert done.returncode == 0, f"{FIRST_PROGRAM.place}: {done.stderr}"
    assert "tokens per target pass" in done.stdout


@pytest.mark.model
@pytest.mark.usefixtures("default_model_in_memory", "unchecked_shapes")
@pytest.mark.parametrize("shown", PROGRAMS, ids=lambda shown: shown.place)
def test_program(shown: Shown, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(shown.code, shown.place, "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out


@pytest.mark.parametrize("page", NAMING, ids=lambda page: page.name)
def test_commands_named_in_sentences_exist(page: Path) -> None:
    named = inline_commands(page.read_text(encoding="utf-8"))
    assert {command: unknown_words(command) for command in named if unknown_words(command)} == {}


def test_commands_of_the_demo_exist() -> None:
    script = (ROOT / "examples" / "demo.sh").read_text(encoding="utf-8")
    lines = script.replace('"$bin/outpace"', "outpace").splitlines()
    named = [line for line in lines if line.startswith("outpace ")]
    assert len(named) == 2
    assert {command: unknown_words(command) for command in named if unknown_words(command)} == {}


def test_the_check_of_sentences_can_fail() -> None:
    text = "Say `outpace compare`, `outpace\ngenerate --compere x` or `outpace models --help`.\n"
    text += "```\n`outpace in-a-block`\n```\n`outpace models pull X --from FILE`"
    named = inline_commands(text)
    assert named == [
        "outpace compare",
        "outpace generate --compere x",
        "outpace models --help",
        "outpace models pull X --from FILE",
    ]
    assert [unknown_words(command) for command in named] == [["compare"], ["--compere"], [], []]
    assert sum(len(inline_commands(page.read_text(encoding="utf-8"))) for page in NAMING) > 8


def test_extraction() -> None:
    page = """\
text

```console
$ outpace generate "a" \\
    --json
{"text": "outpace is not a command here"}
$ ls
$ cat file | outpace generate -
```

```sh
# a comment
outpace chat
make test
```

```python
print("outpace x")
```
"""
    found = blocks(page, SHELL)
    assert [line for line, _ in found] == [3, 11]
    assert [command for _, block in found for command in commands(block)] == [
        'outpace generate "a"     --json',
        "cat file | outpace generate -",
        "outpace chat",
    ]
    assert [block for _, block in blocks(page, ("python",))] == ['print("outpace x")\n']
