"""Builds the native step, src/outpace/native/cpp, into one shared library at installation.

A hatchling build hook, for wheels and editable installs, and a script for whoever edits the C++:

    python hatch_build.py        (or: make native)

Three rules decide its shape. Installation must succeed without a compiler, since torch then
serves; scikit-build-core and CMake would fail the installation instead. Nothing is needed beyond
hatchling and the system's compiler. And every source of the per-path kind is compiled once per
instruction-set path, with that path's flags. $CXX names the compiler; $CXXFLAGS are not taken:
flags like -march or -ffast-math would break what the step guarantees.

Beside the library lies either nothing or, if it could not be built, a text file with the reason.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run as a script, where the build backend need not be installed
    BuildHookInterface = object  # type: ignore[assignment, misc]

ROOT = Path(__file__).resolve().parent
PACKAGE = ROOT / "src" / "outpace" / "native"
SOURCES = PACKAGE / "cpp"
LIBRARY = "_outpace_native.so"
REASON = "_outpace_native.txt"

COMMON_SOURCES = (
    *("api.cpp", "cache.cpp", "draft.cpp", "machine.cpp", "model.cpp"),
    *("pack.cpp", "plan.cpp", "pool.cpp", "scratch.cpp"),
)
PATH_SOURCES = ("linear.cpp", "step.cpp")  # the slowest to compile first

FLAGS = (
    *("-std=c++20", "-fPIC", "-fvisibility=hidden", "-pthread"),
    # Fused only where the source says fma(): otherwise a row's bits would depend on its neighbours.
    *("-ffp-contract=off", "-fno-math-errno"),
    *("-Wall", "-Wextra", "-Wno-unknown-warning-option"),
    *("-Wno-uninitialized", "-Wno-maybe-uninitialized"),  # false alarms in GCC 12's immintrin.h
)
# The kernels are vectorised by hand: -O3 makes them no faster, and can take minutes over them.
OPTIMISED = ("-O2", "-ftree-vectorize")

_AVX2 = ("-mavx2", "-mfma", "-mf16c")
_AVX512 = (*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl")
_AVX512BF16 = (*_AVX512, "-mavx512bf16", "-mavx512vnni", "-mavx512vbmi")
_AMX = (*_AVX512BF16, "-mamx-tile", "-mamx-int8", "-mamx-bf16")
X86_PATHS = {
    "amx": _AMX,
    "avx512bf16": _AVX512BF16,
    "avx512": _AVX512,
    "avx2": _AVX2,
    "portable": (),
}  # best first


class BuildError(Exception):
    """Why there is no library: one clause, then whatever the compiler wrote."""

    @property
    def reason(self) -> str:
        return str(self).partition("\n")[0]


class NoCompilerError(BuildError):
    """There is nothing to compile with."""


class Unit(NamedTuple):
    """One translation unit: a source and the flags that are its own."""

    source: Path
    name: str
    flags: tuple[str, ...]


def find_compiler() -> list[str]:
    """The command line of the C++ compiler, tried on an empty file. Raises NoCompilerError."""
    wanted = os.environ.get("CXX")
    candidates = [wanted] if wanted else ["c++", "g++", "clang++"]
    for candidate in candidates:
        command = shlex.split(candidate)
        if shutil.which(command[0]) and _accepts(command, FLAGS):
            return command
    tried = f"CXX={wanted}" if wanted else ", ".join(candidates)
    raise NoCompilerError(
        f"no C++20 compiler worked when Outpace was installed (tried {tried}); install one, then "
        "Outpace again"
    )


def usable_paths(compiler: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The instruction-set paths that this compiler and processor family know, best first."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return {"portable": ()}
    return {name: flags for name, flags in X86_PATHS.items() if _accepts(compiler, flags)}


def units(paths: dict[str, tuple[str, ...]]) -> list[Unit]:
    """Every translation unit of the library. api.cpp learns the paths from an X macro."""
    listed = " ".join(f"X({name})" for name in paths)
    per_path = [
        Unit(SOURCES / source, f"{source}.{name}", (*flags, f"-DOUTPACE_PATH={name}"))
        for source in PATH_SOURCES
        for name, flags in paths.items()
    ]
    common = [
        Unit(SOURCES / source, source, (f"-DOUTPACE_PATHS(X)={listed}",))
        for source in COMMON_SOURCES
    ]
    return per_path + common


def compile_units(
    compiler: Sequence[str], wanted: Iterable[Unit], flags: Sequence[str], folder: Path
) -> list[Path]:
    """Compile all of them at once, into `folder`; returns the object files. Raises BuildError."""

    def compile_one(unit: Unit) -> Path:
        target = folder / f"{unit.name}.o"
        _run([*compiler, *FLAGS, *flags, *unit.flags, "-c", str(unit.source), "-o", str(target)])
        return target

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(compile_one, wanted))


def build() -> bool:
    """Bring the library in PACKAGE up to date; True if it had to be compiled.

    If that fails, the library is removed (it would not be what the sources say), the reason is
    written to the text file in its place, and BuildError is raised.
    """
    library, reason = PACKAGE / LIBRARY, PACKAGE / REASON
    try:
        compiler = find_compiler()
        wanted = units(usable_paths(compiler))
        digest = _digest(compiler, wanted)
        compiled = not (library.exists() and digest.encode() in library.read_bytes())
        if compiled:
            _link(compiler, wanted, digest, library)
    except BuildError as error:
        library.unlink(missing_ok=True)
        reason.write_text(error.reason + "\n", encoding="utf-8")
        raise
    reason.unlink(missing_ok=True)
    return compiled


def _link(compiler: Sequence[str], wanted: Sequence[Unit], digest: str, library: Path) -> None:
    """Compile, link beside the target, then rename: nobody ever sees half a library."""
    unfinished = library.with_name(f"{library.name}.{os.getpid()}")
    with tempfile.TemporaryDirectory() as temporary:
        stamp = Path(temporary) / "stamp.cpp"
        stamp.write_text(f'extern const char op_build[];\nconst char op_build[] = "{digest}";\n')
        everything = [*wanted, Unit(stamp, "stamp", ("-fvisibility=default",))]
        objects = compile_units(compiler, everything, OPTIMISED, Path(temporary))
        try:
            _run([*compiler, "-shared", "-pthread", *map(str, objects), "-o", str(unfinished)])
            os.replace(unfinished, library)
        except OSError as error:
            raise BuildError(f"the library could not be put in place: {error}") from None
        finally:
            unfinished.unlink(missing_ok=True)


def _digest(compiler: Sequence[str], wanted: Sequence[Unit]) -> str:
    """A hash of everything that the library's bytes depend on."""
    version = subprocess.run([*compiler, "--version"], capture_output=True, check=False).stdout
    parts = [shlex.join(compiler).encode(), version, repr((FLAGS, OPTIMISED)).encode()]
    parts += [repr((unit.name, unit.flags)).encode() for unit in wanted]
    for file in sorted(SOURCES.iterdir()):
        parts += [file.name.encode(), file.read_bytes()]
    joined = hashlib.sha256()
    for part in parts:
        joined.update(hashlib.sha256(part).digest())
    return f"outpace-build:{joined.hexdigest()}"


def _accepts(compiler: Sequence[str], flags: Sequence[str]) -> bool:
    """Whether it compiles an empty file with these flags."""
    command = [*compiler, *flags, "-Werror", "-x", "c++", "-fsyntax-only", os.devnull]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BuildError(f"{command[0]} could not be run: {error}") from None
    if done.returncode != 0:
        problems = [line for line in done.stderr.splitlines() if "error" in line]
        first = problems[0] if problems else f"{command[0]} ended with status {done.returncode}"
        raise BuildError(f"the C++ sources did not compile: {first}\n{done.stderr}")
    sys.stderr.write(done.stderr)  # warnings


class NativeBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Builds the library for a wheel or an editable install, or lets it go on without."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        try:
            build()
        except (BuildError, OSError) as error:
            self.app.display_warning(
                f"Outpace is installed without its native step, and torch serves instead: {error}"
            )
            build_data["artifacts"].append(f"src/outpace/native/{REASON}")
            return
        build_data["artifacts"].append(f"src/outpace/native/{LIBRARY}")
        build_data["pure_python"] = False
        machine = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{machine}"


def main() -> int:
    """Exit status 1 only if there was a compiler and the sources did not compile."""
    try:
        compiled = build()
    except NoCompilerError as error:
        sys.stderr.write(f"warning: {error}\n")
        return 0
    except BuildError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    sys.stdout.write(f"{PACKAGE / LIBRARY}: {'built' if compiled else 'up to date'}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
