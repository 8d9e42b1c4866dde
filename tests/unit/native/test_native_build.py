"""The build hook: what it leaves behind with a compiler, without one, and with a failing one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from native_build import ROOT, compiler_or_skip, load_hook


@pytest.fixture
def hook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The hook, set to build one small source into an empty folder."""
    monkeypatch.delenv("CXX", raising=False)
    module = load_hook()
    module.PACKAGE, module.SOURCES = tmp_path / "package", tmp_path / "cpp"
    module.COMMON_SOURCES, module.PATH_SOURCES = ("small.cpp",), ()
    module.PACKAGE.mkdir()
    module.SOURCES.mkdir()
    (module.SOURCES / "small.cpp").write_text("int small() { return 1; }\n")
    return module


def initialize(hook: ModuleType) -> tuple[dict[str, Any], list[str]]:
    """What hatchling would learn from the hook: build data and warnings."""
    warnings: list[str] = []

    class Quiet(hook.NativeBuildHook):  # type: ignore[misc, name-defined]
        app = SimpleNamespace(display_warning=warnings.append)

    build_data: dict[str, Any] = {"artifacts": [], "pure_python": True}
    Quiet.__new__(Quiet).initialize("standard", build_data)
    return build_data, warnings


def left_behind(hook: ModuleType) -> list[str]:
    return sorted(file.name for file in hook.PACKAGE.iterdir())


def test_a_wheel_with_the_library_is_tagged_for_the_platform(hook: ModuleType) -> None:
    compiler_or_skip(hook)
    build_data, warnings = initialize(hook)
    assert warnings == []
    assert build_data["artifacts"] == ["src/outpace/native/_outpace_native.so"]
    assert build_data["pure_python"] is False
    assert build_data["tag"].startswith("py3-none-")
    assert build_data["tag"] != "py3-none-any"
    assert left_behind(hook) == [hook.LIBRARY]


@pytest.mark.parametrize("compiler", ["false", "/no/such/compiler", "true"])
def test_without_a_compiler_installation_goes_on(
    hook: ModuleType, monkeypatch: pytest.MonkeyPatch, compiler: str
) -> None:
    monkeypatch.setenv("CXX", compiler)
    (hook.PACKAGE / hook.LIBRARY).write_bytes(b"of other sources")
    build_data, warnings = initialize(hook)
    assert build_data == {
        "artifacts": ["src/outpace/native/_outpace_native.txt"],
        "pure_python": True,
    }
    assert len(warnings) == 1
    assert "torch serves instead" in warnings[0]
    assert left_behind(hook) == [hook.REASON]
    reason = (hook.PACKAGE / hook.REASON).read_text()
    assert reason.count("\n") == 1
    assert reason.strip() in warnings[0]


def test_sources_that_do_not_compile(hook: ModuleType) -> None:
    compiler_or_skip(hook)
    (hook.SOURCES / "small.cpp").write_text("int small() { return nothing; }\n")
    build_data, warnings = initialize(hook)
    assert "tag" not in build_data
    assert len(warnings) == 1
    reason = (hook.PACKAGE / hook.REASON).read_text()
    assert "small.cpp:1" in reason
    assert "nothing" in reason
    assert left_behind(hook) == [hook.REASON]


def test_success_removes_an_old_reason(hook: ModuleType) -> None:
    compiler_or_skip(hook)
    (hook.PACKAGE / hook.REASON).write_text("no compiler\n")
    assert hook.build()
    assert left_behind(hook) == [hook.LIBRARY]


def test_it_is_rebuilt_only_when_something_changed(
    hook: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = compiler_or_skip(hook)
    assert hook.build()
    assert not hook.build()
    (hook.SOURCES / "small.hpp").write_text("// a header\n")
    assert hook.build()
    assert not hook.build()
    hook.OPTIMISED = ("-O1",)
    assert hook.build()
    monkeypatch.setenv("CXX", f"{compiler[0]} -DOTHER")
    assert hook.build()
    assert not hook.build()


def test_paths_that_the_compiler_does_not_know_are_left_out(
    hook: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = compiler_or_skip(hook)
    monkeypatch.setattr(hook.platform, "machine", lambda: "x86_64")
    hook.X86_PATHS = {"newer": ("-mno-such-instructions",), "portable": ()}
    assert list(hook.usable_paths(compiler)) == ["portable"]
    assert hook.units({"portable": ()})[-1].flags == ("-DOUTPACE_PATHS(X)=X(portable)",)
    monkeypatch.setattr(hook.platform, "machine", lambda: "aarch64")
    assert list(hook.usable_paths(compiler)) == ["portable"]


def test_every_source_is_in_one_list() -> None:
    module = load_hook()
    listed = [*module.COMMON_SOURCES, *module.PATH_SOURCES]
    assert sorted(listed) == sorted(file.name for file in module.SOURCES.glob("*.cpp"))


REPORT = """
import json, outpace
from outpace.native.library import status
found = status()
print(json.dumps([outpace.__file__, found.path, found.reason]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("compiler", ["/bin/false", None])
def test_installing_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: str | None
) -> None:
    """pip install, then import: with a compiler made to fail, and with the system's."""
    project, target = tmp_path / "project", tmp_path / "target"
    built = shutil.ignore_patterns("__pycache__", "_outpace_native.*")
    shutil.copytree(ROOT / "src", project / "src", ignore=built)
    for name in ("hatch_build.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, project)
    if compiler is None:
        compiler_or_skip(load_hook())
    else:
        monkeypatch.setenv("CXX", compiler)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target)]
    subprocess.run([*pip, str(project)], check=True)
    environment = {**os.environ, "PYTHONPATH": str(target)}
    environment.pop("OUTPACE_NATIVE_PATH", None)
    done = subprocess.run(
        [sys.executable, "-c", REPORT], capture_output=True, text=True, check=True, env=environment
    )
    assert str(target) in done.stdout
    assert ("no C++20 compiler worked" in done.stdout) == (compiler is not None)
    assert not list(target.rglob("*.cpp"))
