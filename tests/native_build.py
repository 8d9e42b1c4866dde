"""The build hook as a module: for tests of it, and for programs made of the native sources."""

from __future__ import annotations

import importlib.util
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


def load_hook() -> ModuleType:
    """hatch_build.py, freshly imported: tests may change what it finds."""
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compiler_or_skip(hook: ModuleType) -> list[str]:
    try:
        return list(hook.find_compiler())
    except hook.NoCompilerError as error:
        pytest.skip(str(error))


def build_program(
    source: Path, folder: Path, flags: Sequence[str], paths: Sequence[str] | None = None
) -> Path:
    """`source` and the library's sources in one program: the library's own flags, but these instead
    of its optimisation, and only these instruction-set paths."""
    hook = load_hook()
    compiler = compiler_or_skip(hook)
    known = hook.usable_paths(compiler)
    wanted = {name: known[name] for name in (paths or known)}
    main = hook.Unit(source, source.name, ("-I", str(hook.SOURCES)))
    objects = hook.compile_units(compiler, [*hook.units(wanted), main], flags, folder)
    program = folder / source.stem
    subprocess.run([*compiler, *flags, "-pthread", *objects, "-o", program], check=True)
    return program
