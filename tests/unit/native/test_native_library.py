"""Finding the library, choosing a path, and the mirror of the C interface."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from native_build import compiler_or_skip, load_hook

from outpace.errors import ModelError, OptionError
from outpace.native import interface, library

ENUMS = {
    interface.WeightFormat: "OP_{}",
    interface.Activations: "OP_ACT_{}",
    interface.NormKind: "OP_NORM_{}",
    interface.Block: "OP_BLOCK_{}",
    interface.ActivationFunction: "OP_{}",
    interface.KVType: "OP_KV_{}",
    interface.EagleKind: "OP_{}",
}


@pytest.fixture
def reopened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which the library is looked for, anew at every call."""
    monkeypatch.delenv(library.PATH_VARIABLE, raising=False)
    monkeypatch.setattr(library, "_open", library._open.__wrapped__)
    monkeypatch.setattr(library, "LIBRARY_FILE", tmp_path / library.LIBRARY_FILE.name)
    monkeypatch.setattr(library, "REASON_FILE", tmp_path / library.REASON_FILE.name)
    return tmp_path


@pytest.fixture
def old_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that was built with every path but amx, on a machine that runs two of them."""
    fake = SimpleNamespace(
        op_paths_built=lambda: b"avx512bf16,avx512,avx2,portable",
        op_paths_usable=lambda: b"avx2,portable",
    )
    monkeypatch.setattr(library, "_open", lambda: (fake, None))
    monkeypatch.delenv(library.PATH_VARIABLE, raising=False)


@pytest.mark.usefixtures("old_processor")
def test_the_best_usable_path_is_taken() -> None:
    found = library.status()
    assert (found.path, found.reason) == ("avx2", None)
    assert found.usable == ("avx2", "portable")
    assert library.chosen_path() == "avx2"


@pytest.mark.usefixtures("old_processor")
@pytest.mark.parametrize("value", ["portable", " Portable "])
def test_the_variable_forces_a_path(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv(library.PATH_VARIABLE, value)
    assert library.chosen_path() == "portable"


@pytest.mark.usefixtures("old_processor")
@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("sse9", "sse9 is not an instruction-set path: expected one of amx, avx512bf16"),
        ("avx512", "this processor does not run it; usable here: avx2, portable, or off"),
        ("amx", "it was not built; usable here: avx2, portable, or off"),
    ],
)
def test_values_that_cannot_be_had(
    monkeypatch: pytest.MonkeyPatch, value: str, message: str
) -> None:
    monkeypatch.setenv(library.PATH_VARIABLE, value)
    with pytest.raises(OptionError, match=re.escape(message)):
        library.status()


@pytest.mark.usefixtures("old_processor")
def test_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(library.PATH_VARIABLE, "off")
    assert library.status().path is None
    with pytest.raises(ModelError, match="not available: OUTPACE_NATIVE_PATH=off"):
        library.chosen_path()


def test_the_reason_is_what_the_build_wrote(
    reopened: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "was not built" in str(library.status().reason)
    (reopened / library.REASON_FILE.name).write_text("the compiler was on holiday\n")
    assert library.status().reason == "the compiler was on holiday"
    with pytest.raises(ModelError, match="on holiday"):
        library.library()
    monkeypatch.setenv(library.PATH_VARIABLE, "avx2")
    with pytest.raises(OptionError, match="avx2, but the compiler was on holiday"):
        library.status()


def test_a_file_that_is_no_library(reopened: Path) -> None:
    (reopened / library.LIBRARY_FILE.name).write_bytes(b"nothing of the kind")
    assert "cannot be loaded" in str(library.status().reason)


@pytest.mark.parametrize(
    ("version", "reason"),
    [(interface.ABI_VERSION + 1, "interface version"), (interface.ABI_VERSION, "cannot be loaded")],
)
def test_a_library_of_another_version(reopened: Path, version: int, reason: str) -> None:
    """The second one has the right version and lacks every other function."""
    hook = load_hook()
    source = reopened / "other.cpp"
    source.write_text(f'extern "C" int op_abi_version() {{ return {version}; }}\n')
    target = reopened / library.LIBRARY_FILE.name
    subprocess.run([*compiler_or_skip(hook), "-shared", "-fPIC", source, "-o", target], check=True)
    assert reason in str(library.status().reason)


def test_the_library_has_every_path_that_the_compiler_knows() -> None:
    hook = load_hook()
    compiler = compiler_or_skip(hook)
    assert library.status().built == tuple(hook.usable_paths(compiler))


def test_structs_and_constants_are_those_of_the_header(tmp_path: Path) -> None:
    lines, expected = [], []
    for name, struct in interface.STRUCTS.items():
        expected.append(interface.ctypes.sizeof(struct))
        lines.append(f"sizeof({name})")
        for field, *_ in struct._fields_:
            expected += [getattr(struct, field).offset, getattr(struct, field).size]
            lines += [f"offsetof({name}, {field})", f"sizeof((({name} *)0)->{field})"]
    for enum, spelling in ENUMS.items():
        for member in enum:
            expected.append(member.value)
            lines.append(spelling.format(member.name))
    expected += [interface.ABI_VERSION, interface.ERROR_BYTES]
    lines += ["OP_ABI_VERSION", "OP_ERROR_BYTES"]
    assert _evaluated(lines, tmp_path) == expected


def _evaluated(expressions: list[str], folder: Path) -> list[int]:
    """Integer constant expressions over the C header."""
    hook = load_hook()
    source, program = folder / "values.cpp", folder / "values"
    prints = "".join(f'  std::printf("%d\\n", (int)({each}));\n' for each in expressions)
    source.write_text(
        f'#include <cstdio>\n#include "outpace_native.h"\nint main() {{\n{prints}  return 0;\n}}\n'
    )
    compile_it = [*compiler_or_skip(hook), "-I", str(hook.SOURCES), str(source), "-o", str(program)]
    subprocess.run(compile_it, check=True)
    done = subprocess.run([program], capture_output=True, text=True, check=True)
    return [int(line) for line in done.stdout.split()]


def test_every_function_of_the_header_is_declared() -> None:
    header = (load_hook().SOURCES / "outpace_native.h").read_text()
    functions = re.findall(r"^OP_API [^;(]*?(op_\w+)\(", header, re.MULTILINE)
    assert sorted(functions) == sorted(interface.SIGNATURES)
