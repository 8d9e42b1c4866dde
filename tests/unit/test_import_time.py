"""Importing the package and asking for help stay light: what is not needed is not imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "numpy", "transformers", "tokenizers", "safetensors", "jinja2", "rich", "psutil")
REPORT = f"import sys; print([name for name in {HEAVY!r} if name in sys.modules])"
RUN_CLI = """\
from outpace.cli.main import main
try:
    main({args!r})
except SystemExit:
    pass"""


def heavy_modules_after(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{REPORT}"], capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    "code",
    [
        "import outpace",
        "from outpace import SamplingParams",
        "import outpace.errors",
        *(
            RUN_CLI.format(args=args)
            for args in (["--help"], ["--version"], ["generate", "--help"], ["chat", "--help"])
        ),
        *(
            RUN_CLI.format(args=args)
            for args in (["train", "eagle3", "--help"], ["evaluate-draft", "--help"])
        ),
    ],
)
def test_nothing_heavy_is_imported(code: str) -> None:
    assert heavy_modules_after(code) == "[]"


def test_the_check_can_fail() -> None:
    assert heavy_modules_after("import numpy") == "['numpy']"
