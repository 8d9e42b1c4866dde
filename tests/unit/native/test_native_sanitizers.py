"""The native step's C++ driver under the sanitizers: every kernel, format and entry point.

`driver.cpp` also compares bits wherever the C interface promises them.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from native_build import build_program

from outpace.native.library import status

DRIVER = Path(__file__).with_name("driver.cpp")
COMMON = ("-O1", "-g", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all")
ADDRESS = (*COMMON, "-fsanitize=address,undefined")
THREAD = (*COMMON, "-fsanitize=thread")


def run_driver(program: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=False)


def check_driver(program: Path, *paths: str) -> None:
    done = run_driver(program, *paths)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == list(paths)


def test_address_and_undefined_behaviour(tmp_path: Path) -> None:
    """On the path that every machine has; and a read past an allocation is noticed."""
    program = build_program(DRIVER, tmp_path, ADDRESS, ["portable"])
    check_driver(program, "portable")
    done = run_driver(program, "mistake")
    assert done.returncode != 0
    assert "heap-buffer-overflow" in done.stderr


@pytest.mark.slow
def test_address_and_undefined_behaviour_on_every_path(tmp_path: Path) -> None:
    found = status()
    if not found.usable:
        pytest.skip(f"no native library: {found.reason}")
    check_driver(build_program(DRIVER, tmp_path, ADDRESS), *found.usable)


@pytest.mark.slow
def test_threads(tmp_path: Path) -> None:
    check_driver(build_program(DRIVER, tmp_path, THREAD, ["portable"]), "portable")
